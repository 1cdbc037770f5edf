"""Sizes of graphs that everyone knows, for plans without their files; and what the SAR paper measured on one of them.

Nodes, edges, features, classes and splits are those that OGB publishes (Hu et al., 2020), and of the older datasets those that
PyTorch Geometric and DGL document, edges in both directions. How many rows of others a worker reads depends on the cut;
``halo_of`` says what is known.

Letters: N nodes, P workers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from sargnn.config.run import DatasetSettings
from sargnn.data.schema import Relation, Schema
from sargnn.planner.parts import PartSizes

Sized = tuple[str, int, int]
"""A node type: its name, how many nodes, how many features (0: none)."""


@dataclass(frozen=True)
class Published:
    """A graph's published sizes.

    Attributes:
        nodes: by type; the first one has the labels. edges: relations: type, name, type, how many.
        classes: C. train, split: labelled nodes that train, and of all three splits.
        halo: rows of others for each own row, by numbers of workers P, where they are known. source: how.
    """

    nodes: tuple[Sized, ...]
    edges: tuple[tuple[int, str, int, int], ...]
    classes: int
    train: int
    split: int
    halo: tuple[tuple[int, float], ...] = ()
    source: str = ""

    @property
    def num_nodes(self) -> int:
        """N."""
        return sum(count for _, count, _ in self.nodes)

    @property
    def num_edges(self) -> int:
        """Of all relations."""
        return sum(count for *_, count in self.edges)

    def as_configured(self, config: DatasetSettings) -> Published:
        """With inverse edges, and without types, as the dataset's settings have it."""
        edges, nodes = self.edges, self.nodes
        if getattr(config, "homogenize", False):
            nodes = (("node", self.num_nodes, max(width for _, _, width in nodes)),)
            edges = ((0, "edge", 0, self.num_edges),)
        if getattr(config, "add_inverse_edges", False):
            if len(nodes) == 1:
                edges = tuple((s, name, d, 2 * count) for s, name, d, count in edges)
            else:
                edges += tuple((d, f"rev_{name}", s, count) for s, name, d, count in edges)
        return Published(nodes, edges, self.classes, self.train, self.split, self.halo, self.source)

    @property
    def schema(self) -> Schema:
        """Its types and relations."""
        offsets = [0]
        for _, count, _ in self.nodes:
            offsets.append(offsets[-1] + count)
        relations = tuple(Relation(s, name, d) for s, name, d, _ in self.edges)
        return Schema(tuple(name for name, *_ in self.nodes), tuple(offsets), relations)

    def part(self, world: int, halo: float) -> PartSizes:
        """One of P equal parts. ``halo``: rows of others for each own row."""
        rows = tuple(-(-count // world) for _, count, _ in self.nodes)
        others = min(round(halo * sum(rows)), self.num_nodes - sum(rows))
        edges = tuple(-(-count // world) for *_, count in self.edges)
        return PartSizes(rows, edges, others, others, -(-self.train // world), -(-self.split // world))


PUBLISHED = {
    "ogbn-arxiv": Published((("paper", 169_343, 128),), ((0, "cites", 0, 1_166_243),), 40, 90_941, 169_343),
    "ogbn-products": Published(
        (("product", 2_449_029, 100),),
        ((0, "bought_with", 0, 61_859_140),),
        47,
        196_615,
        2_449_029,
        ((8, 2.3),),
        "that of products_like, cut into 8 by METIS",
    ),
    "ogbn-papers100M": Published(
        (("paper", 111_059_956, 128),),
        ((0, "cites", 0, 1_615_685_872),),
        172,
        1_207_179,
        1_546_782,
        ((32, 6.2), (64, 8.1), (128, 11.3)),
        "read off the SAR paper's figure",
    ),
    "ogbn-mag": Published(
        (("paper", 736_389, 128), ("author", 1_134_649, 0), ("field_of_study", 59_965, 0), ("institution", 8_740, 0)),
        (
            (1, "affiliated_with", 3, 1_043_998),
            (1, "writes", 0, 7_145_660),
            (0, "cites", 0, 5_416_271),
            (0, "has_topic", 2, 7_505_078),
        ),
        349,
        629_571,
        736_389,
    ),
    "cora": Published((("paper", 2_708, 1_433),), ((0, "cites", 0, 10_556),), 7, 140, 1_640),
    "citeseer": Published((("paper", 3_327, 3_703),), ((0, "cites", 0, 9_104),), 6, 120, 1_620),
    "pubmed": Published((("paper", 19_717, 500),), ((0, "cites", 0, 88_648),), 3, 60, 1_560),
    "reddit": Published((("post", 232_965, 602),), ((0, "shares_a_user", 0, 114_615_892),), 41, 153_431, 232_965),
}
"""papers100M's halo is what makes the paper's vanilla bars of GraphSage higher than those of SAR: vanilla training holds what
the three layers read of others, (128 + 256 + 256) numbers of 4 bytes a row, until backward; SAR holds none of it. With N / P
own rows

    halo = (vanilla - SAR) / (2560 B x N / P) = (150 - 95) GB / (2560 B x 3.47 M) = 6.2 for P = 32; 8.1 for 64; 11.3 for 128.
"""

PAPER_BARS: dict[str, dict[str, dict[int, float | None]]] = {
    "sage": {"sar": {32: 95, 64: 47, 128: 25}, "domain_parallel": {32: 150, 64: 83, 128: 50}},
    "gat": {"sar": {32: 67, 64: 35, 128: 19}, "domain_parallel": {32: None, 64: 126, 128: 75}},
}
"""GB of a worker on papers100M in the SAR paper's figures, by model, mode and number of workers; None: out of memory."""


def halo_of(graph: Published, world: int) -> float | None:
    """Rows of others for each own row, straight in log2 P between what is known, from 0 with one worker; None: nothing is."""
    if world == 1:
        return 0.0
    if not graph.halo:
        return None
    points = [(1, 0.0), *graph.halo]
    after = next((i for i, (workers, _) in enumerate(points) if workers >= world), len(points) - 1)
    (w0, h0), (w1, h1) = points[after - 1], points[after]
    return h0 + (h1 - h0) * (math.log2(world) - math.log2(w0)) / (math.log2(w1) - math.log2(w0))
