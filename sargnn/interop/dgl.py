"""DGL 2.1, imported beside a current PyTorch.

DGL's last release on PyPI dates from March 2024. Two of its imports no longer resolve:

* ``dgl.utils`` asks for ``setuptools.extern.packaging``, which setuptools dropped; ``packaging`` itself is the same code.
* ``dgl.graphbolt`` loads a compiled library for the PyTorch of its day and an old torchdata. Nothing here uses GraphBolt
  (it is a sampler), so an empty module stands in for it.

With both in place message passing, edge softmax, the ``nn`` layers and METIS work, forward and backward.
"""

from __future__ import annotations

import os
import sys
import types
import warnings
from functools import cache
from typing import Any


@cache
def import_dgl() -> Any:
    """The ``dgl`` module, with its PyTorch backend. Takes one to two seconds the first time."""
    import packaging
    import packaging.version

    if "setuptools.extern" not in sys.modules:
        extern = types.ModuleType("setuptools.extern")
        extern.packaging = packaging  # type: ignore[attr-defined]
        sys.modules["setuptools.extern"] = extern
        sys.modules["setuptools.extern.packaging"] = packaging
        sys.modules["setuptools.extern.packaging.version"] = packaging.version
    sys.modules.setdefault("dgl.graphbolt", types.ModuleType("dgl.graphbolt"))
    # ogb, which dgl imports, would otherwise look for a newer version of itself on a thread that delays the exit.
    sys.modules.setdefault("outdated", None)  # type: ignore[arg-type]
    os.environ.setdefault("DGLBACKEND", "pytorch")  # else it writes a file into the home folder
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
