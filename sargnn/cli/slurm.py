"""``sargnn slurm``: a training run as an sbatch script; and what became of it."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sargnn.cli.help import Help, words_of
from sargnn.cli.train import shown
from sargnn.errors import ConfigError

if TYPE_CHECKING:
    from sargnn.config import RunConfig
    from sargnn.launch.slurm import Job, SlurmConfig

HELP = Help(
    usage="slurm [key=value ...] [group=option ...] [-m] | --status RUN_DIR",
    text="Write an sbatch script for a training run into slurm/: one task per worker, stores prepared once, a checkpoint and a "
    "new start at the time limit. Takes what train takes, and slurm.*; conf/slurm/ holds the defaults of a site. With -m "
    "every list of values is a sweep, in one job array. --status shows a job's state and its last epoch.",
    examples=(
        ("slurm model=gat world=32 slurm.nodes=8", ""),
        ("slurm world=8 slurm.time=120 slurm.submit=true", "write it and submit it"),
        ("slurm -m model=sage,gat seed=0,1", "an array of four"),
        ("slurm resume=runs/sage-sar-w4-s0", "go on with a run that was begun"),
        ("slurm --status runs/sage-sar-w4-s0", "its job, its last epoch"),
    ),
    config="slurm",
)


def main(arguments: Sequence[str]) -> int:
    """Write the script, or show a job's state."""
    if "--status" in arguments or any(word.startswith("--status=") for word in arguments):
        return _status(arguments)
    if (words := words_of(HELP, arguments)) is None:
        return 0
    from sargnn.cli.compose import sweep_points
    from sargnn.launch.job_files import write
    from sargnn.launch.slurm import submit

    labels: list[str] = []
    given = ["-m", *words.overrides] if words.multirun else list(words.overrides)
    if any(one.startswith("resume=") and one != "resume=null" for one in words.overrides):
        if words.multirun:
            raise ConfigError("A sweep cannot be resumed as one.", hint="submit its script again")
        slurm, config, run_dir = _resumed(words.overrides)
        configs, run_dirs = [config], [run_dir]
    elif (points := sweep_points("slurm", words.overrides, multirun=words.multirun)) is not None:
        slurm, configs, run_dirs, labels = _sweep(points)
    else:
        slurm, config = _composed(words.overrides)
        from sargnn.launch.job_files import choose_run_dir

        configs, run_dirs = [config], [choose_run_dir(config)]
    job = _job(slurm, configs, run_dirs, labels, given)
    from sargnn.launch.slurm import shape

    cpus = shape(slurm, job).cpus
    configs = [dataclasses.replace(one, threads=one.threads or cpus) for one in configs]
    script = write(slurm, job, configs, _template(slurm), Path("slurm"))
    path = shown(script)
    if not slurm.submit:
        print(f"{path}\nsubmit it:       sbatch {shlex.quote(path)}")
    else:
        from sargnn.launch.job_files import note_job, read_job

        number = submit(script, job.folder)
        for run_dir in run_dirs:
            note_job(run_dir, jobs=[*read_job(run_dir)["jobs"], number])
        print(f"{path}\njob {number}")
    print(f"how far it is:   sargnn slurm --status {shlex.quote(shown(job.folder_of_all))}")
    return 0


def _composed(overrides: Sequence[str]) -> tuple[SlurmConfig, RunConfig]:
    from sargnn.cli.compose import compose_verb
    from sargnn.config import parse

    mapping = compose_verb("slurm", overrides, keep=("slurm",))
    slurm = _slurm(mapping.pop("slurm"))
    config = parse(mapping)
    _check_run(config)
    return slurm, _on_interface(slurm, config)


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


def _resumed(overrides: Sequence[str]) -> tuple[SlurmConfig, RunConfig, Path]:
    from sargnn.cli.compose import compose_verb
    from sargnn.cli.resume import resumed

    ours = [one for one in overrides if re.match(r"\+{0,2}slurm[.=]", one)]
    going_on = resumed([one for one in overrides if one not in ours])
    assert going_on is not None
    config, run_dir = going_on
    _check_run(config)
    slurm = _slurm(compose_verb("slurm", ours, keep=("slurm",))["slurm"])
    return slurm, _on_interface(slurm, config), run_dir.resolve()


def _sweep(points: Sequence[tuple[str, ...]]) -> tuple[SlurmConfig, list[RunConfig], list[Path], list[str]]:
    """One array's request, and each point's run."""
    from sargnn.cli.sweep import labels_of
    from sargnn.launch.job_files import check_point

    words = [tuple(word for word in point if not word.startswith("skip_finished=")) for point in points]
    labels = labels_of(words)
    if any(word.startswith("run_dir=") for point in words for word in point):
        raise ConfigError("A sweep chooses its run folders itself.", hint="leave run_dir out")
    runs = [[word for word in point if not re.match(r"\+{0,2}slurm[.=]", word)] for point in words]
    key = hashlib.sha256(json.dumps(["slurm", *runs]).encode()).hexdigest()[:10]
    folder = (Path("sweeps") / key).resolve()
    slurms, configs, run_dirs = [], [], []
    for number, (point, label) in enumerate(zip(words, labels, strict=True)):
        try:
            slurm, config = _composed([*point, "hydra.mode=RUN"])
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


def _template(slurm: SlurmConfig) -> Path:
    from sargnn.cli.main import conf_dir

    return Path(slurm.template).expanduser() if slurm.template else conf_dir().parent / "slurm" / "job.sbatch"


def _status(arguments: Sequence[str]) -> int:
    folders = [word.partition("=")[2] if word.startswith("--status=") else word for word in arguments if word != "--status"]
    if len(folders) != 1 or not folders[0] or folders[0].startswith("-"):
        raise ConfigError("--status takes one run folder.", given=" ".join(arguments), hint="sargnn slurm --status runs/NAME")
    from sargnn.launch.slurm_status import status_lines

    for line in status_lines(Path(folders[0]).expanduser()):
        print(line)
    return 0
