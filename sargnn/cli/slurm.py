"""``sargnn slurm``: a training run as an sbatch script; and what became of it."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sargnn.cli.command_line import CommandLine
from sargnn.cli.conf_folders import ConfFolders
from sargnn.cli.slurm_job import build_slurm, check_run, compose_job, make_job, on_interface, template_of, write_job
from sargnn.cli.slurm_memory import JobMemory
from sargnn.errors import ConfigError

if TYPE_CHECKING:
    from sargnn.config.run import RunConfig
    from sargnn.launch.slurm import SlurmConfig


def main(line: CommandLine) -> int:
    """Write the script, or those of a sweep."""
    from sargnn.cli.compose import sweep_points

    words = ["slurm", *line.folders.arguments, *(["-m"] if line.multirun else []), *line.overrides]
    if any(override.startswith("resume=") and override != "resume=null" for override in line.overrides):
        if line.multirun:
            raise ConfigError(
                "A sweep cannot be resumed as one.", hint="give its command again: it goes on with what is not finished"
            )
        slurm, config, run_dir = _resumed(line.overrides, line.folders)
    elif (points := sweep_points("slurm", line.overrides, multirun=line.multirun, folders=line.folders)) is not None:
        from sargnn.cli.slurm_sweep import write_sweep

        return write_sweep(points, line, words)
    else:
        slurm, config = compose_job(line.overrides, line.folders)
        from sargnn.launch.job_files import choose_run_dir

        run_dir = choose_run_dir(config)
    from sargnn.launch.job_files import script_text
    from sargnn.launch.slurm import shape

    job = make_job(config, [run_dir], words)
    layout = shape(slurm, job)
    config = dataclasses.replace(config, threads=config.threads or layout.cpus)
    slurm = JobMemory().fill_in(slurm, [config], layout.per_node)
    if line.dry_run:
        print(script_text(slurm, job, template_of(slurm)), end="")
        return 0
    return write_job(slurm, job, [config])


def _resumed(overrides: Sequence[str], folders: ConfFolders) -> tuple[SlurmConfig, RunConfig, Path]:
    from sargnn.cli.compose import compose_verb
    from sargnn.cli.resume import read_resumed
    from sargnn.launch.more_epochs import check_epochs_left

    ours = [override for override in overrides if re.match(r"\+{0,2}slurm[.=]", override)]
    going_on = read_resumed([override for override in overrides if override not in ours], folders)
    assert going_on is not None
    config, run_dir = going_on
    check_run(config)
    check_epochs_left(config, run_dir)
    slurm = build_slurm(compose_verb("slurm", ours, keep=("slurm",), folders=folders)["slurm"])
    return slurm, on_interface(slurm, config), run_dir.resolve()


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
