"""Lets ``dgl.ops.edge_softmax``, from wherever a layer has imported it, work on a sharded graph.

DGL's function hands its graph's index to a function of its backend, which it looks up when it is called. That one is replaced
by one that knows both kinds of graph. Nothing else of DGL is touched, and DGL is not imported here: a layer has done that.
"""

from __future__ import annotations

import sys
from typing import Any

from sargnn.modules.graph import GraphIndex


def install() -> None:
    """Do it, where DGL is there. Once is enough."""
    module: Any = sys.modules.get("dgl.ops.edge_softmax")
    if module is None or getattr(module.edge_softmax_internal, "knows_sharded", False):
        return
    stock = module.edge_softmax_internal

    def edge_softmax_internal(index: Any, logits: Any, eids: Any = None, norm_by: str = "dst") -> Any:
        if not isinstance(index, GraphIndex):
            return stock(index, logits, eids=eids, norm_by=norm_by)
        if eids is not None and not module.is_all(eids):
            raise index.graph.wrong("A softmax over some edges needs their numbers, which are not here.", given="eids")
        return index.graph.edge_softmax(logits, norm_by)

    edge_softmax_internal.knows_sharded = True  # type: ignore[attr-defined]
    module.edge_softmax_internal = edge_softmax_internal
