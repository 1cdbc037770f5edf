"""A training run as an sbatch script: what is asked of the cluster, checked, and the template filled in.

Needs neither torch nor mlflow, so that it is quick on a login node. Every value that a person gives reaches the shell quoted;
the set-up lines alone are shell code, by definition.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sargnn.config.fields import AT_LEAST_ONE, number
from sargnn.errors import ConfigError, SargnnError

SITE = "site"
"""Of ``slurm.mem``: what the site gives a job that asks for no memory."""
_LOOPBACK = re.compile(r"lo\d*|localhost.*|127\..*|::1?|0\.0\.0\.0|ip6-(localhost|loopback)", flags=re.IGNORECASE)
_FORMS = {
    "mem": (re.compile(rf"\d+[KMGT]?|{SITE}"), f"a number with K, M, G or T, such as 64G, or {SITE}"),
    "time": (re.compile(r"\d+|\d+:\d\d(:\d\d)?|\d+-\d+(:\d\d){0,2}"), "minutes, HH:MM:SS or D-HH:MM:SS"),
}
_OURS = {
    "job-name": "job_name",
    "nodes": "nodes",
    "ntasks": "world (of the run)",
    "ntasks-per-node": "ntasks_per_node",
    "cpus-per-task": "cpus_per_task",
    "gpus-per-node": "gpus",
    "mem": "mem",
    "partition": "partition",
    "account": "account",
    "qos": "qos",
    "constraint": "constraint",
    "time": "time",
    "signal": "signal_s",
    "requeue": "requeue",
    "no-requeue": "requeue",
    "array": "array",
    "output": "run_dir (of the run)",
    "open-mode": "none",
    "chdir": "none",
    "tasks-per-node": "ntasks_per_node",
    "export": "none",
    "wrap": "none",
    "uid": "none",
    "gid": "none",
}
_SPARE_S = 60  # SLURM may send the signal so much earlier


@dataclass(frozen=True)
class SlurmConfig:
    """The group ``slurm``; ``conf/slurm/site.yaml`` says what each setting means."""

    job_name: str | None = None
    nodes: int | None = field(default=None, metadata=AT_LEAST_ONE)
    ntasks_per_node: int | None = field(default=None, metadata=AT_LEAST_ONE)
    cpus_per_task: int | None = field(default=None, metadata=AT_LEAST_ONE)
    gpus: int | None = field(default=None, metadata=AT_LEAST_ONE)
    mem: str | None = None
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    time: str | None = None
    setup: list[str] = field(default_factory=list)
    gloo_ifname: str | None = None
    master_addr: str | None = None
    signal_s: int = field(default=120, metadata=number(low=0, high=65535))
    requeue: bool = True
    array: bool = False
    array_parallelism: int | None = field(default=None, metadata=AT_LEAST_ONE)
    additional_parameters: dict[str, str | None] = field(default_factory=dict)
    template: str | None = None
    submit: bool = False


@dataclass(frozen=True)
class Job:
    """What a script runs.

    Attributes:
        world: processes of workers, each a task.
        threads: of each, if that is settled.
        interface: of the network, if one is configured.
        port: where ranks meet; None: from the job's number.
        tracking: whether figures go to MLflow.
        run_dirs: the run's folder; of an array one per task, ``FOLDER/000`` and so on.
        labels: of an array, number of the task -> what the point is called; else empty.
        words: the command line that asked for it, without ``sargnn``.
        folder: where the command was given, and where the job works.
        point: of a sweep this run is, and what it is called there; None: of none.
        each: workers of a process.
        on_gpus: whether they compute on GPUs.
    """

    name: str
    world: int
    threads: int | None
    interface: str | None
    port: int | None
    tracking: bool
    run_dirs: Sequence[Path]
    labels: Mapping[int, str]
    words: Sequence[str]
    folder: Path
    point: str | None = None
    each: int = 1
    on_gpus: bool = False

    @property
    def folder_of_all(self) -> Path:
        return self.run_dirs[0].parent if self.is_array else self.run_dirs[0]

    @property
    def is_array(self) -> bool:
        """Whether it is a sweep in one job array."""
        return bool(self.labels)


@dataclass(frozen=True)
class Shape:
    """How workers are laid out: ``nodes`` of at most ``per_node`` tasks, each with ``cpus`` CPUs; a node has ``gpus`` GPUs."""

    nodes: int
    per_node: int
    cpus: int
    gpus: int


def num_nodes(config: SlurmConfig, world: int) -> int:
    return -(-world // (config.ntasks_per_node or world)) if config.nodes is None else config.nodes


def shape(config: SlurmConfig, job: Job) -> Shape:
    """Nodes, tasks and CPUs, filled in. Raises ``ConfigError`` for a request that no cluster can fulfil, with the reason."""
    given = f"world={job.world} slurm.nodes={config.nodes} slurm.ntasks_per_node={config.ntasks_per_node}"
    nodes = num_nodes(config, job.world)
    per_node = config.ntasks_per_node or -(-job.world // nodes)
    if job.world > nodes * per_node:
        raise ConfigError(
            f"{job.world} workers do not fit on {nodes} nodes of {per_node} tasks.",
            given=given,
            hint=f"slurm.nodes={-(-job.world // per_node)}, or slurm.ntasks_per_node={-(-job.world // nodes)}",
        )
    if nodes > job.world:
        raise ConfigError("There are more nodes than workers.", given=given, hint=f"slurm.nodes={job.world}")
    cpus = config.cpus_per_task or job.threads or 1
    if job.threads is not None and job.threads > cpus:
        raise ConfigError(
            "A worker has more threads than CPUs.",
            given=f"threads={job.threads} slurm.cpus_per_task={cpus}",
            hint=f"slurm.cpus_per_task={job.threads}",
        )
    for key, place in (("slurm.gloo_ifname", job.interface), ("slurm.master_addr", config.master_addr)):
        if nodes > 1 and place is not None and _LOOPBACK.fullmatch(place):
            raise ConfigError(
                "A loopback address reaches no other node.",
                given=f"{key}={place}, {nodes} nodes",
                hint=f"name the cluster's network, such as {key}={'ib0' if 'ifname' in key else 'node01'}; null leaves it open",
            )
    _check_time(config)
    return Shape(nodes, per_node, cpus, _gpus(config, job, per_node))


def _gpus(config: SlurmConfig, job: Job, per_node: int) -> int:
    if not job.on_gpus and config.gpus is not None:
        raise ConfigError(
            "A run on CPUs asks for no GPUs.", given=f"device=cpu slurm.gpus={config.gpus}", allowed="device=cuda"
        )
    if config.gpus is not None and config.gpus > per_node:
        raise ConfigError(
            "A task computes on one GPU, so some would do nothing.",
            given=f"slurm.gpus={config.gpus}, {_many(per_node, 'task')} on a node",
            hint=f"slurm.gpus={per_node}, or more workers",
        )
    return (config.gpus or per_node) if job.on_gpus else 0


def _check_time(config: SlurmConfig) -> None:
    """Raises ``ConfigError`` where times or sizes have not SLURM's forms, or the signal comes as the job begins."""
    for name, (form, allowed) in _FORMS.items():
        value = getattr(config, name)
        if value is not None and not form.fullmatch(value):
            raise ConfigError(f"'slurm.{name}' has not the form that SLURM knows.", given=value, allowed=allowed)
    if config.time is not None and config.signal_s and seconds(config.time) < config.signal_s + _SPARE_S:
        raise ConfigError(
            "The time limit leaves no time to train before a checkpoint is asked for.",
            given=f"slurm.time={config.time} ({seconds(config.time)} s) slurm.signal_s={config.signal_s}",
            hint=f"SLURM may send the signal {_SPARE_S} s earlier: a longer slurm.time, or a smaller slurm.signal_s",
        )


