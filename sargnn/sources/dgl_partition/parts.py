"""The description of a partition by ``dgl.distributed.partition_graph``: a JSON file beside one folder for each part.

    NAME.json: graph_name, num_parts, num_nodes, num_edges,
               node_map: type -> [first, last + 1] of each part, edge_map: HEAD:RELATION:TAIL -> likewise,
               part-K: part_graph, node_feats and edge_feats, files beside it; the last is needed for what edges carry only
    partK/graph.dgl: the part's own nodes and their in-edges, with the halo that these come from
    partK/node_feat.dgl: TYPE/NAME -> rows of the own nodes
    partK/edge_feat.dgl: HEAD:RELATION:TAIL/NAME -> a row for each of the part's own edges, in the order of its graph

DGL numbers nodes and edges anew, so that every part has a range of each type: these are the ids in its files.

Weights and features of edges are edge data called as in own graphs, such as ``w`` and ``feat``.

Letters: N nodes, P parts, D features of an edge, e own edges of a part of one relation.
"""

from __future__ import annotations

import json
import logging
import re
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from sargnn.errors import DataError
from sargnn.graph.check import EdgeCheck, check_widths
from sargnn.graph.edge_columns import ATTR, NO_COLUMNS, WEIGHT, WEIGHT_FORM, EdgeColumns, attr_form
from sargnn.interop.dgl import PartGraph, load_tensors
from sargnn.sources.own.given import EDGE_FEATURES, ON_EDGES, WEIGHTS

_CALLED = {WEIGHT: ON_EDGES[WEIGHTS], ATTR: ON_EDGES[EDGE_FEATURES]}
Triplet = tuple[str, str, str]
Ranges = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class DglParts:
    """A partition as its JSON file describes it; types and relations in sorted order.

    Attributes:
        path: the JSON file.
        name: of the graph.
        nodes: type -> P ranges of DGL's ids.
        edges: (head, relation, tail) -> likewise.
        type_order: the types as DGL numbers them.
        graphs, node_data, edge_data: the files of the parts; of edge data none unless all have one.
    """

    path: Path
    name: str
    num_nodes: int
    num_edges: int
    nodes: dict[str, Ranges]
    edges: dict[Triplet, Ranges]
    type_order: tuple[str, ...]
    graphs: tuple[Path, ...]
    node_data: tuple[Path, ...]
    edge_data: tuple[Path, ...]

    @property
    def num_parts(self) -> int:
        return len(self.graphs)

    @property
    def typed(self) -> bool:
        """Whether there is more than one type or relation."""
        return len(self.nodes) > 1 or len(self.edges) > 1

    @cached_property
    def counts(self) -> dict[str, int]:
        return {name: sum(last - first for first, last in ranges) for name, ranges in self.nodes.items()}

    @cached_property
    def offsets(self) -> dict[str, int]:
        """Where each type's nodes begin in our numbering, type by type."""
        starts = np.cumsum([0, *self.counts.values()])[:-1].tolist()
        return dict(zip(self.counts, starts, strict=True))

    def own_nodes(self, p: int, graph: PartGraph) -> dict[str, np.ndarray]:
        """Type -> DGL's ids of part p's own nodes, in the order of the rows of their data. Raises ``DataError``."""
        own = graph.node_ids[graph.own_nodes]
        own_ids = {name: own[(own >= ranges[p][0]) & (own < ranges[p][1])] for name, ranges in self.nodes.items()}
        for name, ids in own_ids.items():
            if not np.array_equal(np.sort(ids), np.arange(*self.nodes[name][p])):
                raise self._disagree(p, f"nodes of type '{name}'", len(ids), self.nodes[name][p])
        if sum(map(len, own_ids.values())) != len(own) or not in_bounds(graph.node_ids, self.num_nodes):
            raise self._disagree(p, "nodes", len(own), (0, sum(map(len, own_ids.values()))))
        return own_ids

    def own_edges(self, p: int, graph: PartGraph) -> dict[Triplet, tuple[np.ndarray, np.ndarray]]:
        """Relation -> DGL's ids of the sources and destinations of part p's own edges. Raises ``DataError``."""
        ids = graph.edge_ids[graph.own_edges]
        ends = graph.sources[graph.own_edges], graph.destinations[graph.own_edges]
        own_ends = {}
        for triplet, ranges in self.edges.items():
            first, last = ranges[p]
            chosen = (ids >= first) & (ids < last)
            if not np.array_equal(np.sort(ids[chosen]), np.arange(first, last)):
                raise self._disagree(p, f"edges '{':'.join(triplet)}'", int(chosen.sum()), ranges[p])
            sources, destinations = (graph.node_ids[end[chosen]] for end in ends)
            for name, numbers in ((triplet[0], sources), (triplet[2], destinations)):
                if (self.types_of(numbers) != list(self.nodes).index(name)).any():
                    raise DataError(f"'{self.graphs[p]}' has an edge '{':'.join(triplet)}' whose end is no '{name}'.")
            own_ends[triplet] = sources, destinations
        if sum(len(sources) for sources, _ in own_ends.values()) != len(ids):
            raise self._disagree(p, "edges", len(ids), (0, sum(len(sources) for sources, _ in own_ends.values())))
        return own_ends

    def types_of(self, ids: np.ndarray) -> np.ndarray:
        """Which of the sorted types each of DGL's ids is of, int64."""
        pieces = [(a, t) for t, ranges in enumerate(self.nodes.values()) for a, b in ranges if b > a]
        starts, types = np.array(sorted(pieces), np.int64).reshape(-1, 2).T
        return types[np.searchsorted(starts, ids, side="right") - 1]

    def numbers_in_type(self, name: str, ids: np.ndarray) -> np.ndarray:
        """DGL's numbers within a type, for DGL's ids of nodes of this type: part after part. int64."""
        firsts = np.array([first for first, _ in self.nodes[name]], np.int64)
        before = np.cumsum([0, *(last - first for first, last in self.nodes[name])])[:-1]
        order = np.argsort(firsts, kind="stable")
        which = order[np.searchsorted(firsts[order], ids, side="right") - 1]
        return ids - firsts[which] + before[which]

    def _disagree(self, p: int, what: str, given: int, wanted: tuple[int, int]) -> DataError:
        return DataError(
            f"'{self.graphs[p]}' and '{self.path}' disagree about the part's own {what}.",
            given=f"{given} in the graph",
            allowed=f"{wanted[1] - wanted[0]}, each number of its range once",
        )


