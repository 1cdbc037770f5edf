"""What a worker does once its process stands: join the others, open its part, build, train or predict, write results.

It imports torch and numpy; not mlflow, ogb, pandas or matplotlib, and dgl only for the dgl kernel.
"""

from __future__ import annotations

import dataclasses
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch

from sargnn.backends.device import Device
from sargnn.backends.memory import Pool
from sargnn.comm.group import Group, Traffic
from sargnn.config.losses import loss_lines
from sargnn.config.run import RunConfig, parts_of
from sargnn.engine.serving import baseline_lines, usable_device
from sargnn.errors import SargnnError
from sargnn.native import set_threads
from sargnn.partition.store import PartitionInfo, open_part, partition_info
from sargnn.profile import Profile
from sargnn.run.env import local_device_index
from sargnn.tracking import files
from sargnn.tracking.files import Inputs, read_inputs
from sargnn.tracking.memory import PeakMeter, SharedMeter, private_bytes, resident_bytes
from sargnn.tracking.provenance import without_bf16
from sargnn.tracking.summary import FINISHED, INTERRUPTED, Summary, write_summary
from sargnn.training import checkpoint
from sargnn.training.build import make_trainer
from sargnn.training.checkpoint import open_start
from sargnn.training.evaluation import MANIFEST, write_predictions
from sargnn.training.fit import Budget
from sargnn.training.history import Requests
from sargnn.training.loop import Listener, Rows
from sargnn.training.summary import (
    batch_lines,
    describe_run,
    flow_lines,
    flow_rows,
    measure_results,
    memory_parts,
    planned_lines,
    sharing_lines,
)
from sargnn.training.trainer import Trainer

if TYPE_CHECKING:
    from sargnn.run.heartbeat import Heartbeat
    from sargnn.training.preload import Choice

_SLACK = 1 / 8
"""Of memory for tables of parts that differ in size."""


@dataclass(frozen=True)
class _Job:
    """What a rank is to do, and what its process held before its parts were opened, shared with no other one and in all.

    ``config``: the run's with a worker for each rank. ``asked``: what signals ask this process's workers for.
    """

    run: RunConfig
    config: RunConfig
    run_dir: Path
    inputs: Inputs
    info: PartitionInfo
    group: Group
    private_bytes: int
    resident_bytes: int
    asked: _Asked

    def tell(self, *lines: str) -> None:
        for line in lines if self.group.rank == 0 else ():
            print(line, flush=True)


class _Asked:
    """What signals ask for: a checkpoint after the step under way; all but SIGUSR1 also end the run there.

    Until somebody trains they do what they did before. Only the main thread can hear them.
    """

    # SIGUSR2 comes through srun, which would end everything at a SIGTERM.
    _SIGNALS = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM)

    def __init__(self) -> None:
        self._of_loops: list[Requests] = []
        self._before: dict[int, Any] = {number: signal.signal(number, self._hear) for number in self._SIGNALS}

    def _hear(self, number: int, frame: FrameType | None) -> None:
        if not self._of_loops and self._before[number] is not signal.SIG_IGN:
            signal.signal(number, self._before[number] or signal.SIG_DFL)
            os.kill(os.getpid(), number)
        for requests in self._of_loops:
            requests.stop |= number != signal.SIGUSR1
            requests.checkpoint = True

    def go_to(self, requests: Requests) -> None:
        """A worker of this process trains from now on, and looks there after every step."""
        self._of_loops.append(requests)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, self._SIGNALS[:2])  # which a task has blocked until now


