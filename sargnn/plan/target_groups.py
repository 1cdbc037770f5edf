"""Which training nodes are computed together: the groups of a worker's targets that are its micro-batches.

A group costs what it reaches. Rows that several groups reach are computed in each of them, so targets with common neighbours
belong together (Yang et al., "Betty", ASPLOS 2023).

Letters: N own rows, H halo rows, W target rows, S sources, E edges into targets.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy import sparse

from sargnn.errors import ConfigError
from sargnn.partition.part import Part
from sargnn.plan import GROUPINGS
from sargnn.plan.load import peer_span
from sargnn.resolve import resolve

_ENTRY_BYTES = 100
_LARGEST, _UNIT = 2**30, 1000


@dataclass(frozen=True)
class TargetRows:
    """What is to be grouped. ``rows``: int64 [W], those whose outputs are wanted, ascending."""

    part: Part
    rank: int
    rows: np.ndarray
    seed: int
    buffer_bytes: int

    @property
    def num_vertices(self) -> int:
        return len(self.part.node_ids) + len(self.part.halo_ids)

    def edges(self, wanted: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Sources and destinations, int64 each; halo rows are numbered behind the own rows. ``wanted``: bool [N]; None: all."""
        part = self.part
        sources, destinations = [], []
        for q in range(len(part.halo_offsets) - 1):
            span = peer_span(part, q)
            src, dst = part.edge_src[span], part.edge_dst[span]
            if wanted is not None:
                chosen = wanted[dst]
                src, dst = src[chosen], dst[chosen]
            shift = 0 if q == self.rank else len(part.node_ids) + int(part.halo_offsets[q])
            sources.append(src.astype(np.int64) + shift)
            destinations.append(dst.astype(np.int64))
        return np.concatenate(sources), np.concatenate(destinations)

    @cached_property
    def incidence(self) -> sparse.csr_array:
        """int32 [W, N + H], 1 where an edge goes from a row to a target; a row is no source of itself."""
        wanted = np.zeros(len(self.part.node_ids), bool)
        wanted[self.rows] = True
        src, dst = self.edges(wanted)
        other = src != dst
        place = np.searchsorted(self.rows, dst[other])
        ones = np.ones(len(place), np.int32)
        incidence = sparse.csr_array((ones, (place, src[other])), shape=(len(self.rows), self.num_vertices))
        incidence.sum_duplicates()
        incidence.data[:] = 1
        return incidence

    @cached_property
    def weights(self) -> np.ndarray:
        """int64 [W], what a target weighs when groups are balanced: 1 and its in-degree.

        What a group reaches grows with its edges. Groups of equally many targets differ up to sixfold on graphs with hubs,
        because hubs have common neighbours and come together.
        """
        return 1 + np.asarray(self.part.in_degrees)[self.rows].astype(np.int64)


def group_targets(by: str, targets: TargetRows, count: int) -> np.ndarray:
    """Each target's group, int32 [W] in [0, count); none is empty where there are as many targets.

    ``by`` is a key of ``GROUPINGS`` or a function outside the package; raises ``ConfigError`` where that gives something else.
    """
    number = len(targets.rows)
    if count == 1 or number == 0:
        return np.zeros(number, np.int32)
    function = resolve("grouping", GROUPINGS, by)
    if number <= count:
        return np.arange(number, dtype=np.int32)
    groups = np.asarray(function(targets, count))
    if groups.shape != (number,) or groups.dtype.kind not in "iu" or groups.min() < 0 or groups.max() >= count:
        raise ConfigError(
            "What 'batches.by' names must give each target's group.",
            given=f"{groups.dtype} {list(groups.shape)} from {by}",
            allowed=f"whole numbers [{number}] from 0 to {count - 1}",
        )
    return _without_empty_ones(groups.astype(np.int32), count)


