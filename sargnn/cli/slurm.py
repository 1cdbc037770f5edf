"""``sargnn slurm``: a training run, or a sweep, as sbatch scripts; and what became of it.

With ``-m`` a script for each point and one that submits them, or all of a sweep as one job array. A sweep has the folder that
``sargnn train -m`` gives it, so that what either has finished the other leaves out.
"""

from __future__ import annotations

import dataclasses
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sargnn.cli.command_line import CommandLine
from sargnn.cli.compose import compose_verb, sweep_points
from sargnn.cli.conf import ConfFolders, conf_dir, show_path
from sargnn.cli.resume import read_resumed
from sargnn.cli.sweep import Plan, free_folder, naming_point, note_points, plan_sweep, skips_finished, tried_folders
from sargnn.config.fields import build, written
from sargnn.config.run import RunConfig, parse
from sargnn.errors import ConfigError
from sargnn.memory.plan_stores import JOB_BYTES, SPARE, NotPlanned, PlannedMemory, node_bytes, slurm_bytes, slurm_text
from sargnn.run.checkpoints import check_epochs_left, find_start
from sargnn.run.job_files import (
    check_point,
    choose_point_dir,
    choose_run_dir,
    is_under_way,
    note_job,
    read_job,
    script_text,
    status_lines,
    submit_text,
    write,
    write_submit,
)
from sargnn.run.slurm import SITE, Job, Shape, SlurmConfig, num_nodes, shape, submit
from sargnn.tracking.find_runs import find_runs
from sargnn.tracking.memory import human_bytes
from sargnn.tracking.progress import Steps, say

_OURS = re.compile(r"\+{0,2}slurm[.=]")
"""Words that ask something of the cluster."""
SCRIPTS = Path("slurm")
"""In the working folder."""


def main(line: CommandLine) -> int:
    words = ["slurm", *line.folders.arguments, *(["-m"] if line.multirun else []), *line.overrides]
    if resumed := [override for override in line.overrides if override.startswith("resume=") and override != "resume=null"]:
        if line.multirun:
            hint = "give its command again: it goes on with what is not finished"
            raise ConfigError("A sweep cannot be resumed as one.", given=f"-m {' '.join(resumed)}", hint=hint)
        ours = [override for override in line.overrides if _OURS.match(override)]
        going_on = read_resumed([override for override in line.overrides if override not in ours], line.folders)
        assert going_on is not None
        config, run_dir = going_on[0], going_on[1].resolve()
        check_run(config)
        check_epochs_left(config, run_dir)
        slurm = build(SlurmConfig, compose_verb("slurm", ours, keep=("slurm",), folders=line.folders)["slurm"], "slurm.")
        config = on_interface(slurm, config)
    elif (points := sweep_points("slurm", line.overrides, multirun=line.multirun, folders=line.folders)) is not None:
        return write_sweep(points, line, words)
    else:
        slurm, config = compose_job(line.overrides, line.folders)
        run_dir = choose_run_dir(config)
    job = make_job(config, [run_dir], words)
    layout = shape(slurm, job)
    config = dataclasses.replace(config, threads=config.threads or layout.cpus)
    slurm = JobMemory().fill_in(slurm, [config.of_processes], layout.per_node)
    if line.dry_run:
        print(script_text(slurm, job, template_of(slurm)), end="")
        return 0
    return write_job(slurm, job, [config])


def status(line: CommandLine) -> int:
    named = line.words
    if len(named) != 1 or not named[0] or named[0].startswith("-"):
        given = " ".join(named) or "nothing"
        raise ConfigError("--status takes one run, or one sweep.", given=given, hint="sargnn slurm --status NAME")
    runs = find_runs(named[0])
    folders = {run.parent for run in runs} if len(runs) > 1 else set(runs)
    if len(folders) > 1:
        raise ConfigError("--status takes one run, or one sweep.", given=named[0], allowed=[str(run) for run in runs])
    for text in status_lines(folders.pop()):
        print(text)
    return 0


