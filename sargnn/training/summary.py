"""What a run's workers put into ``summary.json`` (``tracking.summary``)."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from statistics import median
from typing import Any

import torch

from sargnn.backends.device import device_of
from sargnn.comm.group import Group
from sargnn.config.losses import losses_depend_on
from sargnn.config.run import RunConfig
from sargnn.partition.store import PartitionInfo
from sargnn.tasks.kinds import summary_columns
from sargnn.tracking.memory import PARTS, PeakMeter, human_bytes, split_peak
from sargnn.tracking.provenance import cpu_model, usable_cores, versions
from sargnn.training.history import History
from sargnn.training.steps import DrawnSteps, MicroBatches, OneStep, count_rows
from sargnn.training.trainer import Trainer


def describe_run(config: RunConfig, info: PartitionInfo, git_sha: str | None) -> dict[str, Any]:
    """What is known before training: what runs, on what, made by what."""
    cut = config.partitioner
    if cut.target is None and cut.name == "auto":
        cut = cut.as_candidate(info.partitioner)
    return {
        "world": config.world,
        "processes": config.num_processes,
        "mode": config.mode.name,
        "model": config.model.name,
        "dataset": config.dataset.title_of(info.dataset_name),
        "partitioner": {"name": cut.name, "balance": cut.balance},
        "edge_weights": info.weights is not None and config.dataset.edge_weights,
        "edge_cut": info.stats.edge_cut,
        "halo_rows": info.stats.halo_rows,
        "partition_time_s": info.partition_time_s,
        "config_hash": config.config_hash,
        "dataset_hash": info.dataset_hash,
        "partition_hash": info.partition_hash,
        "git_sha": git_sha,
        "versions": versions(),
        "cpu": cpu_model(),
        "cores": usable_cores(),
        "gpu": device_of(config.device).name,
    }


def sharing_lines(trainer: Trainer) -> list[str]:
    """What of rows and partial results travels in a layer's forward pass, for the log. Every rank must call it."""
    if trainer.config.world == 1 or not trainer.engine.mode.takes_partials or trainer.config.comm.aggregate == "post":
        return []
    if trainer.loop.steps.drawn:  # where only rows travel
        return []
    lines: dict[str, list[int]] = {}
    for number, (plan, why) in enumerate(
        zip(trainer.training.flow.plans, trainer.model.why_rows(trainer.engine), strict=True), start=1
    ):
        line = None if why is None else f"only rows travel: {why}"
        if plan.partials is not None:
            counts = [plan.halo_rows, plan.partials.lists.all_wanted, plan.partials.halo_rows]
            rows, results, before = trainer.engine.group.sum_(torch.tensor(counts)).tolist()
            line = f"{rows} rows and {results} partial results travel, in place of {before} rows"
        if line is not None:
            lines.setdefault(line, []).append(number)
    return [f"layer {', '.join(map(str, numbers))}: {line}" for line, numbers in lines.items()]


def flow_rows(trainer: Trainer) -> dict[str, list[dict[str, int]]] | None:
    """What every layer computes and reads with message-flow graphs, over all workers; None without. Every rank must call it."""
    if not trainer.config.mfg:
        return None
    views = {"evaluation": trainer.evaluation}
    if _micro_batches(trainer) is None and not trainer.loop.steps.drawn:
        views = {"training": trainer.training, **views}
    group = trainer.engine.group
    return {name: [dataclasses.asdict(layer) for layer in count_rows(view, group)] for name, view in views.items()}


def flow_lines(flows: dict[str, list[dict[str, int]]] | None) -> list[str]:
    return [
        f"message flow, {name}, layer {number}: computes {layer['rows']} rows from {layer['input_rows']} and "
        f"{layer['halo_rows']} halo rows over {layer['edges']} edges"
        for name, layers in (flows or {}).items()
        for number, layer in enumerate(layers, start=1)
    ]


def planned_lines(figures: dict[str, Any]) -> list[str]:
    """What training was to hold at most beside what it held, for the log."""
    if figures["planned_train_bytes"] is None:
        return []
    pairs = zip(figures["planned_train_bytes"], figures["peak_train_bytes"], strict=True)
    return [
        f"rank {rank}: training held at most {human_bytes(peak)}, planned {human_bytes(planned)}"
        f" ({planned / max(peak, 1) - 1:+.1%})"
        for rank, (planned, peak) in enumerate(pairs)
    ]


