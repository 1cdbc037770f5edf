"""The store that workers meet at: who does not know the token changes nothing; and where a run listens."""

from __future__ import annotations

import errno
import os
import signal
import socket
import struct
import threading
import time
from pathlib import Path

import psutil
import pytest
import torch
import torch.distributed as dist

from sargnn.comm.join import TOKEN, address_to_listen_on, prove_to_peers
from sargnn.comm.meeting import MeetingServer, MeetingStore
from sargnn.errors import CommError
from tests.in_process import sargnn_here
from tests.pool import processes
from tests.processes import family, sargnn_command, started_command
from tests.run.runs import summary_of

SMALL = ["world=3", "processes=null", "tracking=none", "dataset.num_nodes=600", "model.hidden=16", "run_dir=run"]
KEYS = ("sargnn/lost", "sargnn/heartbeat/0", "sargnn/heartbeat/1", "0//cpu//0/0", "default_pg/0//cpu//0/1")


def _frame(*parts: bytes) -> bytes:
    return b"".join(struct.pack(">I", len(part)) + part for part in parts)


def test_who_knows_the_token_reads_and_writes() -> None:
    server = MeetingServer("127.0.0.1", 0, "secret")
    one, other = (MeetingStore("127.0.0.1", server.port, "secret", 5.0) for _ in range(2))
    threading.Timer(0.2, one.set, ("late", b"\x00\xff")).start()
    assert other.get("late") == b"\x00\xff" == server.peek("late")
    assert other.check(["late"]) and not other.check(["late", "never"])
    with pytest.raises(RuntimeError, match="nobody has set 'never' within 5 s"):
        other.get("never")
    for end in (one, other, server):
        end.close()


def test_a_stranger_is_not_let_in() -> None:
    server = MeetingServer("127.0.0.1", 0, "secret")
    with pytest.raises(CommError, match="does not answer"):
        MeetingStore("127.0.0.1", server.port, "guessed", 0.5)
    for words in (_frame(b"x" * 32, b"y" * 32), _frame(b"", b""), b"GET / HTTP/1.1\r\n\r\n", _frame(b"x" * 32) + b"\xff" * 40):
        with socket.create_connection(("127.0.0.1", server.port), timeout=5) as stranger:
            stranger.sendall(words + _frame(b"set", b"sargnn/lost", b"1"))
            with pytest.raises(OSError):  # closed without an answer to the request
                while True:
                    if not stranger.recv(1000):
                        raise ConnectionError
    assert server.peek("sargnn/lost") is None
    server.close()


