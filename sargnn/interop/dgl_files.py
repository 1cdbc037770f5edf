"""What DGL writes to files, read by DGL and handed on as NumPy arrays.

Letters: N nodes of a part's graph, own and halo; E its edges.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sargnn.errors import DataError
from sargnn.interop.dgl import import_dgl

_SAVED_TENSORS = bytes.fromhex("3f44a23fbe9f5add")
"""What files of ``dgl.data.utils.save_tensors`` begin with."""

_STORED = "sargnn import-dgl, where DGL is, makes stores of it; dataset=stored reads those without DGL"


@dataclass(frozen=True)
class PartGraph:
    """The graph of one part.

    Attributes:
        node_ids: int64 [N], numbers that DGL gave the nodes of all parts.
        own_nodes: bool [N]; the others are its halo.
        sources, destinations: int64 [E], rows of ``node_ids``.
        edge_ids: int64 [E], numbers that DGL gave the edges of all parts.
        own_edges: bool [E].
        original_ids: int64 [N], numbers before the graph was partitioned, where the file has them.
    """

    node_ids: np.ndarray
    own_nodes: np.ndarray
    sources: np.ndarray
    destinations: np.ndarray
    edge_ids: np.ndarray
    own_edges: np.ndarray
    original_ids: np.ndarray | None


def load_part(path: Path) -> PartGraph:
    """Read a ``graph.dgl`` that ``dgl.distributed.partition_graph`` wrote. Raises ``DataError`` naming the file."""
    dgl = import_dgl(str(path), _STORED)
    try:
        (graph, *others), _ = dgl.load_graphs(str(path))
        sources, destinations = graph.edges(order="eid")
        part = PartGraph(
            node_ids=graph.ndata[dgl.NID].numpy().astype(np.int64),
            own_nodes=graph.ndata["inner_node"].numpy() != 0,
            sources=sources.numpy().astype(np.int64),
            destinations=destinations.numpy().astype(np.int64),
            edge_ids=graph.edata[dgl.EID].numpy().astype(np.int64),
            own_edges=graph.edata["inner_edge"].numpy() != 0,
            original_ids=graph.ndata["orig_id"].numpy().astype(np.int64) if "orig_id" in graph.ndata else None,
        )
    except (dgl.DGLError, KeyError, ValueError, TypeError) as error:
        raise _unreadable(path, "the graph of a part", error) from error
    if others:
        raise DataError(f"'{path}' must hold the graph of one part.", given=f"{1 + len(others)} graphs")
    return part


def load_tensors(path: Path) -> dict[str, np.ndarray]:
    """Read what ``dgl.data.utils.save_tensors`` wrote. Raises ``DataError`` naming the file."""
    dgl = import_dgl(str(path), _STORED)
    from dgl.data.utils import load_tensors as load

    try:
        return {str(name): _as_array(tensor) for name, tensor in load(str(path)).items()}
    except (dgl.DGLError, ValueError, TypeError) as error:
        raise _unreadable(path, "named tensors", error) from error


def load_mapping(path: Path) -> np.ndarray | dict[str, np.ndarray]:
    """An array, or arrays by name: a ``.npy`` file, or what ``torch.save`` or ``save_tensors`` wrote. Nothing is unpickled.
    Raises ``DataError`` naming a file that is none of these, or cannot be read.
    """
    import pickle

    import torch

    try:
        with path.open("rb") as file:
            start = file.read(len(_SAVED_TENSORS))
        if start == _SAVED_TENSORS:
            return load_tensors(path)
        if path.suffix == ".npy":
            array: np.ndarray = np.load(path, allow_pickle=False)
            return array
        content = torch.load(path, weights_only=True)
    except (OSError, ValueError, EOFError, RuntimeError, pickle.UnpicklingError) as error:
        raise _unreadable(path, "a tensor, or tensors by name", error) from error
    if isinstance(content, torch.Tensor):
        return _as_array(content)
    if isinstance(content, dict) and all(isinstance(tensor, torch.Tensor) for tensor in content.values()):
        return {str(name): _as_array(tensor) for name, tensor in content.items()}
    raise DataError(f"'{path}' holds neither a tensor nor tensors by name.", given=type(content).__name__)


def _as_array(tensor: Any) -> np.ndarray:
    import torch

    array: np.ndarray = (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()
    return array


def _unreadable(path: Path, what: str, error: Exception) -> DataError:
    text = str(error).splitlines()[0] if str(error) else type(error).__name__
    _, separator, reason = text.partition("Check failed: ")  # DGL's own words begin with a time and a place in its source
    return DataError(f"'{path}' cannot be read as {what} that DGL wrote.", given=reason if separator else text)
