"""METIS: k-way partitioning that minimises the edge cut at balanced node counts.

Through pymetis; where several node types must be balanced at once, through METIS's documented C interface: pymetis carries
METIS in its extension module and leaves the library's functions visible there. DGL's METIS takes several weights too, but its
answer then changes from call to call.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pymetis
from scipy import sparse

from sargnn.config.partitioner import PartitionerConfig
from sargnn.errors import ConfigError
from sargnn.graph.dataset import Dataset
from sargnn.partition.balance import Room, node_weights, runs_of_nodes, trivial

_NUM_OPTIONS = 40
_SEED = 8
_OK = 1


def symmetric(directed: sparse.csr_array) -> sparse.csr_array:
    """A + A^T without self-loops as int32 [N, N]; a value counts the directed edges between two nodes."""
    n = directed.shape[0]
    both = sparse.csr_array(directed + directed.T)
    both.sum_duplicates()
    rows = np.repeat(np.arange(n), np.diff(both.indptr))
    off_diagonal = both.indices != rows
    if not off_diagonal.all():
        kept = np.concatenate([[0], np.cumsum(off_diagonal)])
        both = sparse.csr_array((both.data[off_diagonal], both.indices[off_diagonal], kept[both.indptr]), shape=(n, n))
    return both


def kway(
    graph: sparse.csr_array, parts: int, *, seed: int, imbalance: float, vertex_weights: np.ndarray | None = None
) -> np.ndarray:
    """METIS's k-way assignment of a graph of ``symmetric``, whose values are edge weights, with at least one edge, int32 [N].

    ``imbalance``: how much larger than the mean a part may be, by ``vertex_weights``, integers [N]; None: each vertex is 1.
    """
    options = pymetis.Options(seed=seed, ufactor=max(1, round(imbalance * 1000)))
    index_type = pymetis.zero_copy_dtype()
    plain = bool((graph.data == graph.data[0]).all())
    _, assignment = pymetis.part_graph(
        parts,
        pymetis.CSRAdjacency(graph.indptr.astype(index_type, copy=False), graph.indices.astype(index_type, copy=False)),
        vweights=None if vertex_weights is None else vertex_weights.astype(index_type, copy=False),
        eweights=None if plain else graph.data.astype(index_type, copy=False),
        options=options,
        recursive=False,
    )
    return np.asarray(assignment, dtype=np.int32)


def _balanced_kway(
    graph: sparse.csr_array, vertex_weights: np.ndarray, parts: int, *, seed: int, imbalance: float
) -> np.ndarray:
    """As ``kway``, with each column of ``vertex_weights``, integers [N, weights], balanced over the parts.

    Raises ``ConfigError``: this build of pymetis hides METIS's functions, or METIS fails.
    """
    from pymetis import _internal

    integer: Any = pymetis.zero_copy_dtype()
    try:
        library = ctypes.CDLL(_internal.__file__)
        set_defaults, part_graph = library.METIS_SetDefaultOptions, library.METIS_PartGraphKway
    except (AttributeError, OSError) as error:
        raise ConfigError(
            "METIS cannot balance several node types here: this build of pymetis hides its functions.",
            given=str(error),
            hint="partitioner=random or partitioner=range work everywhere",
        ) from error
    options = np.zeros(_NUM_OPTIONS, integer)
    set_defaults(_pointer(options))
    options[_SEED] = seed
    counts = np.array([graph.shape[0], vertex_weights.shape[1], parts, 0], integer)
    arrays = [np.ascontiguousarray(array, integer) for array in (graph.indptr, graph.indices, vertex_weights, graph.data)]
    pointers, neighbours, weights, lengths = (_pointer(array) for array in arrays)
    tolerance = np.full(vertex_weights.shape[1], 1.0 + imbalance, np.float32)  # METIS's real_t
    assignment = np.zeros(graph.shape[0], integer)
    n, num_weights, k, cut = (_pointer(counts[i : i + 1]) for i in range(4))
    status = part_graph(
        n,
        num_weights,
        pointers,
        neighbours,
        weights,
        None,
        lengths,
        k,
        None,
        _pointer(tolerance),
        _pointer(options),
        cut,
        _pointer(assignment),
    )
    if status != _OK:
        raise ConfigError("METIS could not partition the graph.", given=f"status {status}", hint="try partitioner=random")
    return assignment.astype(np.int32)


def _pointer(array: np.ndarray) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


def assign(dataset: Dataset, world: int, config: PartitionerConfig, room: Room | None = None) -> np.ndarray:
    """int32 [N]; the same seed gives the same. A typed graph is cut as a homogeneous one, with every node type balanced."""
    if (uncut := trivial(dataset.num_nodes, world)) is not None:
        return uncut
    ones, shape = np.ones(dataset.num_edges, np.int32), (dataset.num_nodes, dataset.num_nodes)
    graph = symmetric(sparse.csr_array((ones, np.asarray(dataset.indices), np.asarray(dataset.indptr)), shape=shape))
    del ones  # nothing but the symmetric graph is held meanwhile
    if graph.nnz == 0:
        return runs_of_nodes(dataset.num_nodes, world)
    if len(dataset.schema.node_types) > 1:
        return _typed(dataset, graph, world, config)
    weights = node_weights(dataset, config.balance)
    return kway(graph, world, seed=config.seed, imbalance=config.imbalance, vertex_weights=weights)


def _typed(dataset: Dataset, graph: sparse.csr_array, world: int, config: PartitionerConfig) -> np.ndarray:
    """METIS balances the large types. Types with few nodes a part, which it cannot balance, are balanced afterwards."""
    schema = dataset.schema
    small = [schema.count(t) * config.imbalance < world for t in range(len(schema.node_types))]
    types = schema.types_of(np.arange(dataset.num_nodes))
    columns = [types == t for t, is_small in enumerate(small) if not is_small]
    if any(small):
        columns.append(np.ones(dataset.num_nodes, bool))
    if (weights := node_weights(dataset, config.balance)) is not None:
        columns.append(weights)
    assignment = _balanced_kway(graph, np.stack(columns, 1), world, seed=config.seed, imbalance=config.imbalance)
    for t in np.flatnonzero(small):
        _even_out(graph, assignment, range(schema.offsets[t], schema.offsets[t + 1]), world)
    return assignment


def _even_out(graph: sparse.csr_array, assignment: np.ndarray, nodes: range, world: int) -> None:
    """Move nodes out of parts that hold more than their share, each to where there is room and most of its neighbours are."""
    room = np.full(world, -(-len(nodes) // world))
    waiting = []
    for node in nodes:
        if room[assignment[node]] > 0:
            room[assignment[node]] -= 1
        else:
            waiting.append(node)
    for node in waiting:
        near = assignment[graph.indices[graph.indptr[node] : graph.indptr[node + 1]]]
        wanted = np.bincount(near, minlength=world)
        best = int(np.where(room > 0, wanted, -1).argmax())
        assignment[node] = best
        room[best] -= 1
