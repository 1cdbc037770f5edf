"""Joining the other workers: where they meet, who hosts the store there, and the proof that every peer is one of the run.
Also the hosts that workers run on, and which of them no longer answer.

| variables | set by | the store is hosted by |
|---|---|---|
| SARGNN_STORE (address:port), SARGNN_TOKEN | ``sargnn train`` | the launching process, on 127.0.0.1 |
| MASTER_ADDR, MASTER_PORT, SARGNN_TOKEN | a SLURM script and ``run.task`` | rank 0, on the address that MASTER_ADDR names |
| the same, and TORCHELASTIC_USE_AGENT_STORE | torchrun and ``run.task`` | rank 0, on a free port, told by torchrun's store |

gloo itself asks no connection who it is. So each pair of ranks exchanges proofs of the token once the group is made: a stranger
who took a rank's place ends the run with an error instead of taking part in it.
"""

from __future__ import annotations

import errno
import hmac
import re
import select
import socket
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import NamedTuple

import torch
import torch.distributed as dist

from sargnn.comm.meeting import MeetingServer, MeetingStore
from sargnn.errors import CommError

STORE, TOKEN = "SARGNN_STORE", "SARGNN_TOKEN"
_PROOF_BYTES = 32
_HOST = "sargnn/host"
_PROBE_S = 2.0
_DISCARD = 9
_ALIVE = (0, errno.ECONNREFUSED)


class Host(NamedTuple):
    """Where a worker runs, as it says itself: the machine's name, and the address that peers reach it at."""

    name: str
    address: str

    def __str__(self) -> str:
        return f"host {self.name} ({self.address})"


def join(
    backend: str, timeout_s: float, rank: int, world: int, environment: Mapping[str, str]
) -> tuple[dist.ProcessGroup, tuple[Host, ...]]:
    """The group of all ranks, and the host of each; no hosts where all run on one.

    Raises ``CommError`` where the others cannot be found, or a peer is not one of this run.
    """
    token = environment.get(TOKEN)
    if not token:
        raise CommError("The worker has no token of its run.", hint="sargnn train starts workers; in a job sargnn.run.task")
    store, hosts = None, {}
    if backend == "mpi":
        return _join_mpi(rank, world, token), ()
    try:
        address, port = _meeting_place(rank, timeout_s, token, environment)
        store = MeetingStore(address, port, token, timeout_s)
        if STORE not in environment:
            name = environment.get("SLURMD_NODENAME") or socket.gethostname()
            own = Host(name, _own_address(address, environment))
            _check_address(own, address, environment)
            store.set(f"{_HOST}/{rank}", f"{own.name} {own.address}")
        dist.init_process_group(backend, store=store, rank=rank, world_size=world, timeout=timedelta(seconds=timeout_s))
        if STORE not in environment:
            hosts = _hosts_of(store, range(world))
    except (RuntimeError, ValueError, OSError) as error:
        lines = str(error).splitlines() or [type(error).__name__]
        why = "" if STORE in environment or store is None else _who_is_missing(store, world)
        raise CommError(f"Rank {rank} could not join the other workers{why}: {lines[0]}") from error
    group = dist.group.WORLD
    assert group is not None
    prove_to_peers(group, rank, world, token)
    return group, tuple(hosts[r] for r in range(world)) if len(set(hosts.values())) > 1 else ()


def _join_mpi(rank: int, world: int, token: str) -> dist.ProcessGroup:
    try:
        dist.init_process_group("mpi")
    except (RuntimeError, ValueError) as error:
        raise CommError(f"Rank {rank} could not join the others by MPI: {error}") from error
    group = dist.group.WORLD
    assert group is not None
    if (group.rank(), group.size()) != (rank, world):
        raise CommError("MPI counts ranks otherwise.", given=f"rank {group.rank()} of {group.size()}, not {rank} of {world}")
    prove_to_peers(group, rank, world, token)
    return group


def _hosts_of(store: MeetingStore, ranks: Iterable[int]) -> dict[int, Host]:
    hosts = {}
    for rank in ranks:
        name, _, address = store.get(f"{_HOST}/{rank}").decode().partition(" ")
        hosts[rank] = Host(name, address)
    return hosts


def _who_is_missing(store: MeetingStore, world: int) -> str:
    """Ranks that have not come to the store, or hosts that came and do not answer."""
    try:
        come = [rank for rank in range(world) if store.check([f"{_HOST}/{rank}"])]
        missing = [str(rank) for rank in range(world) if rank not in come]
        if missing:
            return f"; {'rank' if len(missing) == 1 else 'ranks'} {', '.join(missing)} did not come to where they meet"
        quiet = silent(list(_hosts_of(store, come).values()))
    except RuntimeError:
        return ""
    return f"; {', '.join(map(str, quiet))} {'does' if len(quiet) == 1 else 'do'} not answer" if quiet else ""


def _check_address(own: Host, master: str, environment: Mapping[str, str]) -> None:
    """Raises ``CommError`` where what this worker tells others is an address that only this host has."""
    import psutil

    try:
        elsewhere = not socket.gethostbyname(master).startswith("127.")
    except OSError:
        return
    if own.address.startswith("127.") and elsewhere:
        others = [
            name for name, known in psutil.net_if_addrs().items() if not any(entry.address == own.address for entry in known)
        ]
        raise CommError(
            f"Host {own.name} takes itself for {own.address}, where no other host finds it.",
            given=f"GLOO_SOCKET_IFNAME={environment.get('GLOO_SOCKET_IFNAME', '')}",
            allowed=others,
            hint="comm.interface names the interface that leads to the other hosts",
        )