def _without_empty_ones(groups: np.ndarray, count: int) -> np.ndarray:
    """METIS may leave a group of a small graph empty: it gets half of the largest."""
    groups, sizes = groups.copy(), np.bincount(groups, minlength=count)
    for empty in np.flatnonzero(sizes == 0):
        largest = int(sizes.argmax())
        moved = np.flatnonzero(groups == largest)[: sizes[largest] // 2]
        groups[moved] = empty
        sizes[largest] -= len(moved)
        sizes[empty] = len(moved)
    return groups


def group_in_order(targets: TargetRows, count: int) -> np.ndarray:
    """int32 [W]: runs of the worker's rows in their order, sizes differing by at most one.

    With ``partitioner.order=locality`` neighbours have near row numbers; with ``original`` these are runs of original ids.
    """
    number = len(targets.rows)
    return (np.arange(number, dtype=np.int64) * count // max(number, 1)).astype(np.int32)


def group_at_random(targets: TargetRows, count: int) -> np.ndarray:
    """int32 [W], drawn from the seed, sizes differing by at most one."""
    drawn = np.random.default_rng([targets.seed, targets.rank]).permutation(len(targets.rows))
    groups = np.empty(len(targets.rows), np.int32)
    groups[drawn] = group_in_order(targets, count)
    return groups


def group_by_star(targets: TargetRows, count: int) -> np.ndarray:
    """int32 [W]: METIS on the graph of the edges that end in targets, balanced by in-degree.

    Every source of a target's edges is a net of a hypergraph that joins the targets which read it; a net that is cut is
    computed in each group that it touches. With a vertex for each net the edges themselves are the hypergraph's star expansion:
    as many entries as the last layer has edges, where ``reg`` has the square of every source's targets.
    """
    from sargnn.partition.metis import kway, symmetric  # METIS only where it groups

    incidence = targets.incidence.tocoo()
    vertices = np.unique(np.concatenate([incidence.col, targets.rows]))
    rows, columns = (np.searchsorted(vertices, nodes) for nodes in (targets.rows[incidence.row], incidence.col))
    size = len(vertices)
    graph = symmetric(sparse.csr_array((np.ones(len(rows), np.int32), (rows, columns)), shape=(size, size)))
    places = np.searchsorted(vertices, targets.rows)
    weights = np.zeros(size, np.int64)
    weights[places] = targets.weights
    if not graph.nnz:
        return np.zeros(len(targets.rows), np.int32)
    groups: np.ndarray = kway(graph, count, seed=targets.seed, imbalance=0.03, vertex_weights=weights)[places]
    return groups


def group_by_whole(targets: TargetRows, count: int) -> np.ndarray:
    """int32 [W]: METIS on all edges of the worker's part, at balanced row counts."""
    from sargnn.partition.metis import kway, symmetric  # METIS only where it groups

    src, dst = targets.edges()
    size = targets.num_vertices
    graph = symmetric(sparse.csr_array((np.ones(len(src), np.int32), (dst, src)), shape=(size, size)))
    if not graph.nnz:
        return np.zeros(len(targets.rows), np.int32)
    groups: np.ndarray = kway(graph, count, seed=targets.seed, imbalance=0.03)[targets.rows]
    return groups


def redundancy_graph(targets: TargetRows) -> sparse.csr_array:
    """The redundancy-embedded graph (REG) of Betty: int32 [W, W], symmetric, without a diagonal.

        C = A^T W A without its diagonal        A [sources, targets]: 1 where a target reads a source

    C_ij is what splitting the targets i and j costs: the number of sources that both read, each source weighted by w. Betty has
    w = 1, so that a hub, which every group computes anyway, decides everything. Here a source that d targets read counts

        w = 1 / (d - 1)        d >= 2

    the clique expansion's usual weight: cutting one target off from the d - 1 others costs 1, for hubs as for other sources.
    METIS takes whole numbers, so entries are multiplied by a common factor and rounded, at least 1.

    C has at most sum of d (d - 1) entries, and METIS takes about ``_ENTRY_BYTES`` for each. Sources with the largest d are left
    out until that fits the buffer; C is made in runs of rows within the same buffer.
    """
    reads = targets.incidence
    degrees = np.bincount(reads.indices, minlength=reads.shape[1]).astype(np.int64)
    pairs = degrees * (degrees - 1)
    order = np.argsort(degrees, kind="stable")
    room = max(targets.buffer_bytes // _ENTRY_BYTES, 1)
    shared = np.zeros(len(degrees), bool)
    shared[order[np.cumsum(pairs[order]) <= room]] = True
    shared &= degrees > 1
    reads = sparse.csr_array(reads[:, np.flatnonzero(shared)].astype(np.float32))
    degrees = degrees[shared]
    scale = min(_UNIT, _LARGEST / max(int(degrees.sum()), 1))
    read_by = sparse.csr_array((reads * (scale / np.maximum(degrees - 1, 1)).astype(np.float32)[None, :]).T)
    # What each row of C can have at most, and so where runs of rows end.
    most = np.asarray(reads @ (degrees - 1).astype(np.float64)).astype(np.int64)
    runs = np.cumsum(most) // max(room // 8, 1)
    blocks = []
    for run in np.unique(runs):
        first, last = np.searchsorted(runs, (run, run + 1))
        block = sparse.csr_array(reads[first:last] @ read_by).tocoo()
        other = block.row + first != block.col
        data = np.maximum(np.rint(block.data[other]), 1).astype(np.int32)
        blocks.append(sparse.csr_array((data, (block.row[other], block.col[other])), shape=(last - first, len(runs))))
    return sparse.csr_array(sparse.vstack(blocks)) if blocks else sparse.csr_array((0, 0), dtype=np.int32)


def group_by_reg(targets: TargetRows, count: int) -> np.ndarray:
    """int32 [W]: METIS on C, balanced by in-degree."""
    from sargnn.partition.metis import kway  # METIS only where it groups

    graph = redundancy_graph(targets)
    if not graph.nnz:
        return (np.arange(len(targets.rows)) % count).astype(np.int32)
    return kway(graph, count, seed=targets.seed, imbalance=0.03, vertex_weights=targets.weights)