def seconds(time: str) -> int:
    days, dash, rest = time.rpartition("-")
    parts = [int(part) for part in rest.split(":")]
    if dash:  # D-HH[:MM[:SS]]
        hours, minutes, left = [*parts, 0, 0][:3]
    elif len(parts) == 3:
        hours, minutes, left = parts
    else:  # MM[:SS]
        hours, (minutes, left) = 0, [*parts, 0][:2]
    return ((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + left


def render(config: SlurmConfig, job: Job, template: str) -> str:
    """The script. Raises ``ConfigError`` for an impossible request, a value that cannot stand in a script, or a template with
    an unknown place.
    """
    layout = shape(config, job)
    if config.master_addr is not None:
        _check_line("slurm.master_addr", config.master_addr)
    values = {
        "about": "\n".join(comment(line) for line in _about(job, layout)),
        "directives": "\n".join(_directives(config, job, layout)),
        "setup": "\n".join(config.setup) if config.setup else "# (none)",
        "folder": quoted(job.folder),
        "python": quoted(sys.executable),
        "run_dir": run_dir_line(job),
        "tracking": "yes" if job.tracking else "no",
        "requeue": "yes" if config.requeue else "no",
        "master_addr": quoted(config.master_addr) if config.master_addr else '"$(hostname)"',
        # Below the ports that systems give out by themselves.
        "master_port": str(job.port) if job.port else "$((20000 + SLURM_JOB_ID % 12000))",
        "cpus_per_task": str(layout.cpus),
        "world": str(job.world),
    }

    def value(match: re.Match[str]) -> str:
        if match.group(1) not in values:
            raise ConfigError("The template has a place that is not known.", given=match.group(0), allowed=sorted(values))
        return values[match.group(1)]

    return re.sub(r"\{\{(\w+)\}\}", value, template)


def run_dir_line(job: Job) -> str:
    if job.is_array:
        return f'RUN_DIR={quoted(job.run_dirs[0].parent)}/$(printf %03d "$SLURM_ARRAY_TASK_ID")'
    return f"RUN_DIR={quoted(job.run_dirs[0])}"


def _about(job: Job, layout: Shape) -> list[str]:
    workers, nodes, cpus = _many(job.world * job.each, "worker"), _many(layout.nodes, "node"), _many(layout.cpus, "CPU")
    gpus = f" A node has {_many(layout.gpus, 'GPU')} for {_many(layout.per_node, 'task')}." if layout.gpus else ""
    lines = [
        f"{job.name}: {workers}, {'one' if job.each == 1 else job.each} per task, on {nodes}, with {cpus} each.{gpus}",
        "",
        f"Written by: sargnn {shlex.join(job.words)}",
    ]
    if job.is_array:
        lines += [f"A sweep of {len(job.labels)} points, one array task each:"]
        lines += [f"  {number:>3}  {label}" for number, label in job.labels.items()]
        lines += [f"Settings: config.yaml in the folders of {job.folder_of_all}"]
    else:
        lines += [] if job.point is None else [job.point]
        lines += [f"Settings: {job.run_dirs[0] / 'config.yaml'}"]
    return [
        *lines,
        "",
        "Submit it with sbatch. Submitted again, a run that is not over goes on from its newest checkpoint.",
        f"How far it is: sargnn slurm --status {shlex.quote(str(job.folder_of_all))}",
    ]


def _many(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _directives(config: SlurmConfig, job: Job, layout: Shape) -> list[str]:
    output = str(job.folder_of_all).replace("\\", "\\\\").replace("%", "%%")
    options: dict[str, str | None] = {
        "job-name": config.job_name or job.name,
        "partition": config.partition,
        "account": config.account,
        "qos": config.qos,
        "constraint": config.constraint,
        "time": config.time,
        "nodes": str(layout.nodes),
        "ntasks": str(job.world),
        "ntasks-per-node": str(layout.per_node),
        "cpus-per-task": str(layout.cpus),
        "gpus-per-node": str(layout.gpus) if layout.gpus else None,
        "mem": None if config.mem == SITE else config.mem,
        "output": f"{output}/slurm-%A_%a.out" if job.is_array else f"{output}/slurm-%j.out",
        "open-mode": "append",
    }
    if job.is_array:
        most = f"%{config.array_parallelism}" if config.array_parallelism else ""
        options["array"] = f"{_ranges(sorted(job.labels))}{most}"
    if config.signal_s:
        options["signal"] = f"B:USR1@{config.signal_s}"
    lines = [directive(key, value) for key, value in options.items() if value is not None]
    lines.append(directive("requeue" if config.requeue else "no-requeue", None))
    for key, value in config.additional_parameters.items():
        name = key.lstrip("-")
        if not re.fullmatch(r"[a-z][a-z0-9-]*", name):
            raise ConfigError(
                "An option of sbatch has another form.", given=f"slurm.additional_parameters.{key}", allowed="such as mail-type"
            )
        ours = next((option for option in _OURS if option.startswith(name)), None)  # sbatch takes beginnings of names too
        if ours is not None:
            raise ConfigError(f"sbatch's option '{ours}' is set by sargnn.", given=f"{key}={value}", hint=f"see: {_OURS[ours]}")
        lines.append(directive(name, value))
    return lines


def _ranges(numbers: Sequence[int]) -> str:
    """``0-2,5`` for 0, 1, 2 and 5."""
    runs: list[list[int]] = []
    for index in numbers:
        if runs and index == runs[-1][-1] + 1:
            runs[-1].append(index)
        else:
            runs.append([index])
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def directive(name: str, value: str | None) -> str:
    """One ``#SBATCH`` line, quoted as sbatch reads it. Raises ``ConfigError`` for what no such line can hold."""
    if value is None:
        return f"#SBATCH --{name}"
    _check_line(name, value)
    if re.fullmatch(r"[\w.,:/=+@%-]+", value, flags=re.ASCII):
        return f"#SBATCH --{name}={value}"
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'#SBATCH --{name}="{escaped}"'


def _check_line(name: str, value: str) -> None:
    if not value.isprintable():
        raise ConfigError(f"'{name}' cannot stand in one line of a script.", given=repr(value), allowed="printable characters")
    if not value.strip():
        raise ConfigError(f"'{name}' is empty.", hint="null leaves it out")


def quoted(value: object) -> str:
    """A word for the shell. Raises ``ConfigError`` for a character that no file can hold."""
    text = str(value)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ConfigError("A script is UTF-8, and this is not.", given=repr(text)) from error
    return shlex.quote(text)


def comment(text: str) -> str:
    """A line that runs nothing, whatever is in it."""
    harmless = "".join(character if character.isprintable() else "?" for character in text)
    return f"# {harmless}".rstrip()


def check_syntax(script: str) -> None:
    """``bash -n``, where there is a bash. Raises ``ConfigError``: set-up lines or a site's template that bash cannot read."""
    bash = shutil.which("bash")
    if bash is None:
        return
    done = subprocess.run([bash, "-n"], input=script, capture_output=True, text=True)
    if done.returncode:
        raise ConfigError(
            "bash cannot read the script.",
            given=(done.stderr.strip().splitlines() or [""])[0],
            hint="look at slurm.setup and at the template",
        )


def submit(script: Path, folder: Path) -> str:
    """The job's number. Raises ``SargnnError``, with sbatch's words, where there is none here or it refused."""
    sbatch = shutil.which("sbatch")
    if sbatch is None:
        raise ConfigError("There is no sbatch on this machine.", given=str(script), hint="submit the script on a login node")
    done = subprocess.run([sbatch, "--parsable", str(script)], cwd=folder, capture_output=True, text=True)
    if done.returncode:
        raise SargnnError("sbatch did not take the script.", given=done.stderr.strip() or f"exit code {done.returncode}")
    return done.stdout.strip().partition(";")[0]