def _micro_batches(trainer: Trainer) -> MicroBatches | None:
    """Those that come again in every epoch."""
    steps = trainer.loop.steps
    return steps.all if isinstance(steps, OneStep) and isinstance(steps.all, MicroBatches) else None


def _batches(trainer: Trainer) -> dict[str, Any] | None:
    """What micro-batches computed, of drawn ones those of the last step; None without. Every rank must call it."""
    micro, steps = _micro_batches(trainer), trainer.loop.steps
    if micro is not None:
        stats = micro.stats
    elif isinstance(steps, DrawnSteps):
        stats = steps.stats()
    else:
        return None
    return {
        "steps": steps.count,
        "count": len(stats.layers),
        "by": trainer.config.batches.by,
        "keep_layers": trainer.engine.keep_layers,
        "redundancy": stats.redundancy,
        "layers": [[dataclasses.asdict(layer) for layer in layers] for layers in stats.layers],
        "distinct_rows": list(stats.distinct),
    }


def batch_lines(trainer: Trainer) -> list[str]:
    """What was tried for the memory budget, and what micro-batches compute, for the log."""
    lines = list(trainer.remarks)
    if isinstance(trainer.loop.steps, DrawnSteps):
        batches, sample, edges = trainer.config.batches, trainer.config.sample, "all edges"
        if trainer.config.samples:
            when = "drawn once" if sample.every == "run" else f"drawn anew every {sample.every}"
            edges = f"samples of {sample.fanouts} edges, {when}"
        steps = "1 step an epoch" if batches.steps == 1 else f"{batches.steps} steps an epoch"
        lines.append(f"{steps}{'' if batches.count == 1 else f' in micro-batches by {batches.by}'}, {edges}")
    if (micro := _micro_batches(trainer)) is not None:
        stats, count = micro.stats, len(micro)
        by = trainer.config.batches.by
        lines.append(f"{count} micro-batches by {by}: rows computed / distinct rows {stats.redundancy:.2f}")
        for number, layers in enumerate(stats.layers, start=1):
            rows = ", ".join(f"{layer.rows} rows over {layer.edges} edges" for layer in layers)
            lines.append(f"micro-batch {number}: by layer {rows}")
    return lines


def memory_parts(trainer: Trainer, base_bytes: int) -> dict[str, list[int]]:
    """Every process's largest resident set by its parts (``tracking.memory.split_peak``); every rank must call it.

    ``base_bytes``: this process's resident set before its parts were opened.
    """
    views = (trainer.loop.steps.last_view, trainer.evaluation, trainer.builder.whole_view)
    gathered = [view.inputs for view in views if view is not None and view.inputs is not None]
    here = trainer.engine.place.is_host  # else only what is mapped from the store is resident
    tables = [trainer.rows, *trainer.model.inputs.held(), *gathered] if here else []
    bytes_at = {table.ctypes.data: table.nbytes for table in trainer.graph.part.features}
    bytes_at |= {storage.data_ptr(): storage.nbytes() for storage in (table.untyped_storage() for table in tables)}
    embeddings = sum(table.nbytes for table in trainer.optimization.sharded) if here else 0  # runs of the rows
    parameters = sum(parameter.nbytes for parameter in trainer.model.parameters()) if here else 0
    meter = trainer.meter
    counted = [sum(bytes_at.values()) - embeddings, parameters]
    measured = [base_bytes, meter.baseline_bytes, meter.process_peak_bytes, meter.training_bytes]
    every = torch.stack(trainer.engine.group.gather(torch.tensor([*counted, *measured], dtype=torch.int64)))
    of_processes = every.unflatten(0, (trainer.config.num_processes, -1))
    features_and_parameters, of_meters = of_processes[:, :, :2].sum(1), of_processes[:, :, 2:].amax(1)
    parts = [
        split_peak(base, features, parameters, PeakMeter(baseline, peak, training))
        for (features, parameters), (base, baseline, peak, training) in zip(
            features_and_parameters.tolist(), of_meters.tolist(), strict=True
        )
    ]
    return {name: [of_process[name] for of_process in parts] for name in PARTS}


