"""The store that workers meet at: its keys can be read and written only with the run's token.

torch's own store serves whoever connects. This one listens on one address, and both sides prove that they know the token
before anything is read: with the port p and nonces n of the store and m of the worker,

    store -> worker: n      worker -> store: m, HMAC(token, "worker" p n m)      store -> worker: HMAC(token, "store" p m n)

A proof holds for one port, so that a stranger who listens at another one cannot pass a worker's proof on to the store.

A stranger's connection is closed at the first wrong answer, or when the proof takes too long, and has changed nothing. Not
protected: what travels is not encrypted, so who can read and change packets on the network between two hosts can change a run;
and who opens connections without end can keep workers from joining.
"""

from __future__ import annotations

import hmac
import os
import socket
import struct
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta

import torch.distributed as dist

from sargnn.errors import CommError

_NONCE_BYTES = 32
_PART_BYTES = 1 << 24
_PROOF_S = 10.0
_MOST_UNPROVEN = 256  # connections at a time; each takes a thread and one of the process's open files
_PAUSE_S = 0.1


class MeetingServer:
    """Serves the store from threads of this process until it is closed. Raises ``OSError`` for an unusable address or port.

    Args:
        address: the one address to listen on; empty for all.
        port: 0 for a free one.
        token: the run's secret.
    """

    def __init__(self, address: str, port: int, token: str) -> None:
        self._token = token
        self._values: dict[str, bytes] = {}
        self._changed = threading.Condition()
        self._unproven = threading.BoundedSemaphore(_MOST_UNPROVEN)
        self._closed = False
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._socket = socket.create_server((address, port), family=family, backlog=1024)
        self.port = int(self._socket.getsockname()[1])
        threading.Thread(target=self._accept, name="meeting", daemon=True).start()

    def peek(self, key: str) -> bytes | None:
        with self._changed:
            return self._values.get(key)

    def close(self) -> None:
        """Take no more connections; those that are open end with their workers."""
        self._closed = True
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        self._socket.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                if self._closed:
                    return
                time.sleep(_PAUSE_S)  # too many open files, or who connected has gone; the next one may be a worker
                continue
            if not self._unproven.acquire(blocking=False):
                connection.close()  # the worker tries again
                continue
            try:
                threading.Thread(target=self._serve, args=(connection,), name="meeting", daemon=True).start()
            except RuntimeError:  # no more threads; the worker tries again
                self._unproven.release()
                connection.close()

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            try:
                try:
                    proven = _prove_as_store(connection, self.port, self._token)
                finally:
                    self._unproven.release()
                if not proven:
                    return
                while True:
                    self._answer(connection)
            except OSError:
                return  # the worker has ended, or the stranger has

    def _answer(self, connection: socket.socket) -> None:
        """One request: ``set KEY VALUE`` or ``get KEY SECONDS``, which waits that long for the key."""
        what, name, value = _receive(connection, 3)
        key = name.decode()
        with self._changed:
            if what == b"set":
                self._values[key] = value
                self._changed.notify_all()
                answer: bytes | None = b""
            else:
                self._changed.wait_for(lambda: key in self._values, timeout=float(value))
                answer = self._values.get(key)
        _send(connection, b"" if answer is None else b"found", answer or b"")


