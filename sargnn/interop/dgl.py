"""DGL 2.1, imported beside a current PyTorch.

DGL's last release on PyPI dates from March 2024. Two of its imports no longer resolve:

* ``dgl.utils`` asks for ``setuptools.extern.packaging``, which setuptools dropped; ``packaging`` itself is the same code.
* ``dgl.graphbolt`` loads a compiled library for the PyTorch of its day and an old torchdata. Nothing here uses GraphBolt
  (it is a sampler), so an empty module stands in for it.

With both in place message passing, edge softmax, the ``nn`` layers and METIS work, forward and backward.
"""

from __future__ import annotations

import warnings
from functools import cache
from typing import Any

from sargnn.interop.dgl_finder import install


@cache
def import_dgl() -> Any:
    """The ``dgl`` module, with its PyTorch backend. Takes one to two seconds the first time."""
    install()
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
