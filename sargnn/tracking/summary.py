"""``summary.json``, the contract of what a run reports: one typed record, its one reader and its one writer."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sargnn.config.run import Predicted
from sargnn.tracking.files import SUMMARY, read_json, read_record, unreadable, write_json
from sargnn.tracking.scores import add_metric

FINISHED, FAILED, INTERRUPTED = "finished", "failed", "interrupted"


@dataclass(frozen=True)
class _Ended:
    """How a run ended.

    Attributes:
        status: ``finished``, ``failed`` or ``interrupted``.
        error: why it is not finished.
    """

    status: str
    error: str | None = None


@dataclass(frozen=True)
class _Ran:
    """What ran, and what it was made by.

    Attributes:
        partitioner: ``name`` of who cut the graph, and by what it was to ``balance`` the parts.
        losses_depend_on: settings that change the losses although nothing else was asked for (``config.losses``), each as
            ``setting``, ``change`` (what it does) and ``kept_by`` (what keeps them); none: []. None: nobody knows.
        edge_weights: whether its graph has some, and the settings use them.
        config_hash: of what decides the losses.
        cpu: the processor's model of rank 0's machine.
        cores: how many of that machine's cores the process may use.
        gpu: the model of rank 0's; None: it computed on the CPU.
        hosts: the name of each rank's, where there are several.
        servers: how many.
        processes: how many; figures of memory are lists with one of each, not of each rank.
    """

    world: int | None = None
    processes: int | None = None
    servers: int | None = None
    mode: str | None = None
    model: str | None = None
    kernel: str | None = None
    partitioner: dict[str, Any] | None = None
    dataset: str | None = None
    losses_depend_on: list[dict[str, str]] | None = None
    num_params: int | None = None
    sharded_params: list[int] | None = None
    edge_cut: float | None = None
    halo_rows: list[int] | None = None
    cache_static: bool | None = None
    edge_weights: bool | None = None
    config_hash: str | None = None
    dataset_hash: str | None = None
    partition_hash: str | None = None
    git_sha: str | None = None
    versions: dict[str, str] | None = None
    hosts: list[str] | None = None
    cpu: str | None = None
    cores: int | None = None
    gpu: str | None = None


@dataclass(frozen=True)
class _Learned:
    """What was learned.

    Attributes:
        losses: per epoch, sum over ranks / global count; the whole curve also after a resume.
        task: what was predicted.
        metric: what evaluations measured.
        metrics: of links, all that the last one measured, by split and name.
        train_metric, val_metric, test_metric: of the last evaluation.
        best_val_metric, test_metric_at_best_val: the last of tied best epochs counts.
        val_metric_smoothed, test_metric_smoothed: after Correct & Smooth.
        train_acc, val_acc, test_acc, best_val_acc, test_acc_at_best_val, val_acc_smoothed, test_acc_smoothed: the same where
            the metric is the accuracy, in [0, 1].
    """

    losses: list[float] = field(default_factory=list)
    task: Predicted | None = None
    metric: str | None = None
    metrics: dict[str, dict[str, float | None]] | None = None
    train_metric: float | None = None
    val_metric: float | None = None
    test_metric: float | None = None
    best_val_metric: float | None = None
    test_metric_at_best_val: float | None = None
    val_metric_smoothed: float | None = None
    test_metric_smoothed: float | None = None
    train_acc: float | None = None
    val_acc: float | None = None
    test_acc: float | None = None
    best_val_acc: float | None = None
    test_acc_at_best_val: float | None = None
    val_acc_smoothed: float | None = None
    test_acc_smoothed: float | None = None


@dataclass(frozen=True)
class _Took:
    """Seconds, and bytes that travelled.

    Attributes:
        epoch_time_s: median over epochs after the first, slowest rank, without evaluation.
        smooth_time_s: of Correct & Smooth.
        compute_time_s, comm_wait_time_s: per epoch, medians.
        comm_bytes_per_epoch: payload of row exchange by all ranks; collectives are not counted.
        between_servers_bytes_per_epoch: of all traffic, collectives included, what went from one server to another.
        between_servers_wait_s: per epoch, median, of the slowest rank's waiting for that.
        disk_written_per_epoch, disk_read_per_epoch: bytes of tables of all ranks; with ``spill``.
        disk_wait_s: per epoch, median, of the ranks' waiting for that together.
        disk_bytes: the most that each process has had on disk at one time.
        preload: ``chosen``: none or shared; where it was chosen by what was measured, by which numbers.
        profile_s, profile_cpu_s, profile_work: by category, one per rank; with ``profile=true``.
        profile_shard_cpu_s, profile_shard_edges: of aggregation, core-seconds and edges by whose rows were read, likewise.
        profile_wait_s: per rank and peer, the seconds of an epoch in which it waited for rows or gradients from or to that
            peer.
    """

    epoch_time_s: float | None = None
    evaluate_time_s: float | None = None
    smooth_time_s: float | None = None
    startup_time_s: float | None = None
    partition_time_s: float | None = None
    compute_time_s: float | None = None
    comm_wait_time_s: float | None = None
    comm_bytes_per_epoch: int | None = None
    between_servers_bytes_per_epoch: int | None = None
    between_servers_wait_s: float | None = None
    disk_written_per_epoch: int | None = None
    disk_read_per_epoch: int | None = None
    disk_wait_s: float | None = None
    disk_bytes: list[int] | None = None
    preload: dict[str, Any] | None = None
    profile_s: dict[str, list[float]] | None = None
    profile_cpu_s: dict[str, list[float]] | None = None
    profile_work: dict[str, list[float]] | None = None
    profile_shard_cpu_s: dict[str, list[float]] | None = None
    profile_shard_edges: dict[str, list[float]] | None = None
    profile_wait_s: list[list[float]] | None = None


@dataclass(frozen=True)
class _Held:
    """What workers held, one number per rank, and what steps were made of.

    Attributes:
        private_bytes_before_loading: what a worker had for itself before it opened its part.
        memory_bytes: the parts that add up to ``peak_rss_bytes``: base, graph, features, parameters, training, other
            (``tracking.memory.split_peak``). Of a resumed run, and so is ``peak_rss_bytes``: of the process that ended it,
            while ``peak_train_bytes`` is of all its epochs.
        planned_alone_bytes: what training is planned to hold in the largest worker, if each had a process of its own; of runs
            whose processes compute several parts as one.
        planned_train_bytes: what ``peak_train_bytes`` was to be; with ``memory_budget``, and of large graphs.
        batches: of micro-batches their number, rows and edges by micro-batch and layer, and rows computed / distinct rows.
        mfg: rows, halo rows and edges by view and layer; with ``mfg=true``.
    """

    peak_rss_bytes: list[int] | None = None
    peak_train_bytes: list[int] | None = None
    peak_evaluate_bytes: list[int] | None = None
    peak_smooth_bytes: list[int] | None = None
    private_bytes_before_loading: list[int] | None = None
    memory_bytes: dict[str, list[int]] | None = None
    planned_alone_bytes: int | None = None
    planned_train_bytes: list[int] | None = None
    batches: dict[str, Any] | None = None
    mfg: dict[str, list[dict[str, int]]] | None = None


@dataclass(frozen=True)
class Summary(_Held, _Took, _Learned, _Ran, _Ended):
    """What a run reports. What it did not measure is None: of a run that failed that is nearly everything.

    The file's keys are the fields of the components, all on one level.

    Attributes:
        extra: keys that this version does not know, as they stand in the file.
    """

    extra: dict[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """As ``summary.json`` holds it; ``error`` only where there is one."""
        content = {field_.name: getattr(self, field_.name) for field_ in dataclasses.fields(self) if field_.name != "extra"}
        if self.error is None:
            del content["error"]
        return content | self.extra

    @property
    def is_measured(self) -> bool:
        """Whether it has what tables and plots show: workers wrote it, not the launching process for them."""
        needed = (self.model, self.dataset, self.mode, self.world, self.epoch_time_s, self.comm_wait_time_s)
        return all(figure is not None for figure in (*needed, self.comm_bytes_per_epoch)) and bool(self.peak_train_bytes)


def read_summary(run_dir: Path) -> Summary | None:
    """A run's summary; None if it has none yet. Raises ``SargnnError``: the file is damaged or holds other types than a run
    writes; the message names it."""
    path = run_dir / SUMMARY
    if not path.exists():
        return None
    content = add_metric(read_json(path))
    known = {field_.name for field_ in dataclasses.fields(Summary)} - {"extra"}
    extra = {key: value for key, value in content.items() if key not in known}
    summary = read_record(Summary, {key: value for key, value in content.items() if key in known}, path)
    if summary.status not in (FINISHED, FAILED, INTERRUPTED):
        raise unreadable(path, f"'status' is {summary.status!r}")
    if summary.metric is not None and not re.fullmatch(r"[\w@]{1,100}", summary.metric):  # it names files of plots
        raise unreadable(path, f"'metric' is {summary.metric!r}")
    if summary.status == FINISHED and not summary.is_measured:
        raise unreadable(path, "the run is finished, and figures are missing")
    return dataclasses.replace(summary, extra=extra)


def write_summary(run_dir: Path, summary: Summary) -> None:
    """Write ``summary.json``; readers see it whole or not at all."""
    write_json(run_dir / SUMMARY, summary.as_dict())