def _meeting_place(rank: int, timeout_s: float, token: str, environment: Mapping[str, str]) -> tuple[str, int]:
    """Address and port of the store; rank 0 hosts it where nobody else does."""
    if place := environment.get(STORE):
        address, _, port = place.rpartition(":")
        return address, int(port)
    if "MASTER_ADDR" not in environment or "MASTER_PORT" not in environment:
        raise CommError("Workers do not know where to meet.", given="MASTER_ADDR or MASTER_PORT not set")
    name, number = environment["MASTER_ADDR"], int(environment["MASTER_PORT"])
    told_by_torchrun = environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    if not told_by_torchrun:
        if rank == 0:
            MeetingServer(address_to_listen_on(name, environment), number, token)  # lives as long as its thread
        return name, number
    # Others may write to torchrun's store. A wrong port is noticed: who listens there has no token.
    agent = dist.TCPStore(name, number, is_master=False, timeout=timedelta(seconds=timeout_s))
    key = f"sargnn/port/{environment.get('TORCHELASTIC_RESTART_COUNT', '0')}"
    if rank == 0:
        agent.set(key, str(MeetingServer(address_to_listen_on(name, environment), 0, token).port))
    return name, int(agent.get(key))


def address_to_listen_on(name: str, environment: Mapping[str, str]) -> str:
    """The one address of this host that the ranks are told by ``name``; empty, all addresses, where it is not known.

    A name may stand for 127.x here and for another address on other nodes. Then it is the address of gloo's interface.
    """
    import psutil

    known = psutil.net_if_addrs()
    families = (socket.AF_INET, socket.AF_INET6)
    own = {entry.address.partition("%")[0] for addresses in known.values() for entry in addresses if entry.family in families}
    try:
        address = str(socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)[0][4][0])
    except OSError:
        address = ""
    nodes = max(int(environment.get(variable) or 1) for variable in ("SLURM_NNODES", "GROUP_WORLD_SIZE"))
    is_loopback = address.startswith("127.") or address == "::1"
    if is_loopback and nodes == 1:
        return address
    if address in own and not is_loopback:
        return address
    chosen = known.get(environment.get("GLOO_SOCKET_IFNAME", ""), [])
    return next((entry.address for entry in chosen if entry.family == socket.AF_INET), "")


def prove_to_peers(group: dist.ProcessGroup, rank: int, world: int, token: str) -> None:
    """Exchange proofs of the token with every peer. Raises ``CommError`` naming one that has none."""
    peers = [peer for peer in range(world) if peer != rank]
    received = {peer: torch.zeros(_PROOF_BYTES, dtype=torch.uint8) for peer in peers}
    sent = {peer: torch.tensor(list(_proof(token, rank, peer)), dtype=torch.uint8) for peer in peers}
    works = [dist.irecv(tensor, group=group, group_src=peer) for peer, tensor in received.items()]
    works += [dist.isend(tensor, group=group, group_dst=peer) for peer, tensor in sent.items()]
    try:
        for work in works:
            assert work is not None
            work.wait()
    except RuntimeError as error:
        raise CommError(f"Rank {rank} lost a peer while joining: {(str(error).splitlines() or [''])[0]}") from error
    for peer, tensor in received.items():
        if not hmac.compare_digest(bytes(tensor.tolist()), _proof(token, peer, rank)):
            raise CommError(f"What answers rank {rank} as rank {peer} is no worker of this run.")


def _proof(token: str, sender: int, receiver: int) -> bytes:
    return hmac.digest(token.encode(), f"rank {sender} to rank {receiver}".encode(), "sha256")


def _own_address(master: str, environment: Mapping[str, str]) -> str:
    """The IPv4 address of gloo's interface, or else the one that packets to ``master`` come from; empty where there is none."""
    import psutil

    if interface := environment.get("GLOO_SOCKET_IFNAME"):
        known = psutil.net_if_addrs().get(interface, [])
        return next((entry.address for entry in known if entry.family == socket.AF_INET), "")
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:  # sends nothing
            asking.connect((master, _DISCARD))
            return str(asking.getsockname()[0])
    except OSError:
        return ""


def silent(hosts: Sequence[Host]) -> list[Host]:
    """Those that answer nothing within two seconds, not even that nobody listens. All are asked at the same time."""
    waiting: dict[int, tuple[socket.socket, Host]] = {}
    quiet: list[Host] = []
    for host in dict.fromkeys(hosts):
        connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        connection.setblocking(False)
        code = connection.connect_ex((host.address, _DISCARD)) if host.address else errno.EINPROGRESS
        if code == errno.EINPROGRESS:
            waiting[connection.fileno()] = connection, host
        else:
            connection.close()
            if code not in _ALIVE:  # such as: no route
                quiet.append(host)
    deadline = time.monotonic() + _PROBE_S
    while waiting and (left_s := deadline - time.monotonic()) > 0:
        for number in select.select([], list(waiting), [], left_s)[1]:
            connection, host = waiting.pop(number)
            if connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) not in _ALIVE:
                quiet.append(host)
            connection.close()
    for connection, host in waiting.values():
        connection.close()
        quiet.append(host)
    return sorted(quiet)


def named_in(text: str, hosts: Sequence[Host]) -> Host | None:
    """The host whose address an error of gloo's has."""
    return next(
        (host for host in hosts if host.address and re.search(rf"(?<![\d.]){re.escape(host.address)}(?![\d.])", text)), None
    )
