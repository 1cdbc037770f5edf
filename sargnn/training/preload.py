"""Whether it pays that servers preload: ``preload=auto``.

Song et al. (2023, equations 3 to 7) compare what a step takes without preloading, where rows travel between servers, and with
it, where servers compute them again. In their letters, with C the rate of computing and B of sending:

    T_prev    = V / (Ns Ng C) + bytes inside / B_internal + bytes between / B_external
    T_preload = V D^(alpha L) / (Ns Ng C) + bytes inside / B_internal

Here rows, edges and bytes of both are counted in the plans of this run's model and parts. T_preload is measured, as a step on
the preloaded parts, and so is C, as the seconds t_k of each kind k of work in it: linear maps, aggregation, what stands between
layers. With w_k the amounts of work, and E and I the bytes of rows that a worker sends to other servers and inside its own,

    T_prev - wait(prev) = T_preload - wait(preload) - sum over k of t_k (1 - w_k(prev) / w_k(preload))
    wait = max(0, max(E / B_external, I / B_internal) - t_aggregation)

for rows travel on both kinds of links at the same time, and aggregation goes on meanwhile. Copies of learned rows travel in a
preloaded step alone: what their bytes take is no part of T_prev. Losses are the same either way, but for the roundings of
``comm.wire=bf16``.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Collection
from contextlib import closing
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sargnn.comm.group import Group
from sargnn.comm.lists import HaloLists, PartialLists
from sargnn.comm.rates import Rates, measure_rates
from sargnn.models.base import Model
from sargnn.models.stack import GraphLayer
from sargnn.plan.layer_plan import LayerPlan
from sargnn.profile import AGGREGATION, LINEAR, NODEWISE
from sargnn.tracking.memory import human_bytes
from sargnn.training.trainer import Trainer

_TRIALS = 3
_KINDS = (LINEAR, AGGREGATION, NODEWISE)


@dataclass(frozen=True)
class Amounts:
    """What a step computes, by kind of work, in no unit that means anything elsewhere, and the most bytes of rows that a worker
    sends inside its server and to others. ``copied``: of learned rows and their gradients, for the sake of copies.
    """

    work: dict[str, float]
    inside: float
    between: float
    copied: float


@dataclass(frozen=True)
class Choice:
    """What is better: seconds and amounts of a step without preloading (``flat``) and with it.

    ``by_kind``: seconds of a preloaded step by kind of work.
    """

    preload: bool
    flat_s: float
    preload_s: float
    rates: Rates
    flat: Amounts
    preloaded: Amounts
    by_kind: dict[str, float]

    def lines(self) -> list[str]:
        more = {kind: self.preloaded.work[kind] / max(self.flat.work[kind], 1e-9) for kind in _KINDS}
        inside = "" if self.rates.inside is None else f", inside a server {human_bytes(self.rates.inside)}/s"
        kinds = ", ".join(f"{more[kind]:.2f} times the {kind} ({self.by_kind[kind]:.3g} s)" for kind in _KINDS)
        took = f"{self.preload_s:.3g} s with shared preloading (measured) and {self.flat_s:.3g} s without (computed)"
        return [
            f"preload=auto: {'shared' if self.preload else 'none'}, for a step takes {took}",
            f"  between servers each worker sends {human_bytes(self.rates.between or 0)}/s{inside} (measured)",
            f"  without: {human_bytes(self.flat.between)} of rows from each worker to other servers in a step",
            f"  with: {kinds}",
        ]

    def as_dict(self) -> dict[str, float | str | None]:
        """For ``summary.json``."""
        return {
            "chosen": "shared" if self.preload else "none",
            "step_s_with": self.preload_s,
            "step_s_without": self.flat_s,
            "between_servers_bytes_per_s": self.rates.between,
            "inside_servers_bytes_per_s": self.rates.inside,
            "between_servers_bytes": self.flat.between,
            **{f"{kind}, with / without": self.preloaded.work[kind] / max(self.flat.work[kind], 1e-9) for kind in _KINDS},
        }


def choose(group: Group, make_flat: Callable[[], Trainer], make_preloaded: Callable[[], Trainer]) -> tuple[Trainer, Choice]:
    """The trainer that takes less time, not trained yet; all ranks must call it."""
    rates = measure_rates(group)
    with closing(make_flat()) as trainer:
        flat, overlaps = amounts(trainer), trainer.engine.exchange.prefetch_depth > 0 and trainer.engine.mode.takes_partials
    del trainer
    trainer = make_preloaded()
    try:
        preloaded = amounts(trainer)
        preload_s, by_kind = _trial(trainer)
    except BaseException:
        trainer.close()
        raise
    ratio = {kind: flat.work[kind] / max(preloaded.work[kind], 1e-9) for kind in _KINDS}
    flat_s = preload_s - sum(by_kind[kind] * (1 - ratio[kind]) for kind in _KINDS)
    if rates.between is not None:
        flat_s -= preloaded.copied / rates.between
    flat_s -= _wait(preloaded, rates, by_kind[AGGREGATION] if overlaps else 0.0)
    flat_s += _wait(flat, rates, by_kind[AGGREGATION] * ratio[AGGREGATION] if overlaps else 0.0)
    choice = Choice(preload_s < flat_s, flat_s, preload_s, rates, flat, preloaded, by_kind)
    if not choice.preload:
        trainer.close()
        del trainer
        trainer = make_flat()
    group.traffic.reset()
    return trainer, choice


def _wait(amounts: Amounts, rates: Rates, hidden_s: float) -> float:
    """Seconds that a worker waits for rows in a step. ``hidden_s``: that they travel while it does something else."""
    between = 0.0 if rates.between is None else amounts.between / rates.between
    inside = 0.0 if rates.inside is None else amounts.inside / rates.inside
    return max(0.0, max(between, inside) - hidden_s)


def amounts(trainer: Trainer) -> Amounts:
    """What the first step computes and sends; all ranks must call it."""
    engine, group = trainer.engine, trainer.engine.group
    layers = [module for module in trainer.model.modules() if isinstance(module, GraphLayer)]
    weights = [sum(parameter.numel() for parameter in layer.parameters() if parameter.dim() > 1) for layer in layers]
    of_inputs, others = _outside(trainer.model, layers)
    copies, inputs = trainer.graph.copies, trainer.model.inputs
    copied = copies.moved_rows() * inputs.width * engine.dtype.itemsize if copies and inputs.sharded() else 0
    work, sent = dict.fromkeys(_KINDS, 0.0), [0, 0, 0]
    trainer.loop.steps.begin(0)
    for view in trainer.loop.steps.views(0):
        plans = view.flow.plans
        work[LINEAR] += of_inputs * plans[0].num_rows + others * plans[-1].num_out
        sent[2] += copied
        for layer, plan, numbers in zip(layers, plans, weights, strict=True):
            first = layer.uses_edges and layer.transforms_first(plan.counts)
            work[LINEAR] += numbers * (plan.num_out + (plan.num_rows if first else plan.num_out)) / 2
            work[NODEWISE] += plan.num_out * layer.out_width
            if not layer.uses_edges:
                continue
            again = not (layer.constant_input and engine.caches_constants) or layer.exchanged_needs_grad
            widths = layer.exchanged_widths(plan.counts)
            work[AGGREGATION] += plan.num_edges * sum(widths) * again
            if not again:
                continue
            mates = group.mates if plan.world == group.world else range(plan.world)
            for place, towards in enumerate((_towards(plan, mates), _towards(plan, set(range(plan.world)) - set(mates)))):
                sent[place] += engine.mode.wire_bytes(
                    towards,
                    layer.reducer_on(plan),
                    widths,
                    engine.dtype,
                    engine.exchange.wire,
                    exchanged_needs_grad=layer.exchanged_needs_grad,
                )
    trainer.loop.steps.forget()
    totals = group.sum_(torch.tensor([work[kind] for kind in _KINDS], dtype=torch.float64)).tolist()
    most = torch.stack(group.gather(torch.tensor(sent, dtype=torch.float64))).amax(0).tolist()
    return Amounts(dict(zip(_KINDS, totals, strict=True)), *most)


def _outside(model: Model, layers: list[GraphLayer]) -> tuple[int, int]:
    """How many numbers the linear maps have that are in no layer: those of the inputs, and the others."""
    inside = {module for layer in layers for module in layer.modules()}
    maps = [module for module in model.modules() if isinstance(module, nn.Linear) and module not in inside]
    total, before = (sum(linear.weight.numel() for linear in some) for some in (maps, set(maps) & set(model.inputs.modules())))
    return before, total - before


def _towards(plan: LayerPlan, some: Collection[int]) -> LayerPlan:
    """The plan as if rows travelled between this worker and these peers only; for counting."""
    lists, partials = plan.lists, plan.partials
    nothing: Tensor = torch.zeros(0, dtype=torch.int32)
    kept = HaloLists(
        tuple(rows if peer in some else nothing for peer, rows in enumerate(lists.send_rows)),
        tuple(count if peer in some else 0 for peer, count in enumerate(lists.receive_rows)),
        lists.message_rows,
    )
    if partials is not None:
        asked = partials.lists
        less = PartialLists(
            tuple(rows if peer in some else nothing for peer, rows in enumerate(asked.wanted_rows)),
            tuple(count if peer in some else 0 for peer, count in enumerate(asked.served_rows)),
            asked.message_rows,
        )
        partials = dataclasses.replace(partials, lists=less)
    return dataclasses.replace(plan, lists=kept, partials=partials)


def _trial(trainer: Trainer) -> tuple[float, dict[str, float]]:
    """The median seconds of a step, and those of each kind of work in it, of the slowest worker; nothing is trained."""
    group, profile = trainer.engine.group, trainer.engine.profile
    buffers = [buffer.clone() for buffer in trainer.model.buffers()]
    trainer.model.train()
    trainer.engine.epoch = 0
    rows = []
    recording, profile.recording = profile.recording, True
    try:
        for trial in range(1 + _TRIALS):
            before, started = dict(profile.own_s), time.perf_counter()
            trainer.take_trial_step()
            figures = [time.perf_counter() - started, *(profile.own_s[kind] - before[kind] for kind in _KINDS)]
            if trial:  # the first one computes constants, and finds its memory
                rows.append(torch.stack(group.gather(torch.tensor(figures, dtype=torch.float64))).amax(0))
    finally:
        profile.recording = recording
        profile.forget()
    with torch.no_grad():
        for buffer, value in zip(trainer.model.buffers(), buffers, strict=True):
            buffer.copy_(value)
    medians = torch.stack(rows).median(0).values.tolist()
    return medians[0], dict(zip(_KINDS, medians[1:], strict=True))
