"""A real SLURM on one machine: a controller and four nodes of two CPUs each, started and stopped by whoever asks.

``python -m tests.slurm.cluster FOLDER`` starts one and keeps it until Ctrl-C: set SLURM_CONF=FOLDER/slurm.conf to use it.
Needs root, and Debian's slurm-wlm and munge.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

_PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "scontrol")
_CONF = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
# How long a requeued job waits is this lifetime.
AuthInfo=socket={folder}/munge.sock,cred_expire=5
CryptoType=crypto/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/log/slurmctld.log
SlurmdLogFile={folder}/log/slurmd.%n.log
SlurmctldPort={port}
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/linux
AccountingStorageType=accounting_storage/none
SchedulerType=sched/backfill
SchedulerParameters=sched_min_interval=0,sched_interval=2,batch_sched_delay=0,bf_interval=1
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
MpiDefault=none
ReturnToService=2
JobRequeue=1
KillWait=5
SlurmdParameters=config_overrides
NodeName=n[1-4] NodeHostname={host} NodeAddr=127.0.0.1 Port=[{first}-{last}] CPUs=2 RealMemory=4000 State=UNKNOWN
PartitionName=cpu Nodes=n[1-4] Default=YES MaxTime=01:00:00 State=UP
"""


def missing() -> str | None:
    """Why no SLURM can be started here; None if one can."""
    if os.geteuid() != 0:
        return "starting a SLURM of one's own needs root"
    absent = [name for name in _PROGRAMS if shutil.which(name) is None]
    return f"{', '.join(absent)} not installed (Debian: slurm-wlm, munge)" if absent else None


class Cluster:
    """A running SLURM.

    Attributes:
        environment: with SLURM_CONF, for ``sbatch`` and whatever calls it.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("state", "log", *(f"spool/n{number}" for number in range(1, 5))):
            (folder / name).mkdir(parents=True)
        self.environment = os.environ | {"SLURM_CONF": str(folder / "slurm.conf")}
        port, first = _free_ports(1)[0], _free_ports(4)[0]
        text = _CONF.format(host=socket.gethostname(), folder=folder, port=port, first=first, last=first + 3)
        (folder / "slurm.conf").write_text(text)
        (folder / "munge.key").write_bytes(os.urandom(128))
        (folder / "munge.key").chmod(0o400)
        own = [f"--{name}-file={folder}/munge.{name}" for name in ("key", "pid", "log", "seed")]
        self._start("munged", "--force", f"--socket={folder}/munge.sock", *own)
        self._start("slurmctld", "-c", "-f", f"{folder}/slurm.conf")
        for number in range(1, 5):
            self._start("slurmd", "-N", f"n{number}", "-f", f"{folder}/slurm.conf")
        for _ in range(300):
            if self.call("sinfo", "--noheader", "--format=%D %t").strip() == "4 idle":
                return
            time.sleep(0.1)
        state = self.call("sinfo")
        self.stop()
        raise RuntimeError(f"SLURM's nodes did not come up:\n{state}\n{self._logs()}")

    def _start(self, *command: str) -> None:
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True)
        if done.returncode:
            self.stop()
            raise RuntimeError(f"{' '.join(command)}: {done.stderr}")

    def _logs(self) -> str:
        return "\n".join(path.read_text()[-2000:] for path in sorted((self.folder / "log").glob("*.log")))

    def call(self, *command: str) -> str:
        """A SLURM command's output."""
        return subprocess.run(command, env=self.environment, capture_output=True, text=True).stdout

    def state(self, job: str) -> str:
        """A job's state, such as RUNNING."""
        words = self.call("scontrol", "show", "job", "--oneliner", job).split()
        return next((word.partition("=")[2] for word in words if word.startswith("JobState=")), "")

    def wait(self, job: str, *states: str, seconds: float = 180) -> str:
        """Wait until a job is in one of ``states``, or over; the state that it is in."""
        over = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")
        deadline = time.monotonic() + seconds
        while (state := self.state(job)) not in (states or over):
            if time.monotonic() > deadline:
                raise TimeoutError(f"job {job} is {state} after {seconds:g} s:\n{self._logs()}")
            time.sleep(0.2)
        return state

    def stop(self) -> None:
        """End everything."""
        with suppress(OSError):
            self.call("scancel", "--user=root")
        pids = []
        for path in [*self.folder.glob("slurmd.*.pid"), self.folder / "slurmctld.pid", self.folder / "munge.pid"]:
            with suppress(OSError, ValueError):
                pids.append(int(path.read_text()))
        for number in (signal.SIGTERM, signal.SIGKILL):
            for pid in pids:
                with suppress(OSError):
                    os.kill(pid, number)
            time.sleep(1)


def _free_ports(count: int) -> list[int]:
    """The first of ``count`` free ports in a row, and those behind it."""
    while True:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            first = int(probe.getsockname()[1])
        with suppress(OSError):
            for port in range(first, first + count):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", port))
            return list(range(first, first + count))


if __name__ == "__main__":
    if reason := missing():
        sys.exit(reason)
    cluster = Cluster(Path(sys.argv[1]).resolve())
    print(f"export SLURM_CONF={cluster.folder}/slurm.conf", flush=True)
    try:
        signal.pause()
    except KeyboardInterrupt:
        cluster.stop()
