"""Records of one worker against those of several: the first tensor that differs, and what to do about it.

A result that is not equal on all workers but should be, or rows of nodes or edges that differ, settle the matter. Other things
may depend on the rows of a worker without harm, such as zeros for its rows: they are named as the cause only where what was
computed from them differs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from sargnn.training.record_worlds import (
    BUFFER,
    EVALUATION,
    FORWARD,
    GRADIENT,
    LOSS,
    OUTPUT,
    PARAMETER,
    Entry,
    Noted,
    Records,
)

TOLERANCES = {"fp64": 1e-9, "fp32": 1e-4}
"""Of a tensor's norm: what is no more than rounding."""
_FLOORS = {"fp64": 1e-6, "fp32": 1e-3}
"""Elements below it may be nothing but rounding, as where a tensor minus its mean is 0."""
_PART_OF_LARGEST = 0.1
"""Of the largest gradient's norm, which a smaller one is measured by: a bias in front of a batch norm has rounding alone."""
_OF_THE_MODULE = (FORWARD, EVALUATION)
_RANDOM = frozenset(
    "rand randn randint randperm normal bernoulli multinomial poisson rand_like randn_like uniform_ normal_ bernoulli_ random_ "
    "exponential_ dropout alpha_dropout".split()
)
_NUMBERS = frozenset("arange linspace tensor as_tensor full zeros ones empty eye new_zeros new_ones new_full new_empty".split())
_ORDERED = frozenset(
    "softmax log_softmax softmin cumsum cumprod cummax cummin logcumsumexp sort argsort topk msort unique unique_consecutive "
    "searchsorted normalize conv1d conv2d conv3d lstm gru rnn_tanh rnn_relu multi_head_attention_forward "
    "scaled_dot_product_attention instance_norm group_norm batch_norm diff roll flip nonzero".split()
)
_BRANCHES = (
    "workers call different functions from here on: the way taken depends on a worker's rows; let it depend on the graph's "
    "num_nodes() and num_edges() == 0, or on any(), all(), max() of rows, which are answered for all workers"
)
_RANDOM_HINT = (
    "random numbers for a worker's rows come out otherwise on each worker: use nn.Dropout or F.dropout, drawn by original id, "
    "or draw numbers of a fixed shape"
)
_REDUCED_HINT = (
    "a worker has only its own rows, so that a sum, mean or product over them is not that of the graph: take it through the "
    "graph (update_all), or use nn.BatchNorm1d, whose statistics are over all workers"
)
_ORDERED_HINT = (
    "it works along the rows, and a worker has only its own, in an order of its own: work along dim 1, through the graph "
    "(edge_softmax, update_all), or with nn.BatchNorm1d"
)
_NUMBERS_HINT = (
    "it is made for the number or the order of a worker's rows: make it from rows of the graph, such as x[:, :1] * 0, or from "
    "the original ids in graph.ndata['_ID']"
)
_OUTSIDE_HINT = (
    "what it is made from agrees, so that something outside of PyTorch steers it: random numbers of numpy or Python, the time, "
    "the rank, a counter of calls, or the number of a worker's rows"
)
_STATE_HINT = (
    "the steps before agree: state that is kept between calls, or random numbers of numpy or Python, can make such a "
    "difference; keep state in parameters, or in buffers that every worker computes alike"
)
_OF_RESULTS = {
    OUTPUT: "forward's own results agree, so that the output was changed outside of PyTorch's functions, such as through numpy",
    LOSS: "the output agrees: report this, the loss is not computed by the module",
    GRADIENT: "forward agrees: a hook (register_hook), an own autograd.Function, autograd.grad or a write to .data in forward "
    "works on this worker's rows alone",
    BUFFER: "forward writes a number of this worker's rows into a buffer: use nn.BatchNorm1d's running statistics, or a number "
    "that all workers have",
    PARAMETER: "gradients agree: forward writes to the parameter itself, from this worker's rows",
}


@dataclass(frozen=True)
class Difference:
    """A tensor that differs between worlds.

    Attributes:
        shapes: on each of the several workers.
        size: of the difference, as a part of the tensor's norm; None where not even the shapes or rows are the same.
        reaches: results that differ too, in any step: outputs, losses, gradients, parameters, buffers.
        suspected: it may depend on the worker's rows without harm; what was computed from it differs.
    """

    entry: Entry
    shapes: tuple[tuple[int, ...], ...]
    size: float | None
    hint: str = ""
    reaches: tuple[str, ...] = ()
    suspected: bool = False


@dataclass(frozen=True)
class Outcome:
    """How many tensors were compared, the first difference, if any, and the largest as a share of its tensor's norm."""

    compared: int
    first: Difference | None
    largest: float = 0.0


@dataclass
class _Walk:
    """Differences so far, by the number of the entry in the order of the one worker."""

    compared: int = 0
    settled: dict[int, Difference] = field(default_factory=dict)
    suspected: dict[int, Difference] = field(default_factory=dict)
    largest: float = 0.0


def compare_records(single: Records, several: Sequence[Records], precision: str) -> Outcome:
    walk = _Walk()
    gradients: dict[int, dict[str, np.ndarray]] = {}  # step -> parameter -> what was noted of its gradient
    for entry, own in zip(single.entries, single.noted, strict=True):
        if entry.during == GRADIENT:
            gradients.setdefault(entry.step, {})[entry.what] = own.values
    places = [0] * (1 + len(several))
    everyone = [single, *several]
    while all(place < len(records.entries) for place, records in zip(places, everyone, strict=True)):
        entries = [records.entries[place] for place, records in zip(places, everyone, strict=True)]
        if len({(entry.step, entry.during, entry.what, entry.place) for entry in entries}) > 1:
            branch = Difference(entries[0], tuple(entry.shape for entry in entries[1:]), None, _BRANCHES, suspected=True)
            walk.suspected[places[0]] = branch
            places = [_next_result(records, place) for place, records in zip(places, everyone, strict=True)]
            continue
        noted = [records.noted[place] for place, records in zip(places, everyone, strict=True)]
        difference, size = _compare(entries, noted, precision, gradients)
        if size is not None:
            walk.largest = max(walk.largest, size)
        if difference is not None:
            (walk.suspected if difference.suspected else walk.settled)[places[0]] = difference
        walk.compared += 1
        places = [place + 1 for place in places]
    return Outcome(walk.compared, _first(single, walk), walk.largest)