def work(config: RunConfig, run_dir: Path, process: int, processes: int, on_joining: Callable[[Heartbeat], None]) -> None:
    """Train, or predict, as the ranks of one of so many processes; rank 0 writes ``metrics.jsonl`` and ``summary.json``.

    ``on_joining`` gets the heartbeat, which must be told if this process loses a peer.
    """
    inputs = read_inputs(run_dir)
    if inputs.processes is not None:  # chosen by who has launched all of them on one machine
        config = dataclasses.replace(config, processes=inputs.processes).on_one_machine
    if processes != config.num_processes:
        allowed = [str(config.num_processes)]
        raise SargnnError("The number of started workers is not the configured one.", given=processes, allowed=allowed)
    traffics: list[Traffic] = [Traffic()]
    if inputs.measures_network:
        from sargnn.comm.rates import measure_rates

        torch.set_num_threads(1)
        group = _join(config, process, traffics, on_joining)
        rates = measure_rates(group)
        if process == 0:
            files.write_json(run_dir / files.NETWORK, dataclasses.asdict(rates))
        group.close()
        return
    run, config, threads, own = config, config.of_ranks, config.threads or 1, parts_of(process, processes, config.world)
    torch.set_num_threads(threads)
    set_threads(threads)
    together = " as one" if run.joins_parts else " in turn"
    ranks = f"rank {process}" if len(own) == 1 else f"ranks {own[0]} to {own[-1]}{together}"
    print(f"{ranks} of {run.world}, process {os.getpid()}, {threads} threads", flush=True)
    place = usable_device(config.device)
    if slow := without_bf16(config.precision, config.device):
        print(slow, flush=True)
    number = local_device_index(process, place.count, os.environ)
    place.start(number)
    asked = _Asked()
    group = _join(config, process, traffics, on_joining)
    held = private_bytes(), resident_bytes()

    def as_rank(group: Group, **shared: Any) -> None:
        for line in _server_lines(group):
            print(line, flush=True)
        info = partition_info(Path(inputs.partition), group.rank)
        with place.answers_lack_of_memory():
            _train_part(_Job(run, config, run_dir, inputs, info, group, *held, asked), **shared)

    pool = Pool()
    if config.spills:
        from sargnn.backends.spill import SpillingPool
        from sargnn.backends.spill_file import SpillFile

        folder = run_dir / "scratch" if config.spill_dir is None else Path(config.spill_dir)
        pool = SpillingPool(SpillFile(folder), config.memory_budget.bytes, spills_all=config.spill == "all")
    if processes == config.world:
        as_rank(group, **{"make_pool": lambda *, enabled: pool} if config.spills else {})
    else:
        from sargnn.comm.turns import Parts

        meters = list[PeakMeter]()
        pool.slack = _SLACK
        parts = Parts(group, config.world, servers=config.num_servers, profiles=config.profile, traffics=traffics)

        def as_part(group: Group) -> None:
            torch.set_num_threads(threads)
            place.start(number)
            as_rank(group, make_pool=lambda *, enabled: pool, make_meter=partial(_shared_meter, group, meters))

        parts.run(as_part)
    pool.close()
    group.close()


def _shared_meter(group: Group, meters: list[PeakMeter], device: Device) -> PeakMeter:
    """The process's, whose baseline is what it holds once all of its workers have read in what they need."""
    group.gather(torch.zeros(1))
    if not meters:
        meters.append(SharedMeter.here(device))
    group.gather(torch.zeros(1))
    return meters[-1]


def _train_part(job: _Job, **shared: Any) -> None:
    """``shared``: as ``make_trainer`` takes it, of ranks that take turns in this process."""
    config, rank, group = job.config, job.group.rank, job.group
    flat, preloaded = Path(job.inputs.partition), None if job.inputs.preloaded is None else Path(job.inputs.preloaded)
    budget: Budget | None = None
    if config.budget_bytes is not None:
        from sargnn.memory.budget import chooser

        budget = chooser

    def make(folder: Path) -> Trainer:
        return make_trainer(
            config,
            open_part(folder, rank),
            job.info.num_classes,
            group,
            job.run_dir / "scratch" / f"rank_{rank:02d}",
            flat=lambda: open_part(flat, rank),
            budget=budget,
            trained=job.inputs.trained,
            **shared,
        )

    choice: Choice | None = None
    if preloaded is not None and config.preload.name == "auto":
        from sargnn.training.preload import choose

        trainer, choice = choose(group, partial(make, flat), partial(make, preloaded))
    else:
        trainer = make(preloaded or flat)
    try:
        with trainer.engine.pool.within(group.putting_away):
            _run(job, trainer, choice)
    finally:
        trainer.close()


def _join(config: RunConfig, process: int, traffics: list[Traffic], on_joining: Callable[[Heartbeat], None]) -> Group:
    """The group of all processes, with a heartbeat where there are others. ``traffics``: of this process's ranks, the first one
    the group's where it is a rank.
    """
    processes = config.num_processes
    profile = Profile(config.profile and processes == config.world)
    if processes == 1:
        return Group.single(profile)
    from sargnn.comm.distributed import DistributedGroup
    from sargnn.run.heartbeat import Heartbeat

    heartbeat = Heartbeat(process, lambda: sum(traffic.begun for traffic in traffics))
    on_joining(heartbeat)
    heartbeat.start()
    servers = config.num_servers if processes == config.world else 1
    return DistributedGroup.from_environment(
        config.comm.backend,
        config.comm.timeout_s,
        process,
        processes,
        traffics[0],
        profile,
        servers=servers,
        shares=config.comm.backend == "gloo" and config.device == "cpu",
    )


def _server_lines(group: Group) -> list[str]:
    """What is said of servers that are not what the hosts are."""
    if not group.hosts or group.rank:
        return []
    names = [host.name for host in group.hosts]

    def hosts_of(servers: int) -> list[list[str]]:
        size = group.world // servers
        return [list(dict.fromkeys(names[server * size : (server + 1) * size])) for server in range(servers)]

    if group.servers > 1:
        for server, own in enumerate(hosts_of(group.servers)):
            if len(own) > 1:
                return [f"server {server} has workers on {' and '.join(own)}: what its workers exchange goes over the network"]
        return []
    several = len(set(names))
    if group.world % several == 0 and all(len(own) == 1 for own in hosts_of(several)):
        return [f"{several} hosts and servers=1: servers={several} would let less travel between them, with or without preload"]
    return []