class MeetingStore(dist.Store):
    """A worker's side, as torch's process groups use it. Raises ``CommError`` where nothing answers that knows the token.

    ``timeout_s``: how long to try to connect, and how long ``get`` waits for a key.
    """

    def __init__(self, address: str, port: int, token: str, timeout_s: float) -> None:
        super().__init__()
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                self._socket = _connect(address, port, token, timeout_s)
                return
            except OSError as error:  # whoever hosts the store may be later than we are
                if time.monotonic() > deadline:
                    raise CommError(
                        "The store that workers meet at does not answer.", given=f"{address}:{port}, {error}"
                    ) from error
            time.sleep(_PAUSE_S)

    def close(self) -> None:
        """End the connection; the store's keys stay."""
        self._socket.close()

    def _ask(self, what: bytes, key: str, value: bytes) -> bytes | None:
        try:
            with self._lock:
                _send(self._socket, what, key.encode(), value)
                exists, answer = _receive(self._socket, 2)
        except OSError as error:
            raise RuntimeError(f"the store that workers meet at is gone: {error}") from error  # as torch's own stores say it
        return answer if exists or what == b"set" else None

    def set(self, key: str, value: str | bytes) -> None:
        self._ask(b"set", key, value.encode() if isinstance(value, str) else bytes(value))

    def get(self, key: str) -> bytes:
        """A key's value, waited for. Raises ``RuntimeError`` if nobody sets it in time."""
        answer = self._ask(b"get", key, str(self._timeout_s).encode())
        if answer is None:
            raise RuntimeError(f"nobody has set '{key}' within {self._timeout_s:g} s")
        return answer

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """Raises ``RuntimeError`` if the keys are not set in time."""
        limit_s = self._timeout_s if timeout is None else timeout.total_seconds()
        deadline = time.monotonic() + limit_s
        for key in keys:
            if self._ask(b"get", key, str(max(0.0, deadline - time.monotonic())).encode()) is None:
                raise RuntimeError(f"nobody has set '{key}' within {limit_s:g} s")

    def check(self, keys: Sequence[str]) -> bool:
        return all(self._ask(b"get", key, b"0") is not None for key in keys)


def _connect(address: str, port: int, token: str, timeout_s: float) -> socket.socket:
    """A connection to a store that knows the token. Raises ``OSError``."""
    patience_s = min(timeout_s, _PROOF_S)
    connection = socket.create_connection((address, port), timeout=patience_s)
    try:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        deadline = time.monotonic() + patience_s
        (theirs,) = _receive(connection, 1, _NONCE_BYTES, deadline)
        ours = os.urandom(_NONCE_BYTES)
        _send(connection, ours, _proof(token, b"worker", port, theirs, ours))
        (proof,) = _receive(connection, 1, _NONCE_BYTES, deadline)
        if len(theirs) != _NONCE_BYTES or not hmac.compare_digest(proof, _proof(token, b"store", port, ours, theirs)):
            raise ConnectionError("what answers does not know the run's token")
        connection.settimeout(None)
    except BaseException:
        connection.close()
        raise
    return connection


def _prove_as_store(connection: socket.socket, port: int, token: str) -> bool:
    """The store's side of the proof; whether the other side knows the token."""
    connection.settimeout(_PROOF_S)
    ours = os.urandom(_NONCE_BYTES)
    _send(connection, ours)
    theirs, proof = _receive(connection, 2, _NONCE_BYTES, time.monotonic() + _PROOF_S)
    if len(theirs) != _NONCE_BYTES or not hmac.compare_digest(proof, _proof(token, b"worker", port, ours, theirs)):
        return False
    _send(connection, _proof(token, b"store", port, theirs, ours))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.settimeout(None)
    return True


def _proof(token: str, role: bytes, port: int, *nonces: bytes) -> bytes:
    return hmac.digest(token.encode(), b"".join((role, struct.pack(">H", port), *nonces)), "sha256")


def _send(connection: socket.socket, *parts: bytes) -> None:
    connection.sendall(b"".join(struct.pack(">I", len(part)) + part for part in parts))


def _receive(
    connection: socket.socket, count: int, most_bytes: int = _PART_BYTES, deadline: float | None = None
) -> list[bytes]:
    """``count`` parts, each behind its length. Raises ``OSError`` where they do not come whole, or not by the deadline."""
    parts = []
    for _ in range(count):
        (size,) = struct.unpack(">I", _read(connection, 4, deadline))
        if size > most_bytes:
            raise ConnectionError(f"a part of {size} bytes")
        parts.append(_read(connection, size, deadline))
    return parts


def _read(connection: socket.socket, size: int, deadline: float | None) -> bytes:
    content = b""
    while len(content) < size:
        if deadline is not None:  # of all together: a byte now and then does not hold the connection
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise TimeoutError("the proof took too long")
            connection.settimeout(left_s)
        piece = connection.recv(size - len(content))
        if not piece:
            raise ConnectionError("the connection was closed")
        content += piece
    return content
