"""DGL 2.1, imported beside a current PyTorch.

DGL's last release on PyPI dates from March 2024. Two of its imports no longer resolve:

* ``dgl.utils`` asks for ``setuptools.extern.packaging``, which setuptools dropped; ``packaging`` itself is the same code.
* ``dgl.graphbolt`` loads a compiled library for the PyTorch of its day and an old torchdata. Nothing here uses GraphBolt
  (it is a sampler), so an empty module stands in for it.

Where they are, they are used as they are. With both in place message passing, edge softmax, the ``nn`` layers and METIS work,
forward and backward, also where a user's own code says ``import dgl``.

DGL need not be installed: ``is_installed`` is the one place that decides whether it is.
"""

from __future__ import annotations

import os
import sys
import types
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from sargnn.errors import ConfigError, DataError

HIDE = "SARGNN_HIDE_DGL"
"""A variable for tests: with 1 there is no DGL."""
WHERE = "2.1.0 is for Python 3.10 to 3.12 on Linux"
NOT_INSTALLED = f"DGL is not installed ({WHERE}; this is Python {sys.version_info[0]}.{sys.version_info[1]})"
"""Without a full stop, as a reason."""
_WITHOUT = "without it: kernel=auto, modules of PyTorch's and PyG's layers, graphs of PyG, NetworkX and arrays"


class DglMissingError(ConfigError, ModuleNotFoundError):
    """What was ``given`` needs DGL, which cannot be imported for a ``reason``, without a full stop. ``hint``: what works."""

    def __init__(self, *, given: object = None, hint: str | None = None, reason: str = NOT_INSTALLED) -> None:
        super().__init__(f"{reason}.", given=given, hint=hint)
        self.name, self.reason = "dgl", reason


class _OrEmpty(Loader):
    """Loads a module as its own loader does; one that fails is left empty."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> types.ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: types.ModuleType) -> None:
        try:
            self._loader.exec_module(module)
        except Exception:
            for name in [module_name for module_name in sys.modules if module_name.startswith(f"{module.__name__}.")]:
                del sys.modules[name]


class _Finder(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: types.ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname == "dgl":
            if _is_hidden():
                raise ModuleNotFoundError("No module named 'dgl'", name="dgl")
            _add_stand_ins()
            return None
        if fullname != "dgl.graphbolt":
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _OrEmpty(spec.loader)
        return spec


def is_installed() -> bool:
    """Whether there is a DGL. It is not imported, which takes long and may fail."""
    return not _is_hidden() and _is_there("dgl")


def missing_in(error: BaseException, place: str) -> DglMissingError | None:
    """What to say instead of an error out of a user's code, where it is that this code imports DGL; ``place``: of that line."""
    if not isinstance(error, ModuleNotFoundError) or error.name != "dgl":
        return None
    reason = error.reason if isinstance(error, DglMissingError) else NOT_INSTALLED
    return DglMissingError(given=f"import dgl in {place}", hint=_WITHOUT, reason=reason)


def _is_hidden() -> bool:
    return os.environ.get(HIDE) == "1"


def install_finder() -> None:
    """From now on ``import dgl`` works in this process, where DGL is installed."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


def _add_stand_ins() -> None:
    """Put into ``sys.modules`` what DGL asks for beside GraphBolt."""
    if "setuptools.extern" not in sys.modules and not _is_there("setuptools.extern.packaging"):
        import packaging
        import packaging.version

        extern = types.ModuleType("setuptools.extern")
        extern.packaging = packaging  # type: ignore[attr-defined]
        sys.modules["setuptools.extern"] = extern
        sys.modules["setuptools.extern.packaging"] = packaging
        sys.modules["setuptools.extern.packaging.version"] = packaging.version
    # ogb, which dgl imports, would otherwise look for a newer version of itself on a thread that delays the exit.
    sys.modules.setdefault("outdated", None)  # type: ignore[arg-type]
    os.environ.setdefault("DGLBACKEND", "pytorch")  # else it writes a file into the home folder


def _is_there(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def import_dgl(given: str | None = None, hint: str = _WITHOUT) -> Any:
    """The ``dgl`` module, with its PyTorch backend. Takes one to two seconds the first time.

    Raises ``DglMissingError``, naming what was ``given`` and what works without it, where it cannot be imported.
    """
    if not is_installed():
        raise DglMissingError(given=given, hint=hint)
    try:
        return _import_dgl()
    except Exception as error:  # of another version, or built for another PyTorch: whatever its code runs into
        reason = f"DGL cannot be imported ({WHERE}): {type(error).__name__}: {error}"
        raise DglMissingError(given=given, hint=hint, reason=reason) from error


@cache
def _import_dgl() -> Any:
    install_finder()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import dgl
        import dgl.function
        import dgl.nn.pytorch
        import dgl.ops
    return dgl


def copy_u_max_with_rows(graph: Any, src: Any) -> tuple[Any, Any]:
    """DGL's maximum over in-neighbours with the winning source rows, both [D, F]; without autograd."""
    import_dgl()
    from dgl._sparse_ops import _gspmm

    values, (rows, _) = _gspmm(graph._graph, "copy_lhs", "max", src, None)
    return values, rows


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
