"""``sargnn slurm``: a training run as an sbatch script; and what became of it."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sargnn.cli.command_line import CommandLine
from sargnn.cli.conf_files import show_path
from sargnn.cli.conf_folders import ConfFolders, conf_dir
from sargnn.errors import ConfigError

if TYPE_CHECKING:
    from sargnn.config import RunConfig
    from sargnn.launch.slurm import Job, SlurmConfig


def main(line: CommandLine) -> int:
    """Write the script."""
    from sargnn.cli.compose import sweep_points
    from sargnn.launch.job_files import script_text, write
    from sargnn.launch.slurm import submit

    labels: list[str] = []
    given = [*line.folders.arguments, *(["-m"] if line.multirun else []), *line.overrides]
    if any(one.startswith("resume=") and one != "resume=null" for one in line.overrides):
        if line.multirun:
            raise ConfigError("A sweep cannot be resumed as one.", hint="submit its script again")
        slurm, config, run_dir = _resumed(line.overrides, line.folders)
        configs, run_dirs = [config], [run_dir]
    elif (points := sweep_points("slurm", line.overrides, multirun=line.multirun, folders=line.folders)) is not None:
        slurm, configs, run_dirs, labels = _sweep(points, line.folders)
    else:
        slurm, config = _composed(line.overrides, line.folders)
        from sargnn.launch.job_files import choose_run_dir

        configs, run_dirs = [config], [choose_run_dir(config)]
    job = _job(slurm, configs, run_dirs, labels, given)
    from sargnn.launch.slurm import shape

    layout = shape(slurm, job)
    configs = [dataclasses.replace(one, threads=one.threads or layout.cpus) for one in configs]
    slurm = _with_memory(slurm, configs, layout.per_node)
    if line.dry_run:
        print(script_text(slurm, job, _template(slurm)), end="")
        return 0
    script = write(slurm, job, configs, _template(slurm), Path("slurm"))
    path = show_path(script)
    if not slurm.submit:
        print(f"{path}\nsubmit it:       sbatch {shlex.quote(path)}")
    else:
        from sargnn.launch.job_files import note_job, read_job

        number = submit(script, job.folder)
        for run_dir in run_dirs:
            note_job(run_dir, jobs=[*read_job(run_dir)["jobs"], number])
        print(f"{path}\njob {number}")
    print(f"how far it is:   sargnn slurm --status {shlex.quote(show_path(job.folder_of_all))}")
    return 0


def _composed(overrides: Sequence[str], folders: ConfFolders) -> tuple[SlurmConfig, RunConfig]:
    from sargnn.cli.compose import compose_verb
    from sargnn.config import parse

    mapping = compose_verb("slurm", overrides, keep=("slurm",), folders=folders)
    slurm = _slurm(mapping.pop("slurm"))
    config = parse(_with_servers(mapping, slurm))
    _check_run(config)
    if config.init_from is not None:  # else torch need not be loaded
        from sargnn.launch.init_from import find_start

        config = find_start(config)
    return slurm, _on_interface(slurm, config)


def _with_servers(mapping: dict[str, Any], slurm: SlurmConfig) -> dict[str, Any]:
    """With a server for each node, where nothing else is said and each has as many workers."""
    from sargnn.launch.slurm import num_nodes

    world = mapping.get("world")
    if mapping.get("servers") is None and isinstance(world, int) and world > 0:
        nodes = num_nodes(slurm, world)
        if nodes > 1 and world % nodes == 0 and slurm.ntasks_per_node in (None, world // nodes):
            return mapping | {"servers": nodes}
    return mapping


def _slurm(mapping: dict[str, Any]) -> SlurmConfig:
    from sargnn.fields import build
    from sargnn.launch.slurm import SlurmConfig

    return build(SlurmConfig, mapping, "slurm.")


def _check_run(config: RunConfig) -> None:
    """A run that a job can run. Raises ``ConfigError``."""
    if config.comm.max_restarts:
        raise ConfigError(
            "A SLURM job that fails is not started again by itself.", given=f"comm.max_restarts={config.comm.max_restarts}",
            allowed="0", hint="submit the script again: it goes on from the newest checkpoint",
        )  # fmt: skip


def _on_interface(slurm: SlurmConfig, config: RunConfig) -> RunConfig:
    if slurm.gloo_ifname is None:
        return config
    return dataclasses.replace(config, comm=dataclasses.replace(config.comm, interface=slurm.gloo_ifname))


def _resumed(overrides: Sequence[str], folders: ConfFolders) -> tuple[SlurmConfig, RunConfig, Path]:
    from sargnn.cli.compose import compose_verb
    from sargnn.cli.resume import read_resumed
    from sargnn.launch.more_epochs import check_epochs_left

    ours = [one for one in overrides if re.match(r"\+{0,2}slurm[.=]", one)]
    going_on = read_resumed([one for one in overrides if one not in ours], folders)
    assert going_on is not None
    config, run_dir = going_on
    _check_run(config)
    check_epochs_left(config, run_dir)
    slurm = _slurm(compose_verb("slurm", ours, keep=("slurm",), folders=folders)["slurm"])
    return slurm, _on_interface(slurm, config), run_dir.resolve()


def _sweep(
    points: Sequence[tuple[str, ...]], folders: ConfFolders
) -> tuple[SlurmConfig, list[RunConfig], list[Path], list[str]]:
    """One array's request, and each point's run."""
    from sargnn.cli.sweep import labels_of
    from sargnn.launch.job_files import check_point

    words = [tuple(word for word in point if not word.startswith("skip_finished=")) for point in points]
    labels = labels_of(words)
    if any(word.startswith("run_dir=") for point in words for word in point):
        raise ConfigError("A sweep chooses its run folders itself.", hint="leave run_dir out")
    runs = [[word for word in point if not re.match(r"\+{0,2}slurm[.=]", word)] for point in words]
    key = hashlib.sha256(json.dumps(["slurm", *runs, *folders.arguments]).encode()).hexdigest()[:10]
    folder = (Path("sweeps") / key).resolve()
    slurms, configs, run_dirs = [], [], []
    for number, (point, label) in enumerate(zip(words, labels, strict=True)):
        try:
            slurm, config = _composed([*point, "hydra.mode=RUN"], folders)
        except ConfigError as error:
            raise ConfigError(f"A point of the sweep cannot run: {label}\n  {error}") from error
        run_dir = folder / f"{number:03d}"
        check_point(config, run_dir)
        slurms.append(slurm)
        configs.append(config)
        run_dirs.append(run_dir)
    for name, values in (
        ("slurm.*", slurms), ("world", [one.world for one in configs]), ("threads", [one.threads for one in configs]),
        ("tracking.enabled", [one.tracking.enabled for one in configs]),
    ):  # fmt: skip
        if any(value != values[0] for value in values):
            raise ConfigError(
                f"All points of a job array ask for the same: '{name}' cannot be swept.", hint="one sargnn slurm for each value"
            )
    if configs[0].comm.port is not None:
        raise ConfigError(
            "Points on one node would meet at one port.", given=f"comm.port={configs[0].comm.port}", allowed="null"
        )
    return slurms[0], configs, run_dirs, labels


def _job(
    slurm: SlurmConfig, configs: Sequence[RunConfig], run_dirs: Sequence[Path], labels: Sequence[str], words: Sequence[str]
) -> Job:
    from sargnn.launch.slurm import Job

    first = configs[0]
    return Job(
        name=f"sweep-{run_dirs[0].parent.name}" if labels else first.name,
        world=first.world,
        threads=first.threads,
        interface=first.comm.interface,
        port=first.comm.port,
        tracking=first.tracking.enabled,
        run_dirs=run_dirs,
        labels=labels,
        words=words,
        folder=Path.cwd(),
    )


def _with_memory(slurm: SlurmConfig, configs: Sequence[RunConfig], per_node: int) -> SlurmConfig:
    """With ``mem`` as the runs are planned, the largest of a sweep's; a smaller one of the user's is answered with a line.

    Args:
        per_node: workers of a node at most.
    """
    from sargnn.launch.node_memory import JOB_BYTES, SPARE, node_bytes, slurm_bytes, slurm_text
    from sargnn.launch.plan_memory import PlannedMemory, plan_memory
    from sargnn.launch.slurm import SITE
    from sargnn.tracking.memory import human_bytes
    from sargnn.tracking.progress import Steps, say

    given = None if slurm.mem in (None, SITE) else slurm_bytes(str(slurm.mem))
    if slurm.mem is not None and given is None:  # the site's, or all that a node has
        return slurm
    needed: dict[str, PlannedMemory] = {}
    with Steps():
        for config in configs:
            # Planned once, whatever the settings are that change no worker's memory.
            alike = repr(dataclasses.replace(config, seed=0, epochs=1, eval_every=1, run_name=None, run_dir=None))
            if alike in needed:
                continue
            found = plan_memory(config)
            if not isinstance(found, PlannedMemory):
                if given is None:
                    say(f"--mem stays the site's default, for it cannot be planned: {found.reason}")
                return slurm
            needed[alike] = found
    largest = max(needed.values(), key=lambda one: node_bytes(one, per_node))
    planned = slurm_text(node_bytes(largest, per_node))
    if given is not None:
        if given < node_bytes(largest, per_node):
            say(f"warning: slurm.mem={slurm.mem} is less than is planned for a node: {planned}")
        return slurm
    workers = f"workers of up to {human_bytes(max(largest.workers))}, {min(per_node, len(largest.workers))} on a node"
    prepares = f"; preparing takes {human_bytes(largest.preparing)}" if largest.preparing else ""
    say(f"--mem={planned}: {workers}, {SPARE:.0%} more and {human_bytes(JOB_BYTES)} for the job's own processes{prepares}")
    return dataclasses.replace(slurm, mem=planned)


def _template(slurm: SlurmConfig) -> Path:
    return Path(os.path.expanduser(slurm.template)) if slurm.template else conf_dir().parent / "slurm" / "job.sbatch"


def status(line: CommandLine) -> int:
    """Show a job's state."""
    named = line.words
    if len(named) != 1 or not named[0] or named[0].startswith("-"):
        given = " ".join(named) or "nothing"
        raise ConfigError("--status takes one run, or one sweep.", given=given, hint="sargnn slurm --status NAME")
    from sargnn.launch.slurm_status import status_lines
    from sargnn.tracking.find_runs import find_runs

    runs = find_runs(named[0])
    folders = {run.parent for run in runs} if len(runs) > 1 else set(runs)
    if len(folders) > 1:
        raise ConfigError("--status takes one run, or one sweep.", given=named[0], allowed=[str(run) for run in runs])
    for text in status_lines(folders.pop()):
        print(text)
    return 0
