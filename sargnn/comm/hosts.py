"""The hosts that workers run on: their names, for whoever reads what went wrong, and which of them no longer answer."""

from __future__ import annotations

import errno
import re
import select
import socket
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

_PROBE_S = 2.0
_DISCARD = 9
_ALIVE = (0, errno.ECONNREFUSED)


class Host(NamedTuple):
    """Where a worker runs, as it says itself: the machine's name, and the address that peers reach it at."""

    name: str
    address: str

    def __str__(self) -> str:
        return f"host {self.name} ({self.address})"


def own_host(master: str, environment: Mapping[str, str]) -> Host:
    """This worker's. master: where workers meet, to which the way is asked."""
    return Host(environment.get("SLURMD_NODENAME") or socket.gethostname(), _own_address(master, environment))


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
