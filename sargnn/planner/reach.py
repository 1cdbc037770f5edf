"""What views compute on every worker, counted in one process: nodes are marked over the whole graph, layer by layer.

As ``shards.mfg`` and ``shards.drawn`` do with an exchange for each layer, from the last one to the first:

    O_L = wanted nodes        O_(l-1) = I_l = O_l + sources of the (chosen) edges into O_l

Letters: N own rows of a worker, V nodes of the graph, L layers, K views, P workers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from sargnn.planner.cut_edges import Messages
from sargnn.planner.opened import Opened, OpenParts
from sargnn.shards.in_edges import Sample
from sargnn.shards.plan import RowCounts
from sargnn.training.account.sizes import Key, Sizes

_NEVER = -1
Serving = Callable[[np.ndarray, np.ndarray, tuple[RowCounts, ...]], Sequence[Messages] | None]
"""What travels in each layer's exchange, from the last layer that computes each node (int16 [V]), each worker's edges into the
rows of each layer (int64 [P, L]) and the counts of rows; None: every row that is read."""


@dataclass(frozen=True)
class Wanted:
    """What a view is for.

    Attributes:
        nodes: int64, whose outputs are wanted. sample: which edges are kept; None: all.
        uses_edges: per layer, whether it aggregates.
        hidden: int64, nodes that all layers but the last compute in any case.
    """

    nodes: np.ndarray
    sample: Sample | None
    uses_edges: tuple[bool, ...]
    hidden: np.ndarray | None = None


@dataclass(frozen=True)
class Reached:
    """A view on one worker.

    Attributes:
        sizes: of the view. counts: per layer, its rows over all workers that exchange rows with this one.
        messages: per layer, what travels between all of them.
    """

    sizes: Sizes
    counts: tuple[RowCounts, ...]
    messages: tuple[Messages, ...]


def reach(
    parts: OpenParts,
    ranks: range,
    views: Sequence[Wanted],
    weight_bytes: int,
    buffer_bytes: int,
    serving: Serving | None = None,
) -> list[list[Reached]]:
    """What each of some views has on each of some workers, which exchange rows with each other only.

    Args:
        weight_bytes: of an edge's weight where the parts have any.
        buffer_bytes: of marks; as many views are looked at together as they suffice for.
        serving: what travels where it is not every row that is read.

    Returns:
        By view, by worker.
    """
    at_once = max(1, buffer_bytes // (2 * parts.num_nodes))
    by_view: list[list[Reached]] = []
    for first in range(0, len(views), at_once):
        by_view += _reach(parts, ranks, views[first : first + at_once], weight_bytes, serving)
    return by_view


def _reach(
    parts: OpenParts, ranks: range, views: Sequence[Wanted], weight_bytes: int, serving: Serving | None
) -> list[list[Reached]]:
    depths = [_begin(parts.num_nodes, wanted) for wanted in views]
    num_layers = len(views[0].uses_edges) if views else 0
    edges = np.zeros((len(views), len(ranks), num_layers), np.int64)
    halo = np.zeros_like(edges)
    for layer in range(num_layers, 0, -1):
        for place, rank in enumerate(ranks if any(wanted.uses_edges[layer - 1] for wanted in views) else ()):
            opened = parts[rank]
            for number, (view, depth) in enumerate(zip(views, depths, strict=True)):
                if not view.uses_edges[layer - 1]:
                    continue
                outputs = depth[opened.read_ids[: len(opened.inner)]] >= layer
                read, edges[number, place, layer - 1] = opened.sources(outputs, layer - 1, view.sample)
                halo[number, place, layer - 1] = read[len(opened.inner) :].sum()
                nodes = opened.read_ids[read]
                depth[nodes[depth[nodes] < layer - 1]] = layer - 1
    by_rank = []
    for place, rank in enumerate(ranks):
        opened, own = parts[rank], []
        for number, (view, depth) in enumerate(zip(views, depths, strict=True)):
            own.append(_sizes(opened, depth, view, edges[number, place], halo[number, place], weight_bytes))
        by_rank.append(own)
    return [_joined([own[number] for own in by_rank], depths[number], edges[number], serving) for number in range(len(views))]


def _begin(num_nodes: int, view: Wanted) -> np.ndarray:
    depth, num_layers = np.full(num_nodes, _NEVER, np.int16), len(view.uses_edges)
    if view.hidden is not None:
        depth[view.hidden] = num_layers - 1
    depth[view.nodes] = num_layers
    return depth


def _sizes(opened: Opened, depth: np.ndarray, view: Wanted, edges: np.ndarray, halo: np.ndarray, weight_bytes: int) -> Sizes:
    own, types = depth[np.asarray(opened.part.node_ids)], opened.types
    num_layers, num_types = len(view.uses_edges), len(opened.part.schema.node_types)
    targets = int((own[opened.inner] == num_layers).sum())
    counts: dict[Key, int] = {("own", -1, -1): len(own), ("targets", -1, -1): targets}
    for layer in range(num_layers):
        for kind, least in (("rows", layer), ("out", layer + 1)):
            by_type = np.bincount(types[own >= least], minlength=num_types)
            counts[kind, layer, -1] = int(by_type.sum())
            counts.update({(kind, layer, t): int(count) for t, count in enumerate(by_type)})
        counts["edges", layer, -1] = int(edges[layer])
    edge_bytes = 8 + (weight_bytes if opened.part.weighted else 0)
    return Sizes(counts, tuple(edges.tolist()), tuple(halo.tolist()), edge_bytes)


def _joined(sizes: list[Sizes], depth: np.ndarray, edges: np.ndarray, serving: Serving | None) -> list[Reached]:
    """One view's sizes on all workers, with what all of them together have."""
    counts = tuple(
        RowCounts(
            sum(worker_sizes.counts["rows", layer, -1] for worker_sizes in sizes),
            sum(worker_sizes.counts["out", layer, -1] for worker_sizes in sizes),
            sum(worker_sizes.halo[layer] for worker_sizes in sizes),
        )
        for layer in range(edges.shape[1])
    )
    read = [tuple(worker_sizes.halo[layer] for worker_sizes in sizes) for layer in range(edges.shape[1])]
    messages: Sequence[Messages] | None = None if serving is None else serving(depth, edges, counts)
    if messages is None:
        messages = [Messages(sum(rows), 0, rows) for rows in read]
    return [
        Reached(
            dataclasses.replace(
                worker_sizes,
                halo=tuple(layer.received[place] for layer in messages),
                results=tuple(layer.partials // len(sizes) for layer in messages),
            ),
            counts,
            tuple(messages),
        )
        for place, worker_sizes in enumerate(sizes)
    ]