def _run(job: _Job, trainer: Trainer, choice: Choice | None) -> None:
    """What the run's inputs ask for: a record, predictions or training. ``choice``: whether servers preload, if chosen here."""
    config, run_dir, inputs, rank, first_epoch = job.config, job.run_dir, job.inputs, job.group.rank, 0
    if inputs.checkpoint:
        first_epoch = checkpoint.load(
            trainer, Path(inputs.checkpoint), moments=inputs.predict is None, rows=(inputs.trained or {}).get("rows")
        )
        done = checkpoint.describe(checkpoint.open_checkpoint(Path(inputs.checkpoint), verify=False).meta)
        print(f"rank {rank}: goes on after {done}", flush=True)
    elif config.init_from is not None and inputs.predict is None:
        checkpoint.fill(trainer, open_start(config), moments=False)
        print(f"rank {rank}: starts from the parameters in {config.init_from}", flush=True)
    if inputs.record is not None:
        from sargnn.training.record_worlds import Recorder

        recorder = Recorder(trainer)
        recorder.train(inputs.record["steps"], Path(inputs.record["parameters"]), follow=inputs.record["follow"])
        recorder.save(files.records_path(run_dir, rank))
    elif inputs.predict is not None:
        manifest = write_predictions(trainer, run_dir, **inputs.predict)
        if rank == 0:
            files.write_json(run_dir / MANIFEST, manifest | {"dataset_hash": inputs.dataset_hash})
    else:
        _train_and_report(job, trainer, choice, first_epoch)


def _train_and_report(job: _Job, trainer: Trainer, choice: Choice | None, first_epoch: int) -> None:
    config, inputs, group = job.config, job.inputs, job.group
    startup_time_s = time.time() - inputs.started_at
    rows, copies = f"{trainer.graph.num_inner} rows", trainer.graph.num_rows - trainer.graph.num_inner
    copied = f" and copies of {copies}" if trainer.graph.copies is not None else ""
    print(f"rank {group.rank}: {rows}{copied}, {len(trainer.graph.part.halo_ids)} halo rows", flush=True)
    if choice is not None:
        job.tell(*choice.lines())
    elif config.preload.name == "auto":
        job.tell(f"preload=auto: none. {config.model.no_preload or 'One server has all nodes.'}")
    flows = flow_rows(trainer)
    job.tell(*flow_lines(flows), *sharing_lines(trainer), *batch_lines(trainer))
    job.tell(*baseline_lines(config), *loss_lines(config, norms_over_rows=trainer.model.norms_over_rows))
    if config.comm.wire != "exact" and group.world > 1 and config.precision != "bf16":
        exact, rounded = trainer.loss_by_wire(first_epoch)
        part = f"{abs(rounded - exact) / abs(exact):.1e} of it" if exact else "of 0"
        job.tell(f"comm.wire={config.comm.wire} changes the first loss from {exact:.7g} to {rounded:.7g} ({part})")
    _train(job, trainer, first_epoch)
    figures = measure_results(trainer, group) | {"mfg": flows, "startup_time_s": startup_time_s}
    if figures["planned_train_bytes"] is None and len(inputs.planned_train_bytes or ()) == config.num_processes:
        figures["planned_train_bytes"] = inputs.planned_train_bytes
    figures["planned_alone_bytes"] = inputs.planned_alone_bytes
    job.tell(*planned_lines(figures))
    chosen = {"chosen": "none" if trainer.graph.copies is None else "shared"}
    figures["preload"] = chosen if choice is None else choice.as_dict()
    figures["memory_bytes"] = memory_parts(trainer, job.resident_bytes)
    private = group.gather(torch.tensor(job.private_bytes, dtype=torch.int64))
    figures["private_bytes_before_loading"] = [int(size) for size in private[:: group.world // config.num_processes]]
    if group.rank == 0:
        status, error = FINISHED, None
        if trainer.loop.stopped:
            status, error = INTERRUPTED, "A signal ended the run; its newest checkpoint has all steps so far."
        described = describe_run(job.run, job.info, inputs.git_sha)
        write_summary(job.run_dir, Summary(status=status, error=error, **described, **figures))


def _train(job: _Job, trainer: Trainer, first_epoch: int) -> None:
    """All epochs, then Correct & Smooth unless a signal has ended the run; rows, checkpoints and traces are written."""
    rank, run_dir = job.group.rank, job.run_dir
    said: list[str] = []

    def on_epoch(row: dict[str, Any]) -> None:
        if rank == 0:
            files.append_metrics(run_dir, row)
            for line in trainer.model.calls()[len(said) :]:
                print(line, flush=True)
                said.append(line)

    job.asked.go_to(trainer.loop.requests)
    listeners: list[Listener] = [Rows(on_epoch, spills=job.config.spills)]
    if trainer.optimization.parameters:
        listeners.append(checkpoint.Checkpoints(trainer, job.run, job.info.dataset_hash, run_dir))
    trainer.run(first_epoch, *listeners)
    if not trainer.loop.stopped:
        trainer.smooth()
    profile = trainer.engine.profile
    if profile.recording:
        files.write_json(run_dir / "traces" / f"rank_{rank:02d}.json", profile.trace(rank))
