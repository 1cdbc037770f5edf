"""A run's request to the cluster: composed, made a job, written, submitted."""

from __future__ import annotations

import dataclasses
import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sargnn.cli.conf_files import show_path
from sargnn.cli.conf_folders import ConfFolders, conf_dir
from sargnn.errors import ConfigError

if TYPE_CHECKING:
    from sargnn.config.run import RunConfig
    from sargnn.launch.slurm import Job, SlurmConfig

SCRIPTS = Path("slurm")
"""Where scripts go; in the working folder."""


def compose_job(overrides: Sequence[str], folders: ConfFolders) -> tuple[SlurmConfig, RunConfig]:
    """What is asked for, and the run. Raises ``ConfigError``."""
    from sargnn.cli.compose import compose_verb
    from sargnn.config.run import parse

    mapping = compose_verb("slurm", overrides, keep=("slurm",), folders=folders)
    slurm = build_slurm(mapping.pop("slurm"))
    config = parse(_with_servers(mapping, slurm))
    check_run(config)
    if config.init_from is not None:  # else torch need not be loaded
        from sargnn.launch.init_from import find_start

        config = find_start(config)
    return slurm, on_interface(slurm, config)


def _with_servers(mapping: dict[str, Any], slurm: SlurmConfig) -> dict[str, Any]:
    """With a server for each node, where nothing else is said and each has as many workers."""
    from sargnn.launch.slurm import num_nodes

    world = mapping.get("world")
    if mapping.get("servers") is None and isinstance(world, int) and world > 0:
        nodes = num_nodes(slurm, world)
        if nodes > 1 and world % nodes == 0 and slurm.ntasks_per_node in (None, world // nodes):
            return mapping | {"servers": nodes}
    return mapping


def build_slurm(mapping: dict[str, Any]) -> SlurmConfig:
    """The group ``slurm``. Raises ``ConfigError``."""
    from sargnn.config.fields import build
    from sargnn.launch.slurm import SlurmConfig

    return build(SlurmConfig, mapping, "slurm.")


def check_run(config: RunConfig) -> None:
    """A run that a job can run. Raises ``ConfigError``."""
    if config.comm.max_restarts:
        raise ConfigError(
            "A SLURM job that fails is not started again by itself.",
            given=f"comm.max_restarts={config.comm.max_restarts}",
            allowed="0",
            hint="submit the script again: it goes on from the newest checkpoint",
        )


def on_interface(slurm: SlurmConfig, config: RunConfig) -> RunConfig:
    """The run on the network interface that the request names, if it names one."""
    if slurm.gloo_ifname is None:
        return config
    return dataclasses.replace(config, comm=dataclasses.replace(config.comm, interface=slurm.gloo_ifname))


def make_job(config: RunConfig, run_dirs: Sequence[Path], words: Sequence[str], labels: Mapping[int, str] | None = None) -> Job:
    """The job of a run; with ``labels`` of all points of an array, called as their sweep."""
    from sargnn.launch.slurm import Job

    return Job(
        name=f"sweep-{run_dirs[0].parent.name}" if labels else config.name,
        world=config.world,
        threads=config.threads,
        interface=config.comm.interface,
        port=config.comm.port,
        tracking=config.tracking.enabled,
        run_dirs=run_dirs,
        labels=labels or {},
        words=words,
        folder=Path.cwd(),
    )


def template_of(slurm: SlurmConfig) -> Path:
    """The script's template."""
    return Path(os.path.expanduser(slurm.template)) if slurm.template else conf_dir().parent / "slurm" / "job.sbatch"


def write_job(slurm: SlurmConfig, job: Job, configs: Sequence[RunConfig]) -> int:
    """Write a run's script, or an array's; submit it where that is asked for; say what next. The exit code."""
    from sargnn.launch.job_files import write

    script = write(slurm, job, configs, template_of(slurm), SCRIPTS)
    path = show_path(script)
    if slurm.submit:
        print(f"{path}\njob {submit_job(script, job)}")
    else:
        print(f"{path}\nsubmit it:       sbatch {shlex.quote(path)}")
    print(f"how far it is:   sargnn slurm --status {shlex.quote(show_path(job.folder_of_all))}")
    return 0


def submit_job(script: Path, job: Job) -> str:
    """Hand a script to sbatch and note the job in its run folders; its number. Raises ``SargnnError``."""
    from sargnn.launch.job_files import note_job, read_job
    from sargnn.launch.slurm import submit

    number = submit(script, job.folder)
    for run_dir in job.run_dirs:
        note_job(run_dir, jobs=[*read_job(run_dir)["jobs"], number])
    return number
