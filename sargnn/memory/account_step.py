"""The account of a step: what its views hold at most on this worker."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from sargnn.backends.base import Kernel
from sargnn.engine.modes.base import Held
from sargnn.memory.account_trace import BESIDE, Event, StepMemory, replay
from sargnn.plan.partials import share_room
from sargnn.plan.sizes import Key, Sizes

OPTIMIZER, INPUTS = "optimizer", "inputs"
LAYER_PHASES = ("layer {} forward", "layer {} backward")


@dataclass(frozen=True)
class ResultBytes:
    """A layer's partial results in the exchange's buffers.

    Attributes:
        moved: bytes of a request and its answer, forward or backward, whichever is more.
        widest: as of ``Share``.
    """

    moved: int
    widest: float
    typed: bool


@dataclass(frozen=True)
class LayerHalo:
    """What others' rows take in a layer, or in one of the aggregations of a user's module.

    Attributes:
        halo: bytes that the mode holds of a halo row.
        own: bytes that it holds of a copy of an own row.
        travels: bytes of a row in a message.
        plan: the number of the layer whose rows they are.
    """

    halo: Held = Held()
    own: Held = Held()
    travels: int = 0
    results: ResultBytes | None = None
    plan: int = 0


@dataclass(frozen=True)
class HaloBytes:
    """What others' rows take, of which the made-up graph has none.

    Attributes:
        most_rows: rows of a message.
        depth: of prefetching.
        copies: 2 where a layer's backward pass fetches rows again; else 1.
    """

    layers: tuple[LayerHalo, ...]
    most_rows: int
    depth: int
    copies: int = 1

    def peak(self, sizes: Sizes) -> int:
        return max(self.by_phase(sizes).values()) + self.buffers(sizes)

    def by_phase(self, sizes: Sizes) -> dict[str, int]:
        """Bytes while a layer aggregates, with what earlier layers keep and without the exchange's buffers."""
        kept = 0
        phase_bytes = {INPUTS: 0, OPTIMIZER: 0}
        for number, layer in enumerate(self.layers):
            halo, own = sizes.halo[layer.plan], sizes.counts["rows", layer.plan, -1]
            kept += halo * layer.halo.kept + own * layer.own.kept
            forward = halo * layer.halo.forward + own * layer.own.forward
            backward = halo * layer.halo.backward + own * layer.own.backward
            phases = [way.format(number + 1) for way in LAYER_PHASES]
            phase_bytes |= {phases[0]: kept + forward, phases[1]: kept + backward}
            phase_bytes[BESIDE.format(phases[0])] = kept
        return phase_bytes | {"": max(phase_bytes.values())}

    def buffers(self, sizes: Sizes) -> int:
        """Bytes in the layer that has most: of rows, of requests and of answers."""
        slots, largest = 1 + self.depth, 0
        for layer in self.layers:
            rows, results = sizes.halo[layer.plan], sizes.results[layer.plan] if sizes.results else 0
            most, result_bytes = self.most_rows, 0
            if results and (partial := layer.results) is not None:
                most, most_results = share_room(rows, partial.widest * results, partial.widest, most, typed=partial.typed)
                result_bytes = 2 * min(slots * min(results, most_results), results) * partial.moved
            held = 2 * min((slots + self.copies - 1) * min(rows, most), self.copies * rows)
            largest = max(largest, held * layer.travels + result_bytes)
        return largest


@dataclass(frozen=True)
class KernelBytes:
    """What a layer's kernel holds in memory that is no tensor's.

    Attributes:
        first: the first layer on the same plan, whose graph it reads.
        row_bytes: of a source row.
    """

    layer: int
    first: int
    kernel: Kernel
    operation: str
    row_bytes: int
    dtype: torch.dtype
    autograd: bool

    def of_graph(self, edges: int) -> int:
        """Bytes that stay once the layer has run."""
        return edges * self.kernel.graph_bytes(self.operation, autograd=self.autograd)

    def passing(self, edges: int, rows: int) -> int:
        """Bytes while it runs, of so many output rows."""
        return self.kernel.passing_bytes(self.operation, edges, rows, self.row_bytes, self.dtype)


