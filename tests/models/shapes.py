"""Shapes of graphs that a model is made for."""

from __future__ import annotations

from sargnn.graph.schema import Relation, Schema
from sargnn.models.inputs import GraphShape

PLAIN = GraphShape(Schema.homogeneous(100), (5,), 3, labelled=0)
TYPED = GraphShape(
    Schema(("author", "paper"), (0, 40, 100), (Relation(0, "writes", 1), Relation(1, "cites", 1), Relation(1, "by", 0))),
    (0, 5), 3, labelled=1,
)  # fmt: skip
