"""OGB's datasets of links, from their official raw files (ogbl-collab, ogbl-ppa, ogbl-citation2, ogbl-ddi).

    raw/edge.csv.gz [E, 2]   raw/edge_weight.csv.gz [E, 1] of ogbl-collab   raw/node-feat.csv.gz [N, F], but for ogbl-ddi
    raw/num-node-list.csv.gz [1]   raw/num-edge-list.csv.gz [1]: where they are missing, rows are counted
    split/NAME/{train,valid,test}.pt: arrays by name, as ``torch.save`` writes them,
        edge [P, 2], edge_neg [Q, 2], weight [P] of ogbl-collab; or of ogbl-citation2
        source_node, target_node [P], target_node_neg [P, K]

Edges are the training links, so the graph stays as it is published. In ogbl-collab authors who publish together again are an
edge, or a training link, of each year: the link counts once, its weights added up; and a link of later years may be an edge.
Years are not read.

Letters: N nodes, E edges, F features, P pairs, Q, K negatives.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from sargnn.errors import DataError
from sargnn.graph.check import WeightCheck
from sargnn.graph.dataset import Dataset, InMemoryReader
from sargnn.graph.edge_columns import EdgeColumns
from sargnn.graph.manifest import shape_fits
from sargnn.graph.pairs import MEASURED
from sargnn.graph.schema import SPLITS, UNLABELLED, Relation
from sargnn.graph.typed import Edges, typed_dataset
from sargnn.sources.given_pairs import SplitPairs, give_pairs
from sargnn.sources.ogb import tables
from sargnn.sources.ogb.layouts import MAX_EDGES, MAX_NODES, find_links
from sargnn.sources.scan import identity_of
from sargnn.sources.settings import OgbConfig
from sargnn.steps import step

_VERSION = 1
_DIRECTED = ("ogbl-citation2",)


class LinkOgbDir(InMemoryReader):
    """Raises ``DataError`` where files are missing, with all of them."""

    def __init__(self, config: OgbConfig, root: Path) -> None:
        self.config, self.files = config, find_links(root)

    def identity(self) -> dict[str, Any]:
        return {
            "reader": "ogb links",
            "version": _VERSION,
            "name": self.config.name,
            "files": identity_of([*self.files.raw.values(), *self.files.split.values()]),
            "add_inverse_edges": self.config.add_inverse_edges,
            "normalize_features": self.config.normalize_features,
            "link_messages": self.config.link_messages,
        }

    def read(self) -> Dataset:
        """Raises ``DataError`` with file and row: unreadable, counts disagree, no such node, features or weights not finite."""
        raw, count = self.files.raw, self._num_nodes()
        edges = self._edges(count)
        features = np.zeros((count, 0), np.float32)
        if (path := raw.get("node-feat")) is not None:
            step("reading features")
            features = tables.read_features(path, count, self.config.normalize_features)
        dataset = typed_dataset(
            name=self.config.name,
            num_classes=1,
            node_types=["node"],
            features=[features],
            relations=[edges.with_inverses() if self.config.add_inverse_edges else edges],
            labelled=0,
            labels=np.full(count, UNLABELLED, np.int64),
            split=np.zeros(count, np.uint8),
        )
        pairs = [read_pairs(self.files.split[split], split, count) for split in SPLITS]
        undirected = self.config.name not in _DIRECTED
        return give_pairs(dataset, pairs, messages=self.config.link_messages, undirected=undirected)

    def _num_nodes(self) -> int:
        counted = self.files.raw.get("num-node-list")
        if counted is not None:
            return tables.read_count(counted, 1, MAX_NODES)
        return tables.count_rows(self.files.raw["node-feat"], 1, MAX_NODES)

    def _edges(self, num_nodes: int) -> Edges:
        path, counted = self.files.raw["edge"], self.files.raw.get("num-edge-list")
        step("reading edges")
        ends = tables.read_table(path, np.int64)
        count = len(ends) if counted is None else tables.read_count(counted, 0, MAX_EDGES)
        tables.expect_shape(path, ends, (count, 2))
        tables.expect_range(path, ends, 0, num_nodes, "a node that does not exist")
        columns, weights = EdgeColumns(), self.files.raw.get("edge_weight")
        if weights is not None:
            table = tables.read_table(weights, np.float64)
            tables.expect_shape(weights, table, (count, 1))
            check = WeightCheck(f"'{weights}'", lambda position: f"row {position + 1}")
            columns = EdgeColumns.of({"weight": check.to_float32(table[:, 0])})
        return Edges(Relation(0, "edge", 0), ends[:, 0], ends[:, 1], columns)


def read_pairs(path: Path, split: str, num_nodes: int) -> SplitPairs:
    """Pairs of one of ``SPLITS``.

    Raises ``DataError``: the file cannot be read, lacks an array, or one has another shape or names a node that does not exist.
    """
    arrays = read_arrays(path)
    if "source_node" in arrays:
        heads, tails = (_numbers(path, arrays, name, (None,), num_nodes) for name in ("source_node", "target_node"))
        if len(tails) != len(heads):
            raise DataError(f"'{path}' does not hold a target for each source.", given=f"{len(heads)}, {len(tails)}")
        others = _numbers(path, arrays, "target_node_neg", (len(heads), None), num_nodes) if split in MEASURED else None
        return SplitPairs(split, 0, heads, tails, candidates=others)
    ends = _numbers(path, arrays, "edge", (None, 2), num_nodes)
    negatives = _numbers(path, arrays, "edge_neg", (None, 2), num_nodes) if split in MEASURED else None
    weights = None
    if split == "train" and "weight" in arrays:
        given = np.asarray(arrays["weight"]).reshape(-1)
        if len(given) != len(ends):
            raise DataError(f"'{path}' does not hold a weight for each pair.", given=f"{len(given)}, {len(ends)} pairs")
        weights = WeightCheck(f"'{path}'", lambda position: f"pair {position} (counted from 0)").to_float32(given)
    return SplitPairs(split, 0, ends[:, 0], ends[:, 1], weights, negatives)


def _numbers(path: Path, arrays: Mapping[str, np.ndarray], name: str, shape: tuple[int | None, ...], n: int) -> np.ndarray:
    """int64, node numbers below n of this shape, None being any length. Raises ``DataError``."""
    array = arrays.get(name)
    if array is None:
        raise DataError(f"'{path}' holds no array '{name}'.", given=", ".join(sorted(arrays)))
    if not shape_fits(array.shape, shape) or array.dtype.kind not in "iu":
        raise DataError(
            f"'{path}' does not hold '{name}' as node numbers.",
            given=f"{array.dtype.name} {list(array.shape)}",
            allowed=f"whole numbers {[want or 'any' for want in shape]}",
        )
    tables.expect_range(path, array.reshape(len(array), -1), 0, n, f"a node that does not exist, in '{name}',")
    return array.astype(np.int64)


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """Arrays, tensors and lists of texts by name, of a file that ``torch.save`` wrote. Nothing else is unpickled.

    Raises ``DataError``.
    """
    import torch

    rebuild: Any = np.empty(0).__reduce__()[0]
    names: list[Any] = [np.ndarray, np.dtype, *{type(np.dtype(kind)) for kind in "?bBhHiIlLqQfd"}]
    # NumPy 1 wrote the files, and called the module otherwise.
    places = [(rebuild, f"numpy.{core}.multiarray._reconstruct") for core in ("core", "_core")]
    try:
        with torch.serialization.safe_globals([*names, *places]):
            content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # whatever a damaged file makes of it
        raise DataError(
            f"'{path}' cannot be read: {str(error).splitlines()[0] if str(error) else type(error).__name__}"
        ) from error
    if not isinstance(content, dict):
        raise DataError(f"'{path}' holds no arrays by name.", given=type(content).__name__)
    return {
        str(name): np.asarray(value.numpy() if isinstance(value, torch.Tensor) else value)
        for name, value in content.items()
        if isinstance(value, torch.Tensor | np.ndarray) or (isinstance(value, list) and set(map(type, value)) <= {str})
    }