def test_a_server_without_the_token_is_no_store() -> None:
    """A stranger who took the port is not taken for the run's store, though it accepts everything."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.sendall(_frame(b"n" * 32) + _frame(b"p" * 32))
                connection.recv(1000)
                time.sleep(1)

        threading.Thread(target=answer, daemon=True).start()
        with pytest.raises(CommError, match="does not answer"):
            MeetingStore("127.0.0.1", listening.getsockname()[1], "secret", 0.5)


def test_a_proof_cannot_be_passed_on_from_another_port() -> None:
    """A stranger whose port the worker was told passes everything on to the real store and back."""
    server = MeetingServer("127.0.0.1", 0, "secret")
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def pass_on(source: socket.socket, target: socket.socket) -> None:
            try:
                while piece := source.recv(1000):
                    target.sendall(piece)
                target.shutdown(socket.SHUT_WR)
            except OSError:
                return

        def relay() -> None:
            connection, _ = listening.accept()
            with connection, socket.create_connection(("127.0.0.1", server.port)) as onward:
                back = threading.Thread(target=pass_on, args=(onward, connection), daemon=True)
                back.start()
                pass_on(connection, onward)
                back.join(5)

        threading.Thread(target=relay, daemon=True).start()
        with pytest.raises(CommError, match="does not answer"):
            MeetingStore("127.0.0.1", listening.getsockname()[1], "secret", 0.5)
    server.close()


def _is_closed_within(connection: socket.socket, seconds: float) -> bool:
    connection.settimeout(seconds)
    try:
        while connection.recv(1000):
            pass
    except TimeoutError:
        return False
    except OSError:
        pass
    return True


def test_silent_and_slow_strangers_do_not_keep_workers_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sargnn.comm.meeting._PROOF_S", 0.5)
    monkeypatch.setattr("sargnn.comm.meeting._MOST_UNPROVEN", 3)
    server = MeetingServer("127.0.0.1", 0, "secret")
    strangers = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(5)]
    ended = threading.Event()

    def send_slowly() -> None:
        for _ in range(100):
            if ended.wait(0.1):
                return
            try:
                strangers[0].sendall(b"\x00")
            except OSError:
                return

    threading.Thread(target=send_slowly, daemon=True).start()
    MeetingStore("127.0.0.1", server.port, "secret", 20.0).close()
    assert all(_is_closed_within(one, 8.0) for one in strangers)
    ended.set()
    for one in strangers:
        one.close()
    server.close()


def test_a_connection_that_cannot_be_accepted_does_not_end_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    real, failures = socket.socket.accept, [errno.EMFILE, errno.ECONNABORTED]

    def accept(listening: socket.socket) -> object:
        if failures:
            raise OSError(failures.pop(), "not now")
        return real(listening)

    monkeypatch.setattr(socket.socket, "accept", accept)
    server = MeetingServer("127.0.0.1", 0, "secret")
    MeetingStore("127.0.0.1", server.port, "secret", 20.0).close()
    assert not failures
    server.close()


def _prove(group: object, tokens: list[str]) -> str:
    world = dist.group.WORLD
    assert world is not None
    rank = dist.get_rank()
    try:
        prove_to_peers(world, rank, 2, tokens[rank])
    except CommError as error:
        return str(error)
    return "proved"


def test_a_peer_without_the_token_is_refused() -> None:
    assert processes(2)(_prove, ["secret", "secret"]) == ["proved", "proved"]
    zero, one = processes(2)(_prove, ["secret", "guessed"])
    assert "rank 0 as rank 1" in zero and "rank 1 as rank 0" in one


def test_a_job_listens_on_the_address_that_its_ranks_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    assert address_to_listen_on("127.0.0.1", {}) == "127.0.0.1"
    assert address_to_listen_on("localhost", {"SLURM_NNODES": "1"}) in ("127.0.0.1", "::1")
    own = [
        one.address
        for name, addresses in psutil.net_if_addrs().items()
        for one in addresses
        if one.family == socket.AF_INET and not one.address.startswith("127.")
    ]
    for address in own:
        assert address_to_listen_on(address, {"SLURM_NNODES": "4"}) == address
    # Where the name stands for a loopback address here, other nodes come by another one.
    assert address_to_listen_on("127.0.0.1", {"SLURM_NNODES": "2"}) == ""
    assert address_to_listen_on("127.0.0.1", {"GROUP_WORLD_SIZE": "2"}) == ""
    names = {one.address: name for name, addresses in psutil.net_if_addrs().items() for one in addresses}
    for address in own:
        found = address_to_listen_on("127.0.0.1", {"SLURM_NNODES": "2", "GLOO_SOCKET_IFNAME": names[address]})
        assert found in own


def _listening(processes: list[psutil.Process]) -> list[tuple[str, int]]:
    found = []
    for process in processes:
        for one in process.net_connections(kind="inet"):
            if one.status == psutil.CONN_LISTEN:
                found.append((one.laddr.ip, one.laddr.port))
    return found


@pytest.mark.long
def test_a_local_run_listens_on_loopback_only_and_a_stranger_changes_nothing(tmp_path: Path) -> None:
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": ""}
    del environment["GLOO_SOCKET_IFNAME"]
    command = sargnn_command("train", *SMALL, "epochs=100000", "eval_every=1000", "checkpoint.every=null")
    with started_command(command, tmp_path, environment=environment) as launcher:
        metrics, deadline = tmp_path / "run" / "metrics.jsonl", time.monotonic() + 240
        while not metrics.exists():
            assert time.monotonic() < deadline and launcher.poll() is None, launcher.communicate()[1]
            time.sleep(0.02)
        places = _listening(family())
        assert len(places) >= 4  # the store and gloo's of three workers
        assert {address for address, _ in places} <= {"127.0.0.1", "::1"}
        for address, port in places:
            _write_as_a_stranger(address, port)
        launcher.send_signal(signal.SIGTERM)  # it may take as long as the strangers do
        _, stderr = launcher.communicate(timeout=240)
    disturbed = summary_of(tmp_path / "run")
    assert disturbed["status"] == "interrupted", stderr
    epochs = f"epochs={len(disturbed['losses'])}"
    done = sargnn_here(tmp_path, "train", *SMALL[:-1], epochs, "eval_every=1000", "run_dir=other")
    assert done.returncode == 0, done.stderr
    assert disturbed["losses"] == summary_of(tmp_path / "other")["losses"]


def _write_as_a_stranger(address: str, port: int) -> None:
    """What torch's own store would take, and what this one would take from a worker."""
    for wrong in ("", "guessed"):
        with pytest.raises(CommError):
            MeetingStore(address, port, wrong, 0.3)
    for words in (b"\x00" * 64, _frame(b"x" * 32, b"y" * 32) + b"".join(_frame(b"set", key.encode(), b"7 7") for key in KEYS)):
        with socket.create_connection((address, port), timeout=5) as stranger:
            try:
                stranger.sendall(words)
            except OSError:
                continue  # thrown out already


def test_a_worker_without_a_token_does_not_join(monkeypatch: pytest.MonkeyPatch) -> None:
    from sargnn.comm.distributed import DistributedGroup

    monkeypatch.delenv(TOKEN, raising=False)
    with pytest.raises(CommError, match="no token"):
        DistributedGroup.from_environment("gloo", 1.0, 0, 2)
    assert torch.distributed.is_available() and not dist.is_initialized()