def compose_job(overrides: Sequence[str], folders: ConfFolders) -> tuple[SlurmConfig, RunConfig]:
    """What is asked of the cluster, and the run. Raises ``ConfigError``."""
    mapping = compose_verb("slurm", overrides, keep=("slurm",), folders=folders)
    slurm = build(SlurmConfig, mapping.pop("slurm"), "slurm.")
    processes = mapping.get("processes")
    world = processes if isinstance(processes, int) else mapping.get("world")
    if mapping.get("servers") is None and isinstance(world, int) and world > 0:
        nodes = num_nodes(slurm, world)
        if nodes > 1 and world % nodes == 0 and slurm.ntasks_per_node in (None, world // nodes):
            mapping["servers"] = nodes  # one for each node, where each has as many workers
    config = parse(mapping)
    check_run(config)
    if config.init_from is not None:  # else torch need not be loaded
        config = find_start(config)
    return slurm, on_interface(slurm, config)


def check_run(config: RunConfig) -> None:
    """Raises ``ConfigError`` where a job cannot run it."""
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
    return Job(
        name=f"sweep-{run_dirs[0].parent.name}" if labels else config.name,
        world=config.num_processes,
        threads=config.threads,
        interface=config.comm.interface,
        port=config.comm.port,
        tracking=config.tracking.enabled,
        run_dirs=run_dirs,
        labels=labels or {},
        words=words,
        folder=Path.cwd(),
        each=config.of_ranks.world // config.num_processes,
        on_gpus=config.device == "cuda",
    )


def template_of(slurm: SlurmConfig) -> Path:
    return Path(os.path.expanduser(slurm.template)) if slurm.template else conf_dir().parent / "slurm" / "job.sbatch"


def write_job(slurm: SlurmConfig, job: Job, configs: Sequence[RunConfig]) -> int:
    """Write a run's script, or an array's; submit it where that is asked for; say what next. The exit code."""
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
    number = submit(script, job.folder)
    for run_dir in job.run_dirs:
        note_job(run_dir, jobs=[*read_job(run_dir)["jobs"], number])
    return number


class JobMemory:
    """Plans ``--mem`` of the jobs of one command, each different run once, and says what is asked for and why."""

    def __init__(self) -> None:
        self._plans: dict[str, PlannedMemory | NotPlanned] = {}
        self._said: set[str] = set()

    def fill_in(self, slurm: SlurmConfig, configs: Sequence[RunConfig], per_node: int, label: str | None = None) -> SlurmConfig:
        """With ``mem`` as the runs are planned, the largest of an array's; a smaller one of the user's is answered with a line.

        ``label``: whose memory it is, where there are several jobs.
        """
        given = None if slurm.mem in (None, SITE) else slurm_bytes(str(slurm.mem))
        if slurm.mem is not None and given is None:  # the site's, or all that a node has
            return slurm
        planned: list[PlannedMemory] = []
        with Steps():
            for config in configs:
                memory = self._plan(config)
                if not isinstance(memory, PlannedMemory):
                    if given is None:
                        self._say(f"--mem stays the site's default, for it cannot be planned: {memory.reason}")
                    return slurm
                planned.append(memory)
        largest = max(planned, key=lambda memory: node_bytes(memory, per_node))
        mem = slurm_text(node_bytes(largest, per_node))
        of = "" if label is None else f"{label}: "
        if given is not None:
            if given < node_bytes(largest, per_node):
                self._say(f"warning: {of}slurm.mem={slurm.mem} is less than is planned for a node: {mem}")
            return slurm
        workers = f"workers of up to {human_bytes(max(largest.workers))}, {min(per_node, len(largest.workers))} on a node"
        prepares = f"; preparing takes {human_bytes(largest.preparing)}" if largest.preparing else ""
        more = f"{SPARE:.0%} more and {human_bytes(JOB_BYTES)} for the job's own processes"
        self._say(f"{of}--mem={mem}: {workers}, {more}{prepares}")
        return dataclasses.replace(slurm, mem=mem)

    def _plan(self, config: RunConfig) -> PlannedMemory | NotPlanned:
        """Planned once, whatever the settings are that change no worker's memory."""
        from sargnn.memory.plan_stores import plan_memory

        alike = repr(dataclasses.replace(config, seed=0, epochs=1, eval_every=1, run_name=None, run_dir=None))
        if alike not in self._plans:
            self._plans[alike] = plan_memory(config)
        return self._plans[alike]

    def _say(self, text: str) -> None:
        if text not in self._said:
            say(text)
        self._said.add(text)


@dataclass(frozen=True)
class _Point:
    """A point that is to be submitted; ``label``: the words in which it differs. ``words``: those that asked for all."""

    label: str
    run_dir: Path
    slurm: SlurmConfig
    config: RunConfig
    layout: Shape
    words: Sequence[str]

    @property
    def job(self) -> Job:
        job = make_job(self.config, [self.run_dir], self.words)
        point = f"Point {self.run_dir.name} of the sweep {self.run_dir.parent.name}: {self.label}"
        return dataclasses.replace(job, name=f"{self.run_dir.name}-{job.name}", point=point)


def write_sweep(points: Sequence[tuple[str, ...]], line: CommandLine, words: Sequence[str]) -> int:
    """Write what the points need, once all of them are checked; finished ones and those under way are left out. The exit code.

    Raises ``ConfigError``, before anything is written: a point that cannot run, named, or settings that do not go together.
    """
    asked: dict[int, tuple[SlurmConfig, RunConfig, Shape]] = {}

    def check(number: int) -> None:
        slurm, config = compose_job([*points[number], "hydra.mode=RUN"], line.folders)
        layout = shape(slurm, make_job(config, [], words))
        asked[number] = slurm, dataclasses.replace(config, threads=config.threads or layout.cpus), layout

    # What is asked of the cluster is no setting of a run, unless it is swept.
    shared = {word for word in set(points[0]).intersection(*points) if _OURS.match(word)}
    plan = plan_sweep([tuple(word for word in point if word not in shared) for point in points], line.folders, check)
    slurms, configs = [slurm for slurm, _, _ in asked.values()], [config for _, config, _ in asked.values()]
    in_array = any(slurm.array for slurm in slurms)
    _check_together(slurms, configs, in_array=in_array)
    skipped = plan.done if plan.skip != "false" else {}
    if skipped and not line.dry_run and not skips_finished(plan):
        skipped = {}
    if in_array and len(skipped) < len(plan.done):
        raise ConfigError(
            "A job array has one folder for each point, so finished ones cannot run again.",
            given="skip_finished=false",
            hint="slurm.array=false gives them new folders",
        )
    left_out = dict.fromkeys(skipped, "finished")
    folder, left, memory = plan.folder.resolve(), {}, JobMemory()
    for number, (slurm, config, layout) in asked.items():
        tried = tried_folders(folder, number)
        if number in left_out:
            continue
        if any(is_under_way(path) for path in tried):
            left_out[number] = "under way"
            continue
        if in_array:
            run_dir = folder / f"{number:03d}"
            check_point(config, run_dir)
        else:
            run_dir = choose_point_dir(config, tried, free_folder(folder, number))
            slurm = memory.fill_in(slurm, [config.of_processes], layout.per_node, plan.labels[number])
            if slurm.job_name is not None:
                slurm = dataclasses.replace(slurm, job_name=f"{slurm.job_name}-{run_dir.name}")
        left[number] = _Point(plan.labels[number], run_dir, slurm, config, layout, words)
    if not left:
        _show_left_out(plan, left_out)
        print(f"no point is left to submit: sargnn compare {show_path(folder)}/*/")
        return 0
    return (_write_array if in_array else _write_scripts)(plan, left, left_out, dry_run=line.dry_run)


def _check_together(slurms: Sequence[SlurmConfig], configs: Sequence[RunConfig], *, in_array: bool) -> None:
    """An array's tasks ask for the same, and points that may run side by side meet at ports of their own: ``ConfigError``."""
    asked = [
        {f"slurm.{field.name}": getattr(slurm, field.name) for field in dataclasses.fields(slurm)}
        | {"world": config.world, "processes": config.num_processes, "threads": config.threads, "device": config.device}
        | {"tracking.enabled": config.tracking.enabled}
        for slurm, config in zip(slurms, configs, strict=True)
    ]
    for key, value in asked[0].items() if in_array else ():
        if (other := next((point[key] for point in asked if point[key] != value), value)) != value:
            group = "slurm.*" if key.startswith("slurm.") else key
            raise ConfigError(
                f"All points of a job array ask for the same: '{group}' cannot be swept.",
                given=f"{key}={written(value)} and {key}={written(other)}",
                hint="slurm.array=false gives each point a script of its own",
            )
    most = next((slurm.array_parallelism for slurm in slurms if slurm.array_parallelism is not None), None)
    if most is not None and not in_array:
        raise ConfigError(
            "Only a job array bounds how many points run at once.",
            given=f"slurm.array_parallelism={most} slurm.array=false",
            hint="slurm.array=true, where all points ask for the same",
        )
    ports = [config.comm.port for config in configs if config.comm.port is not None]
    if ports and (in_array or len(set(ports)) < len(ports)):
        raise ConfigError("Points on one node would meet at one port.", given=f"comm.port={ports[0]}", allowed="null")


def _write_array(plan: Plan, left: Mapping[int, _Point], left_out: Mapping[int, str], *, dry_run: bool) -> int:
    first = next(iter(left.values()))
    configs = [point.config for point in left.values()]
    labels = {number: point.label for number, point in left.items()}
    job = make_job(first.config, [point.run_dir for point in left.values()], first.words, labels)
    slurm = JobMemory().fill_in(first.slurm, configs, first.layout.per_node)
    text = script_text(slurm, job, template_of(slurm))
    if dry_run:
        print(text, end="")
        return 0
    note_points(plan)
    _show_left_out(plan, left_out)
    return write_job(slurm, job, configs)


def _write_scripts(plan: Plan, left: Mapping[int, _Point], left_out: Mapping[int, str], *, dry_run: bool) -> int:
    for point in left.values():
        with naming_point(point.label):
            script_text(point.slurm, point.job, template_of(point.slurm))
    if dry_run:
        return _show_points(plan, left, left_out)
    note_points(plan)
    _show_left_out(plan, left_out)
    folder = SCRIPTS / f"sweep-{plan.folder.name}"
    scripts = [
        write(remaining.slurm, remaining.job, [remaining.config], template_of(remaining.slurm), folder)
        for remaining in left.values()
    ]
    text = submit_text(next(iter(left.values())).job, scripts, [remaining.label for remaining in left.values()])
    submits = show_path(write_submit(text, scripts[0].parent))
    for script, point in zip(scripts, left.values(), strict=True):
        submitted = f"job {submit_job(script, point.job)}: " if point.slurm.submit else ""
        print(f"{submitted}{show_path(script)}  {point.label}", flush=True)
    print(f"how far they are: sargnn slurm --status {shlex.quote(show_path(plan.folder))}")
    if not all(point.slurm.submit for point in left.values()):
        print(f"bash {shlex.quote(submits)}")
    return 0


def _show_left_out(plan: Plan, left_out: Mapping[int, str]) -> None:
    for number, why in sorted(left_out.items()):
        run_dir = plan.done.get(number, plan.folder / f"{number:03d}")
        print(f"{show_path(run_dir)}  {plan.labels[number]}: {why}, left out")


def _show_points(plan: Plan, left: Mapping[int, _Point], left_out: Mapping[int, str]) -> int:
    print(f"sweep of {len(plan.points)} point{'s' * (len(plan.points) != 1)}, in {plan.folder}")
    for number, label in enumerate(plan.labels):
        name, state = f"{number:03d}", f"{left_out.get(number)}, would be left out"
        if number in left:
            point = left[number]
            name, layout = point.run_dir.name, point.layout
            tasks = point.config.num_processes
            gpus = f" gpus={layout.gpus}" if layout.gpus else ""
            state = f"nodes={layout.nodes} tasks={tasks} cpus={layout.cpus}{gpus} mem={point.slurm.mem or 'site'}"
        print(f"  {name}  {label}\n       {state}")
    print(f"{len(left)} would be submitted; nothing was written: leave --dry-run out to write their scripts")
    return 0