@dataclass(frozen=True)
class NodeBatches:
    """The largest batch of nodes of one degree that a reducer takes together on the made-up graph; ``most``: of its edges."""

    layer: int
    nodes: int
    degree: int
    most: int

    @property
    def made_up(self) -> dict[Key, int]:
        return {("batch", self.layer, -1): self.nodes, ("batch edges", self.layer, -1): self.nodes * self.degree}

    def real(self, edges: int, rows: int) -> dict[Key, int]:
        """As ``made_up`` where a layer has so many edges and output rows: as if all these had one degree."""
        degree, taken = max(1, edges // max(1, rows)), min(edges, self.most)
        return {("batch", self.layer, -1): max(1, taken // degree), ("batch edges", self.layer, -1): taken}

    def joined(self, event: Event) -> Event:
        """An event of a tensor [..., nodes, degree, ...] as one of [edges, ...], whose real number is known."""
        if self.nodes not in event.shape or self.degree not in event.shape:
            return event
        rest = list(event.shape)
        rest.remove(self.nodes)
        rest.remove(self.degree)
        return dataclasses.replace(event, shape=(self.nodes * self.degree, *rest))


@dataclass(frozen=True)
class StepAccount:
    """Two epochs of a step of one view, recorded on the made-up graph.

    Attributes:
        made_up: the view's sizes.
        constant_bytes: of a row of what the view brings; 0: nothing.
        holds_flow: whether the plans are there only while the view is computed; else they were there before.
        batches: of layers that take nodes of one degree together.
        libraries: bytes that libraries take for some reducers' work alone; 0 where that is there already.
        kernels: of layers that aggregate.
        queries: that the view asks; 0: none.
    """

    events: tuple[Event, ...]
    made_up: Sizes
    constant_bytes: int
    halo: HaloBytes
    holds_flow: bool
    batches: tuple[NodeBatches, ...] = ()
    libraries: int = 0
    kernels: tuple[KernelBytes, ...] = ()
    queries: int = 0

    def brought(self, sizes: Sizes) -> int:
        """Bytes of a view's own plans and constants."""
        return sizes.flow_bytes + sizes.counts["out", 0, -1] * self.constant_bytes if self.holds_flow else 0

    def _with_queries(self, sizes: Sizes) -> Sizes:
        """With the numbers of a row or an edge for each query, as tables [N, Q, D] have them where they are [N Q, D]."""
        if not self.queries:
            return sizes
        of_queries = {(f"{what}, queries", layer, t): count * self.queries for (what, layer, t), count in sizes.counts.items()}
        return dataclasses.replace(sizes, counts=sizes.counts | of_queries)

    def graphs(self, sizes: Sizes) -> int:
        """Bytes of the graphs that kernels make of a view's plans, one for all layers on the same plan."""
        largest: dict[int, int] = {}
        for layer in self.kernels:
            largest[layer.first] = max(largest.get(layer.first, 0), layer.of_graph(sizes.edges[layer.layer]))
        return sum(largest.values())

    def peak(self, views: Sequence[Sizes], *, all_held: bool = False) -> int:
        """Bytes that steps of these micro-batches hold at most beyond what was there before.

        ``all_held``: all of them are in memory, not only the one at hand.
        """
        held, halo = self.held(views, all_held=all_held)
        return held.peak + halo

    def held(self, views: Sequence[Sizes], *, all_held: bool = False) -> tuple[StepMemory, int]:
        """What they hold at the peak, and bytes of halo rows beside it."""
        held = StepMemory(other=self.libraries)
        made_up = self._with_queries(self.made_up)
        for node_batches in self.batches:
            made_up = dataclasses.replace(made_up, counts=made_up.counts | node_batches.made_up)
        # The record has two epochs. Views that are made anew come a second time, with what the pool holds from the first.
        for _ in range(2 if self.holds_flow else 1):
            for sizes in views:
                # Bytes that no record has, by the phase in which they are there: of halo rows, and of kernels that run.
                beside = self.halo.by_phase(sizes)
                for kernel in self.kernels:
                    passing = kernel.passing(sizes.edges[kernel.layer], sizes.counts["out", kernel.layer, -1])
                    for way in LAYER_PHASES:
                        beside[way.format(kernel.layer + 1)] += passing
                held.beside, held.buffers = beside, self.halo.buffers(sizes)
                there = views if all_held else [sizes]
                held.other += (brought := sum(self.brought(view) + self.graphs(view) for view in there))
                counts = self._with_queries(sizes).counts
                for node_batches in self.batches:
                    counts = counts | node_batches.real(
                        sizes.edges[node_batches.layer], sizes.counts["out", node_batches.layer, -1]
                    )
                replay(self.events, made_up, dataclasses.replace(sizes, counts=counts), held)
                held.end()
                held.other -= brought
        return held, held.peak_beside - held.peak
