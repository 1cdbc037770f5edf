"""Several hosts on one machine: network namespaces on a bridge, each with an address, a name and a link of limited rate.

    python scripts/hosts.py --hosts 4 --rate 200mbit COMMAND ...

runs COMMAND on every host at the same time and ends with the first exit code that is not 0. What a host prints comes with its
name in front. A command finds in its environment

| variable | |
|---|---|
| HOST_NUMBER, HOSTS | this host's number from 0, and how many there are |
| HOST_FOLDER | its own folder: FOLDER/host0, ...; without ``--folder`` the working folder of all |
| MASTER_ADDR, MASTER_PORT | host 0's address, and a port |
| RANK, WORLD_SIZE, LOCAL_RANK | with ``--ranks``: a worker per host, or ``--each N``, as ``sargnn.run.task`` takes them |
| GLOO_SOCKET_IFNAME | the host's interface |

and {host}, {hosts}, {master}, {port} and {folder} in it are replaced. So a prepared run starts as

    python scripts/hosts.py --hosts 4 --rate 200mbit --ranks python -m sargnn.run.task runs/NAME

The files of all hosts are those of this machine. Needs root, ``ip`` and ``tc`` (Debian's iproute2); where namespaces are not
allowed it says why and ends with code 77. Traffic between namespaces costs processor time here that real hosts have for
themselves.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

NOT_HERE = 77
INTERFACE, PORT = "eth0", 29500
_BURST, _QUEUE = "256kb", "200ms"


class HostsError(Exception):
    """Why there are no hosts here."""


@dataclass
class Hosts:
    """Hosts while the ``with`` block lasts.

    Attributes:
        count: how many. rate: of each link, in both directions, as ``tc`` takes it, such as ``200mbit``; None: no limit.
        name: what their namespaces' names begin with. network: the first three numbers of their addresses.
    """

    count: int
    rate: str | None = None
    name: str = field(default_factory=lambda: f"sargnn{os.getpid()}")
    network: str = "10.77.0"

    def __enter__(self) -> Hosts:
        if why := why_not():
            raise HostsError(why)
        try:
            self._make()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def address(self, host: int) -> str:
        """Its IPv4 address."""
        return f"{self.network}.{host + 1}"

    def start(
        self, host: int, command: Sequence[str], environment: Mapping[str, str], folder: Path | None = None, *,
        stdout: int | None = None,
    ) -> subprocess.Popen[str]:  # fmt: skip
        """Start a command on a host, in a session of its own; what it starts can be killed with ``kill``."""
        inside = [
            "ip",
            "netns",
            "exec",
            self._space(host),
            "unshare",
            "--uts",
            "sh",
            "-c",
            f'hostname host{host}; exec "$@"',
            "-",
        ]
        return subprocess.Popen(
            [*inside, *command], env=dict(environment), cwd=folder, stdout=stdout, stderr=subprocess.STDOUT if stdout else None,
            text=True, start_new_session=True,
        )  # fmt: skip

    def cut(self, host: int) -> None:
        """Take its link away: packets are lost without a word."""
        _run("ip", "-n", self._space(host), "link", "set", INTERFACE, "down")

    def mend(self, host: int) -> None:
        """Give the link back."""
        _run("ip", "-n", self._space(host), "link", "set", INTERFACE, "up")

    def processes(self, host: int) -> list[int]:
        """Those that run on it."""
        found = subprocess.run(["ip", "netns", "pids", self._space(host)], capture_output=True, text=True, check=False)
        return [int(one) for one in found.stdout.split()]

    def kill(self, host: int) -> None:
        """End all that runs on it at once."""
        for _ in range(50):
            running = self.processes(host)
            if not running:
                return
            for process in running:
                try:
                    os.kill(process, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            time.sleep(0.02)

    def close(self) -> None:
        """Remove them, and whatever still runs on them."""
        for host in range(self.count):
            self.kill(host)
        for space in [*(self._space(host) for host in range(self.count)), self._switch]:
            subprocess.run(["ip", "netns", "del", space], capture_output=True, check=False)

    def _make(self) -> None:
        _run("ip", "netns", "add", self._switch)
        _run("ip", "-n", self._switch, "link", "add", "bridge", "type", "bridge")
        _run("ip", "-n", self._switch, "link", "set", "bridge", "up")
        for host in range(self.count):
            space, port = self._space(host), f"port{host}"
            _run("ip", "netns", "add", space)
            _run("ip", "-n", space, "link", "add", INTERFACE, "type", "veth", "peer", "name", port, "netns", self._switch)
            _run("ip", "-n", self._switch, "link", "set", port, "master", "bridge", "up")
            _run("ip", "-n", space, "address", "add", f"{self.address(host)}/24", "dev", INTERFACE)
            _run("ip", "-n", space, "link", "set", "lo", "up")
            _run("ip", "-n", space, "link", "set", INTERFACE, "up")
            if self.rate is not None:  # what leaves each end of the cable: what the host sends, and what it gets
                limit = ("root", "tbf", "rate", self.rate, "burst", _BURST, "latency", _QUEUE)
                _run("tc", "-n", space, "qdisc", "add", "dev", INTERFACE, *limit)
                _run("tc", "-n", self._switch, "qdisc", "add", "dev", port, *limit)

    def _space(self, host: int) -> str:
        return f"{self.name}-host{host}"

    @property
    def _switch(self) -> str:
        return f"{self.name}-switch"


def why_not() -> str | None:
    """Why no hosts can be made here; None: they can."""
    missing = [tool for tool in ("ip", "tc", "unshare") if shutil.which(tool) is None]
    if missing:
        return f"{' and '.join(missing)} not found (Debian: iproute2, util-linux)"
    if os.geteuid() != 0:
        return "network namespaces are made by root"
    name = f"sargnn-try-{os.getpid()}"
    tried = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    if tried.returncode == 0:
        tried = subprocess.run(
            ["ip", "-n", name, "link", "add", "try0", "type", "veth", "peer", "name", "try1"], capture_output=True, text=True,
            check=False,
        )  # fmt: skip
        subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
    return None if tried.returncode == 0 else f"network namespaces are not allowed here: {tried.stderr.strip()}"


def variables(
    hosts: Hosts, host: int, folder: Path | None, *, ranks: bool, local: int = 0, each: int = 1
) -> dict[str, str]:  # fmt: skip
    """What a command on a host finds in its environment.

    Args:
        ranks: it is a worker, number ``local`` of the host's ``each``.
    """
    found = {
        "HOST_NUMBER": str(host), "HOSTS": str(hosts.count), "MASTER_ADDR": hosts.address(0), "MASTER_PORT": str(PORT),
        "GLOO_SOCKET_IFNAME": INTERFACE, "HOST_FOLDER": str(folder or Path.cwd()),
    }  # fmt: skip
    places = {"RANK": str(host * each + local), "WORLD_SIZE": str(hosts.count * each), "LOCAL_RANK": str(local)}
    return found | (places if ranks else {})


def fill_in(command: Sequence[str], hosts: Hosts, host: int, folder: Path | None) -> list[str]:
    """The command with what stands in braces replaced."""
    words = {"host": host, "hosts": hosts.count, "master": hosts.address(0), "port": PORT, "folder": folder or Path.cwd()}
    filled = list(command)
    for name, value in words.items():
        filled = [word.replace(f"{{{name}}}", str(value)) for word in filled]
    return filled


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise HostsError(f"{' '.join(command)}: {done.stderr.strip()}")


def _follow(process: subprocess.Popen[str], host: int) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        print(f"host{host}: {line}", end="", flush=True)


def main() -> int:
    """The command line; an exit code."""
    parser = argparse.ArgumentParser(description="Run a command on several hosts that are network namespaces.")
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--rate", help="of each link, such as 200mbit; none if not given")
    parser.add_argument("--folder", type=Path, help="give each host a folder below this one, and run the command there")
    parser.add_argument("--ranks", action="store_true", help="set RANK and WORLD_SIZE, a worker per host")
    parser.add_argument("--each", type=int, default=1, help="with --ranks: so many workers per host")
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="COMMAND ...")
    given = parser.parse_args()
    command = given.command[1:] if given.command[:1] == ["--"] else given.command
    if not command or given.hosts < 1 or given.each < 1:
        parser.error("a command, and at least one host and worker")

    def ask_to_end(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, ask_to_end)
    try:
        with Hosts(given.hosts, given.rate) as hosts:
            running, readers = [], []
            for host in range(given.hosts):
                folder = given.folder and (given.folder / f"host{host}").resolve()
                if folder:
                    folder.mkdir(parents=True, exist_ok=True)
                for local in range(given.each if given.ranks else 1):
                    own = variables(hosts, host, folder, ranks=given.ranks, local=local, each=given.each)
                    running.append(
                        hosts.start(
                            host, fill_in(command, hosts, host, folder), os.environ | own, folder, stdout=subprocess.PIPE
                        )  # fmt: skip
                    )
                    readers.append(threading.Thread(target=_follow, args=(running[-1], host), daemon=True))
                    readers[-1].start()
            codes = [process.wait() for process in running]
            for reader in readers:
                reader.join(5)
        return next((code for code in codes if code), 0)
    except HostsError as error:
        print(f"hosts: {error}", file=sys.stderr)
        return NOT_HERE
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