def in_bounds(ids: np.ndarray, count: int) -> bool:
    return not len(ids) or (int(ids.min()) >= 0 and int(ids.max()) < count)


def read_parts(path: Path) -> DglParts:
    """Read the JSON file, and see that the parts' files are there.

    Raises ``DataError``: a file is missing, is no JSON, or says something else than DGL writes; it is named.
    """
    try:
        content = json.loads(path.read_text())
    except OSError as error:
        hint = "sargnn import-dgl NAME.json, which dgl.distributed.partition_graph wrote"
        raise DataError(f"'{path}' cannot be read: {error.strerror}.", hint=hint) from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"'{path}' is no JSON: {error}") from error
    try:
        return _take_apart(path, content)
    except KeyError as error:
        raise _wrong(path, f"the entry {error} is missing") from error
    except (TypeError, ValueError, AttributeError, OverflowError) as error:
        raise _wrong(path, str(error)) from error


def _wrong(path: Path, why: str) -> DataError:
    return DataError(f"'{path}' is not what dgl.distributed.partition_graph writes: {why}.")


def _take_apart(path: Path, content: Any) -> DglParts:
    parts = _whole(content["num_parts"], 1)
    nodes = {str(name): _ranges(f"node_map of '{name}'", ranges, parts) for name, ranges in sorted(content["node_map"].items())}
    edges = {
        _triplet(key, nodes): _ranges(f"edge_map of '{key}'", ranges, parts) for key, ranges in content["edge_map"].items()
    }
    num_nodes, num_edges = _whole(content["num_nodes"], 1), _whole(content["num_edges"], 0)
    _check_cover("node_map", nodes.values(), num_nodes)
    _check_cover("edge_map", edges.values(), num_edges)
    order = content.get("ntypes") or dict.fromkeys(nodes, 0)
    if sorted(order) != list(nodes):
        raise ValueError("ntypes and node_map name different types")
    files: dict[str, list[Path]] = {"part_graph": [], "node_feats": []}
    for p in range(parts):
        for what, paths in files.items():
            entry = content[f"part-{p}"]
            if what not in entry and "part_graph_graphbolt" in entry:
                raise ValueError(f"part-{p} is there in GraphBolt's form only")
            paths.append(path.parent / entry[what])
    if missing := [file for paths in files.values() for file in paths if not file.is_file()]:
        raise DataError(
            f"The part file '{missing[0]}' is missing.", hint=f"'{path}' needs the folders that DGL wrote beside it"
        )
    name = re.sub(r"[^\w.+-]", "_", str(content["graph_name"]))[:60].lstrip(".+-") or "graph"
    types = tuple(sorted(order, key=lambda node_type: order[node_type]))
    graphs, node_data = (tuple(paths) for paths in files.values())
    named = [content[f"part-{p}"].get("edge_feats") for p in range(parts)]
    edge_data = tuple(path.parent / file for file in named if file is not None and (path.parent / file).is_file())
    edge_data = edge_data if len(edge_data) == parts else ()
    sorted_edges = dict(sorted(edges.items()))
    return DglParts(path, name, num_nodes, num_edges, nodes, sorted_edges, types, graphs, node_data, edge_data)


def _whole(value: Any, low: int) -> int:
    if type(value) is not int or value < low:
        raise ValueError(f"{str(value)[:60]} stands where a whole number from {low} belongs")
    return value


