"""METIS's documented C interface, for what pymetis does not pass on: several weights per vertex, each balanced.

pymetis carries METIS in its extension module and leaves the library's functions visible there. DGL's METIS takes several
weights too, but its answer then changes from call to call.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pymetis

from sargnn.errors import ConfigError

_NUM_OPTIONS = 40
_SEED = 8
_OK = 1


def balanced_kway(
    indptr: np.ndarray,
    indices: np.ndarray,
    edge_weights: np.ndarray,
    vertex_weights: np.ndarray,
    parts: int,
    *,
    seed: int,
    imbalance: float,
) -> np.ndarray:
    """METIS's k-way assignment of a symmetric graph in CSR form, int32 [N].

    Args:
        vertex_weights: integers [N, weights]; each column is balanced over the parts.
        imbalance: how much larger than the mean a part may be, in each column.

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
    counts = np.array([len(indptr) - 1, vertex_weights.shape[1], parts, 0], integer)
    arrays = [np.ascontiguousarray(array, integer) for array in (indptr, indices, vertex_weights, edge_weights)]
    pointers, neighbours, weights, lengths = (_pointer(array) for array in arrays)
    tolerance = np.full(vertex_weights.shape[1], 1.0 + imbalance, np.float32)  # METIS's real_t
    assignment = np.zeros(len(indptr) - 1, integer)
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