def _of_all(group: Group, recorded: dict[str, float]) -> dict[str, list[float]]:
    """What every rank has recorded under these names; all of them record the same ones."""
    if not recorded:
        return {}
    numbers = torch.tensor(list(recorded.values()), dtype=torch.float64)
    return dict(zip(recorded, torch.stack(group.gather(numbers)).T.tolist(), strict=True))


def _steady(values: Sequence[float]) -> float | None:
    """Median over the epochs after the first (which warms up), or of the only one; None where no epoch has ended."""
    return float(median(values[1:] or values)) if values else None


def measure_results(trainer: Trainer, group: Group) -> dict[str, Any]:
    """What was measured; every rank must call it."""
    history: History = trainer.loop.history
    peaks = torch.tensor(
        [
            trainer.meter.process_peak_bytes,
            history.peak_train_bytes,
            history.peak_evaluate_bytes,
            history.peak_smooth_bytes,
        ],
        dtype=torch.int64,
    )
    every = torch.stack(group.gather(peaks)).unflatten(0, (trainer.config.num_processes, -1)).amax(1)
    disk = None
    if trainer.config.spills:
        on_disk = torch.stack(group.gather(torch.tensor(trainer.engine.pool.on_disk)))
        disk = on_disk.unflatten(0, (trainer.config.num_processes, -1)).amax(1).tolist()
    sharded = [int(count) for count in group.gather(torch.tensor(sum(p.numel() for p in trainer.optimization.sharded)))]
    profiles, cpu, works, shard_cpu, shard_edges = (
        _of_all(group, recorded)
        for recorded in (history.profile_s, history.cpu_s, history.work, history.shard_cpu_s, history.shard_edges)
    )
    peers = torch.tensor([history.waited_s.get(str(peer), 0.0) for peer in range(group.world)], dtype=torch.float64)
    waits = [rank_waits.tolist() for rank_waits in group.gather(peers)]
    if trainer.loop.steps.drawn:  # whether aggregates of constant rows were computed once
        holds_constants = trainer.loop.steps.holds_constants
    else:
        holds_constants = trainer.engine.holds_constants or trainer.training.flow.plans[0].constant is not None
    loss_settings = losses_depend_on(trainer.config, norms_over_rows=trainer.model.norms_over_rows)
    return {
        "losses": history.losses,
        **summary_columns(
            history.task, history.metric, history.scores, history.best_val, history.test_at_best_val, history.smoothed
        ),
        "metrics": trainer.task.measured or None,
        "smooth_time_s": history.smooth_time_s,
        "epoch_time_s": _steady(history.epoch_times_s),
        "evaluate_time_s": _steady(history.evaluate_times_s),
        "compute_time_s": _steady(history.compute_times_s),
        "comm_wait_time_s": _steady(history.wait_times_s),
        "comm_bytes_per_epoch": history.epoch_bytes[-1] if history.epoch_bytes else None,
        "between_servers_bytes_per_epoch": history.between_bytes[-1] if history.between_bytes else None,
        "between_servers_wait_s": _steady(history.between_waits_s),
        "disk_written_per_epoch": history.written_bytes[-1] if disk and history.written_bytes else None,
        "disk_read_per_epoch": history.read_bytes[-1] if disk and history.read_bytes else None,
        "disk_wait_s": _steady(history.disk_waits_s) if disk else None,
        "disk_bytes": disk,
        "servers": group.servers,
        "peak_rss_bytes": every[:, 0].tolist(),
        "peak_train_bytes": every[:, 1].tolist(),
        "peak_evaluate_bytes": every[:, 2].tolist(),
        "peak_smooth_bytes": every[:, 3].tolist() if history.smoothed else None,
        "profile_s": profiles or None,
        "profile_cpu_s": cpu or None,
        "profile_work": works or None,
        "profile_shard_cpu_s": shard_cpu or None,
        "profile_shard_edges": shard_edges or None,
        "profile_wait_s": waits if profiles and group.world > 1 else None,
        "hosts": [host.name for host in group.hosts] or None,
        "cache_static": holds_constants,
        "planned_train_bytes": None if trainer.planned_bytes is None else list(trainer.planned_bytes),
        "batches": _batches(trainer),
        "kernel": "+".join(sorted(trainer.model.kernels(trainer.engine))),
        "losses_depend_on": [setting.as_dict() for setting in loss_settings],
        "num_params": sum(p.numel() for p in trainer.optimization.replicated) + sum(sharded),
        "sharded_params": sharded,
    }