def _next_result(records: Records, place: int) -> int:
    """Where workers have called different functions: the next entry that all have again."""
    while place < len(records.entries) and records.entries[place].during in _OF_THE_MODULE:
        place += 1
    return place


def _first(single: Records, walk: _Walk) -> Difference | None:
    if not walk.settled:
        return None
    number = min(walk.settled)
    first = walk.settled[number]
    cause = _cause(single, number, walk) if first.entry.kind != "same" or first.entry.during == OUTPUT else None
    if cause is not None:
        first = walk.suspected[cause]
    results = [difference.entry.during for difference in walk.settled.values() if difference.entry.during not in _OF_THE_MODULE]
    call = (first.entry.what, first.entry.place)
    earlier = any(entry.step < first.entry.step and (entry.what, entry.place) == call for entry in single.entries)
    return Difference(
        first.entry,
        first.shapes,
        first.size,
        first.hint or _hint_for(first.entry, earlier=earlier),
        tuple(dict.fromkeys(results)),
        first.suspected,
    )


def _cause(single: Records, number: int, walk: _Walk) -> int | None:
    """The first suspected tensor that this one was computed from; the last one before it where that is not known."""
    todo, seen = [number], {number}
    while todo:
        for before in single.entries[todo.pop()].inputs:
            if before not in seen:
                seen.add(before)
                todo.append(before)
    if causes := sorted(seen & walk.suspected.keys()):
        return causes[0]
    entry = single.entries[number]
    if (entry.inputs or entry.of_rows) and entry.during != OUTPUT:
        return None
    earlier = [place for place in walk.suspected if place < number and single.entries[place].step == entry.step]
    return earlier[-1] if earlier else None


def _compare(
    entries: Sequence[Entry], noted: Sequence[Noted], precision: str, gradients: dict[int, dict[str, np.ndarray]]
) -> tuple[Difference | None, float | None]:
    """How a tensor differs, the one worker's first; None: by rounding at most. And by how much, where that can be told."""
    entry, (single, *several) = entries[0], noted
    shapes = tuple(other.shape for other in entries[1:])

    def differs(size: float | None, *, suspected: bool = False) -> tuple[Difference | None, float | None]:
        beyond = size is None or size > TOLERANCES[precision]
        return Difference(entry, shapes, size, suspected=suspected) if beyond else None, size

    if any(other.kind != entry.kind for other in entries[1:]):
        return differs(None, suspected=True)
    floor = _FLOORS[precision] * math.sqrt(max(single.values.size, 1))
    own_step = gradients.get(entry.step, {})
    if entry.during == GRADIENT:
        floor = _PART_OF_LARGEST * max(float(np.linalg.norm(values)) for values in own_step.values())
    if entry.kind in ("nodes", "edges"):
        rows, ids = (np.concatenate(arrays) for arrays in zip(*((other.values, _ids(other)) for other in several), strict=True))
        joined = _sorted(Noted(rows, ids))
        own = _sorted(single)
        if not np.array_equal(own[0], joined[0]):
            return differs(None, suspected=entry.during in _OF_THE_MODULE)
        return differs(_distance(own[1], joined[1], floor))
    if entry.kind == "loose" or any(shape != entry.shape for shape in shapes):
        sums = [other.sums for other in noted]
        total = np.sum([other for other in sums[1:] if other is not None], 0)
        assert sums[0] is not None
        return differs(_distance(sums[0], total, floor), suspected=True)
    kept: slice | np.ndarray = slice(None)
    if entry.during == PARAMETER and entry.what in own_step:
        largest = max(float(np.abs(values).max(initial=0)) for values in own_step.values())
        kept = np.abs(own_step[entry.what]) > _FLOORS[precision] * largest
    return differs(max(_distance(single.values[kept], other.values[kept], floor) for other in several))


def _sorted(noted: Noted) -> tuple[np.ndarray, np.ndarray]:
    """Ids, ascending, and values in that order."""
    order = np.argsort(_ids(noted), kind="stable")
    return _ids(noted)[order], noted.values[order]


def _ids(noted: Noted) -> np.ndarray:
    assert noted.ids is not None
    return noted.ids


def _distance(first: np.ndarray, other: np.ndarray, floor: float) -> float:
    """Of two arrays of one shape: the norm of the difference over that of the larger one, or over ``floor``."""
    difference = float(np.linalg.norm(first - other))
    if difference == 0:
        return 0.0
    return difference / max(float(np.linalg.norm(first)), float(np.linalg.norm(other)), floor)


def _hint_for(entry: Entry, *, earlier: bool) -> str:
    """``earlier``: the same call agrees in a step before."""
    if entry.during in _OF_RESULTS:
        return _OF_RESULTS[entry.during]
    if entry.what in _RANDOM:
        return _RANDOM_HINT
    if entry.what in _NUMBERS and entry.kind == "same":
        return _NUMBERS_HINT
    if entry.what in _ORDERED:
        return _ORDERED_HINT
    if earlier:
        return _STATE_HINT
    return _REDUCED_HINT if entry.kind == "same" and entry.of_rows else _OUTSIDE_HINT
