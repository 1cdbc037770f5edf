"""One worker of a job: what srun starts as each task, or torchrun as each process.

    python -m sargnn.run.task RUN_DIR

Takes the rank from torchrun's variables or else SLURM's, and the run's token from its folder. Sets what must be set before
torch is loaded (threads, memory, the network interface), and becomes the worker.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Mapping
from pathlib import Path

from sargnn.config.run import load
from sargnn.errors import ConfigError, SargnnError
from sargnn.run.env import worker_environment
from sargnn.tracking import files

_PER_TASK = {"RANK": "SLURM_PROCID", "WORLD_SIZE": "SLURM_NTASKS", "LOCAL_RANK": "SLURM_LOCALID"}
_OF_MPI = {"RANK": "OMPI_COMM_WORLD_RANK", "WORLD_SIZE": "OMPI_COMM_WORLD_SIZE", "LOCAL_RANK": "OMPI_COMM_WORLD_LOCAL_RANK"}
ASKING = (signal.SIGUSR1, signal.SIGUSR2)
_MEETING = ("MASTER_ADDR", "MASTER_PORT")


def ranks(environment: Mapping[str, str], backend: str = "gloo") -> dict[str, str]:
    """RANK, WORLD_SIZE and LOCAL_RANK: torchrun's, else SLURM's; with ``backend`` mpi Open MPI's. Raises ``ConfigError`` where
    nobody started the ranks.
    """
    if backend == "mpi":
        if _OF_MPI["RANK"] not in environment:
            raise ConfigError("mpirun has not started this process.", given=f"no {_OF_MPI['RANK']}", hint="comm.backend=gloo")
        return {name: environment[theirs] for name, theirs in _OF_MPI.items() if theirs in environment}
    if "RANK" in environment:
        variables = {name: environment[name] for name in _PER_TASK if name in environment}
    elif "SLURM_PROCID" in environment:
        variables = {name: environment[theirs] for name, theirs in _PER_TASK.items() if theirs in environment}
    else:
        raise ConfigError(
            "Neither SLURM nor torchrun has started this process.",
            given="no SLURM_PROCID, no RANK",
            hint="sargnn slurm writes a script that does; on one machine sargnn train needs neither",
        )
    missing = [name for name in _MEETING if name not in environment] if variables.get("WORLD_SIZE") != "1" else []
    if missing:
        raise ConfigError("Workers do not know where to meet.", given=f"{' and '.join(missing)} not set")
    return variables


def check_interface(interface: str | None, environment: Mapping[str, str]) -> None:
    """Raises ``ConfigError`` where the interface does not exist, or, without one, this node tells others a loopback address."""
    import psutil

    known = psutil.net_if_addrs()
    if interface is not None:
        if interface not in known:
            raise ConfigError(f"Node '{socket.gethostname()}' has no such network interface.", given=interface, allowed=known)
        return
    # Where several nodes of SLURM are one machine, as in a test, their names are not the machine's.
    name = environment.get("SLURMD_NODENAME", "")
    if int(environment.get("SLURM_NNODES", "1")) < 2 or name.split(".")[0] != socket.gethostname().split(".")[0]:
        return
    try:
        address = socket.gethostbyname(name)
    except OSError:
        return  # gloo will say more
    if address.startswith("127."):
        others = [other for other in known if not other.startswith("lo")]
        raise ConfigError(
            f"Node '{name}' takes itself for {address}, where no other node finds it.",
            given="slurm.gloo_ifname=null",
            allowed=[f"slurm.gloo_ifname={other}" for other in others],
        )


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit("usage: python -m sargnn.run.task RUN_DIR")
    run_dir = Path(sys.argv[1]).resolve()
    environment = dict(os.environ)
    try:
        config = load(run_dir / files.CONFIG)
        if not (run_dir / files.INPUTS).is_file():
            raise ConfigError(
                "The run is not prepared.", given=str(run_dir), hint=f"python -m sargnn.run.job begin {run_dir}, once"
            )
        environment |= ranks(environment, config.comm.backend)
        try:
            token = (run_dir / files.TOKEN).read_text()  # which ``run.job begin`` has drawn
        except OSError as error:
            given = f"{run_dir / files.TOKEN}: {error.strerror}"
            hint = "the user who has prepared the run starts it"
            raise ConfigError("The run's token cannot be read.", given=given, hint=hint) from error
        check_interface(config.comm.interface, environment)
    except SargnnError as error:
        sys.exit(f"sargnn: {error}")
    environment["SARGNN_TOKEN"] = token
    environment.pop("SARGNN_STORE", None)
    if config.comm.interface is not None:
        environment["GLOO_SOCKET_IFNAME"] = config.comm.interface
    environment |= worker_environment(config.threads or 1)
    # Signals that ask for a checkpoint wait until the worker has one to write: blocked they stay pending, also over exec.
    signal.pthread_sigmask(signal.SIG_BLOCK, ASKING)
    command = [sys.executable, "-m", "sargnn.run.worker", str(run_dir / files.CONFIG)]
    sys.stdout.flush()
    os.execve(sys.executable, command, environment)


if __name__ == "__main__":
    main()