def _ranges(what: str, value: Any, parts: int) -> Ranges:
    pairs = [bounds for bounds in value if isinstance(bounds, list) and len(bounds) == 2] if isinstance(value, list) else []
    if not isinstance(value, list) or not len(pairs) == len(value) == parts:
        raise ValueError(f"the {what} is no list of {parts} ranges, one for each part")
    return tuple((_whole(first, 0), _whole(last, first)) for first, last in pairs)


def _check_cover(what: str, ranges: Any, total: int) -> None:
    """The ranges follow each other from 0 to ``total``."""
    end = 0
    for first, last in sorted(bounds for each in ranges for bounds in each):
        if first != end:
            raise ValueError(f"the ranges of its {what} leave out or repeat number {min(first, end)}")
        end = last
    if end != total:
        raise ValueError(f"the ranges of its {what} end at {end} instead of {total}")


def _triplet(key: str, nodes: dict[str, Ranges]) -> Triplet:
    """Older files of graphs with one node type give the relation's name only."""
    head, *rest = key.split(":")
    if not rest and len(nodes) == 1:
        return next(iter(nodes)), head, next(iter(nodes))
    if len(rest) != 2 or head not in nodes or rest[1] not in nodes:
        raise ValueError(f"the relation '{key[:60]}' is no HEAD:RELATION:TAIL of its node types")
    return head, rest[0], rest[1]


@dataclass(frozen=True)
class DglColumns:
    """Which edge data are weights, and which are features.

    Attributes:
        keys: of weights (``WEIGHT``) and features (``ATTR``): relation -> name in the files; relations without are left out.
        width: D, how many features an edge has in the first part; 0: none.
    """

    files: tuple[Path, ...]
    keys: dict[str, dict[Triplet, str]]
    width: int

    @property
    def forms(self) -> dict[str, np.dtype]:
        """What edges carry in a store."""
        known = {WEIGHT: WEIGHT_FORM, ATTR: attr_form(self.width)}
        return {name: form for name, form in known.items() if self.keys[name]}

    def of_part(self, p: int, counts: dict[Triplet, int]) -> dict[Triplet, EdgeColumns]:
        """Relation -> what the part's own edges carry, checked, fp32. ``counts``: how many there are.

        Raises ``DataError`` with the file's name: they are not there, of another shape, or not finite.
        """
        place, columns = self.files[p] if self.files else Path(), dict.fromkeys(counts, NO_COLUMNS)
        data = load_tensors(place) if self.forms else {}
        for name, keys in self.keys.items():
            for triplet, key in keys.items():
                rows, count = data.get(key), counts[triplet]
                size = count if name == WEIGHT else count * self.width
                if rows is None or rows.shape[:1] != (count,) or rows.size != size:
                    raise DataError(
                        f"'{place}' does not hold '{key}' for each of the part's own edges.",
                        given="nothing" if rows is None else list(rows.shape),
                        allowed=f"[{count}]" if name == WEIGHT else f"[{count}, {self.width}]",
                    )
                check = EdgeCheck(f"'{place}'", str(place), partial(_row_of, key))
                given = columns[triplet].put(name, rows.reshape(-1) if name == WEIGHT else rows.reshape(count, self.width))
                columns[triplet] = check.checked(given)
                check.finish()
        return columns


def _row_of(key: str, position: int) -> str:
    return f"row {position} of '{key}' (counted from 0)"


def find_columns(parts: DglParts) -> DglColumns:
    """What the edges of the first part carry; a warning names edge data that is not read.

    Raises ``DataError``: two names mean the same, or features are no table.
    """
    keys: dict[str, dict[Triplet, str]] = {WEIGHT: {}, ATTR: {}}
    if not parts.edge_data:
        return DglColumns((), keys, 0)
    place, others = parts.edge_data[0], []
    data = load_tensors(place)
    for key in sorted(data):
        prefix, _, name = key.rpartition("/")
        triplet = next((relation for relation in parts.edges if prefix in (":".join(relation), relation[1])), None)
        used = next((column for column, known in _CALLED.items() if name in known), None)
        if triplet is None or used is None:
            others.append(key)
        elif triplet in keys[used]:
            raise DataError(f"'{place}' holds '{keys[used][triplet]}' and '{key}', which mean the same.", hint="leave one out")
        else:
            keys[used][triplet] = key
    widths = {key: data[key].shape[1] if data[key].ndim == 2 else data[key].ndim == 1 for key in keys[ATTR].values()}
    check_widths(f"'{place}'", {key: int(width) for key, width in widths.items()})
    if not all(widths.values()):
        key = next(key for key, width in widths.items() if not width)
        raise DataError(f"'{place}' holds edge features that are no table.", given=f"'{key}' {list(data[key].shape)}")
    if others:
        logging.getLogger(__name__).warning(f"not read of '{place.parent.parent}': edge data {', '.join(others)}")
    return DglColumns(parts.edge_data, keys, int(next(iter(widths.values()), 0)))
