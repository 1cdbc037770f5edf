"""Graphs of other libraries as trees of arrays: DGLGraph, PyG's Data and HeteroData, NetworkX, sparse matrices, mappings.

None of the libraries is imported here: who gives an object of theirs has done so.

Letters: N nodes, E edges.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
from scipy import sparse

from sargnn.errors import DataError
from sargnn.graph.schema import SPLITS
from sargnn.sources.own.edges import EdgeArrays, EdgeList, FeaturedEdges, WeightedEdges
from sargnn.sources.own.given import (
    ALIASES,
    COUNT,
    EDGE_FEATURES,
    EDGE_LABELS,
    EDGE_MASKS,
    EDGES,
    FEATURES,
    LABELS,
    MASKS,
    NUMBERS,
    OF_EDGES,
    ON_EDGES,
    PAIRS,
    WEIGHTS,
    GivenArray,
    PlainArray,
    as_array,
    as_matrix,
    given,
    is_sparse_tensor,
    known_names,
    unit_of,
)
from sargnn.sources.own.graph import Tree, Unread
from sargnn.sources.own.pairs import labelled_pairs, marked_pairs, pair_leaf

_TRANSPOSED = "adj_t"
"""Where PyG has a sparse adjacency: a row has the sources of a node's edges."""
_LINKS, _LINK_LABELS = "edge_label_index", "edge_label"
"""What PyG's ``RandomLinkSplit`` calls pairs, and which of them are links."""
_NOT_OF_NODES = (*ALIASES[WEIGHTS], *ALIASES[EDGE_FEATURES])
FORMS = (
    "a DGLGraph (ndata feat, label, train_mask, ...), a PyG Data or HeteroData (x, y, train_mask, ...), or three of them from "
    "RandomLinkSplit, a NetworkX graph (node "
    "attributes x, y, train_mask, ...), a mapping of arrays (edge_index, x, y, train_mask, ...), or a pair of a graph and a "
    "mapping of its nodes' arrays, such as (sparse matrix, {'x': ..., 'y': ...})"
)


def tree_of(value: Any, whole: str, unread: Unread) -> Tree:
    """What a user gives, in any of the forms that there are, as arrays by name. ``unread`` gets the names that mean nothing.

    Raises ``DataError``: it is no graph, or lacks something.
    """
    if isinstance(value, tuple) and len(value) == 2 and not _is_array(value[0]):
        graph, others = value
        if _is_array(others):  # OGB's own form: a graph and its labels
            others = {LABELS: others}
        if isinstance(others, Mapping):
            return {**tree_of(graph, whole, unread), **_from_mapping(others, whole, unread)}
    if (parts := _link_splits(value)) is not None:
        train = parts.pop("train")
        return (_from_hetero if _is_a("torch_geometric", "HeteroData")(train) else _from_pyg)(train, whole, unread, parts)
    for recognises, convert in _CONVERTERS:
        if recognises(value):
            return convert(value, whole, unread)
    hint = None
    if value is None:
        hint = "does the function end with 'return graph'?"
    elif isinstance(value, str):
        hint = "a folder is named by dataset=arrays dataset.root=FOLDER"
    elif callable(value) and hasattr(value, "__name__"):
        hint = f"call it: {value.__name__}()"
    elif hasattr(value, "__getitem__") and hasattr(value, "__len__") and not _is_array(value):
        hint = "a library's dataset is a list of graphs: return dataset[0]"
    module = type(value).__module__.partition(".")[0]
    kind = f"{'' if module == 'builtins' else module + '.'}{type(value).__name__}"
    given_as = "None: nothing was returned" if value is None else kind
    raise DataError(f"{whole} is no graph that can be read.", given=given_as, allowed=FORMS, hint=hint)


def _is_array(value: Any) -> bool:
    dense = hasattr(value, "detach") and hasattr(value, "numpy") and not is_sparse_tensor(value)
    return isinstance(value, np.ndarray) or dense


def _is_matrix(value: Any) -> bool:
    return sparse.issparse(value) or is_sparse_tensor(value)


def _is_a(package: str, name: str) -> Callable[[Any], bool]:
    """Whether a value's class, or one that it extends, is that of this package."""
    return lambda value: any(
        base.__module__.partition(".")[0] == package and base.__name__ == name for base in type(value).__mro__
    )


def _link_splits(value: Any) -> dict[str, Any] | None:
    """Name of a split -> PyG's graph, of three in this order or by name, as ``RandomLinkSplit`` gives them; else None."""
    if isinstance(value, tuple | list) and len(value) == len(SPLITS):
        value = dict(zip(SPLITS, value, strict=True))
    if not isinstance(value, Mapping) or "train" not in value:
        return None
    parts = {"valid" if name == "val" else name: part for name, part in value.items()}
    kinds = [_is_a("torch_geometric", name) for name in ("Data", "HeteroData")]
    same = any(all(is_kind(part) for part in parts.values()) for is_kind in kinds)
    return parts if same and parts.keys() <= SPLITS.keys() else None


def _labelled(parts: Mapping[str, Any], called: str) -> dict[str, Any]:
    """Pairs and negatives that PyG's graphs have by split, or the relation of each."""
    tree: dict[str, Any] = {}
    for split, part in parts.items():
        arrays = [
            None if value is None else given(f"{split if len(parts) > 1 else 'data'}{called}.{key}", value, "pair")
            for key in (_LINKS, _LINK_LABELS)
            for value in [getattr(part, key, None)]
        ]
        if arrays[0] is not None:
            tree |= labelled_pairs(split, arrays[0], arrays[1])
    return tree


def _leaf(used: str, called: str, value: Any, *, of_type: bool = False) -> Any:
    """What the tree holds for a value of the name ``used``; ``of_type``: for one node type or relation."""
    if used == COUNT:
        if isinstance(value, bool) or not isinstance(value, int | np.integer):
            raise DataError(f"{called} must be a whole number.", given=repr(value)[:60])
        return int(value)
    if used == EDGES:
        return _edges(called, value, of_relation=of_type)
    array = given(called, list(value) if isinstance(value, tuple) else value, unit_of(used))
    return pair_leaf(used, array) if used in PAIRS else array


def _edges(called: str, value: Any, *, of_relation: bool = False) -> EdgeList:
    """Edges in any form. ``of_relation``: their ends may be of two types, so that a matrix need not be square."""
    if _is_matrix(value):
        matrix: Any = as_matrix(called, value)
        if not of_relation and matrix.shape[0] != matrix.shape[1]:
            raise DataError(f"{called} is no adjacency matrix: it is not square.", given=f"shape {list(matrix.shape)}")
        entries = sparse.coo_array(matrix)
        stored = entries.data != 0
        edges = EdgeArrays(called, PlainArray(called, entries.row[stored]), PlainArray(called, entries.col[stored]))
        values = entries.data[stored]  # other ones than 1 are weights
        return WeightedEdges(edges, given(f"the values of {called}", values, "edge")) if (values != 1).any() else edges
    if (
        isinstance(value, tuple | list)
        and len(value) == 2
        and (_is_array(value[0]) or isinstance(value[0], list | tuple | range))
    ):
        ends = [given(f"{called}, {what}", end) for what, end in zip(("sources", "destinations"), value, strict=True)]
        nothing = np.zeros(0, np.int64)  # an empty list has no dtype of its own
        return EdgeArrays(called, *(end if end.shape[0] else PlainArray(end.name, nothing) for end in ends))
    if hasattr(value, "coo") and hasattr(value, "sparse_sizes"):  # PyG's SparseTensor, transposed: rows are destinations
        destinations, sources, values = value.coo()
        edges = EdgeArrays(called, given(called, sources), given(called, destinations))
        if values is None:
            return edges
        numbers = given(f"the values of {called}", values, "edge")
        return WeightedEdges(edges, numbers) if numbers.shape[1:] in ((), (1,)) else FeaturedEdges(edges, numbers)
    return EdgeArrays.of_index(given(called, value))


def _transposed_edges(called: str, value: Any, *, of_relation: bool = False) -> EdgeList:
    matrix = as_matrix(called, value)
    return _edges(called, value if matrix is None else matrix.T, of_relation=of_relation)


def _from_mapping(mapping: Mapping[Any, Any], whole: str, unread: Unread) -> dict[str, Any]:
    """Arrays by name; of a typed graph mappings of arrays by type."""
    if not all(isinstance(key, str) for key in mapping):
        wrong = next(key for key in mapping if not isinstance(key, str))
        raise DataError(f"{whole} has a key that is no name.", given=repr(wrong)[:60], allowed="'edge_index', 'x', 'y', ...")
    tree: dict[str, Any] = {}
    names = [name for name, value in mapping.items() if value is not None]
    for used, name in known_names(names, whole, unread.of_graph).items():
        value, called = mapping[name], f"'{name}'"
        if isinstance(value, Mapping):
            tree[used] = {
                _type_key(used, called, key): _leaf(used, f"{called} of {key!r}", leaf, of_type=True)
                for key, leaf in value.items()
                if leaf is not None
            }
        else:
            tree[used] = _leaf(used, called, value)
            if used == EDGES and _is_matrix(value):
                tree.setdefault(COUNT, int(value.shape[0]))
    return tree


def _type_key(used: str, called: str, key: Any) -> Any:
    if used in OF_EDGES:
        if not (isinstance(key, tuple) and len(key) == 3 and all(isinstance(name, str) for name in key)):
            allowed = "('author', 'writes', 'paper')"
            raise DataError(
                f"{called} has a key that does not say which types are joined.", given=repr(key)[:60], allowed=allowed
            )
    elif not isinstance(key, str):
        raise DataError(f"{called} has a key that is no node type.", given=repr(key)[:60])
    return key


def _collect(
    tree: dict[str, Any], node_type: str, data: Mapping[str, Any], called: Callable[[str], str], whole: str, unread: Unread
) -> None:
    names = {str(name): called(str(name)) for name in data}
    for used, name in known_names(names, whole, unread.of_graph, without=_NOT_OF_NODES).items():
        if used not in (EDGES, COUNT) and data[name] is not None:
            tree.setdefault(used, {})[node_type] = _leaf(used, names[name], data[name])


def _flat_if_single(tree: dict[str, Any]) -> Tree:
    """A graph of one type and one relation has no types."""
    types = {end for triplet in tree[EDGES] for end in (triplet[0], triplet[2])} | tree[COUNT].keys()
    if len(tree[EDGES]) != 1 or len(types) != 1:
        return tree
    return {used: next(iter(values.values())) for used, values in tree.items()}


def _from_dgl(graph: Any, whole: str, unread: Unread) -> Tree:
    if getattr(graph, "is_block", False):
        raise DataError(f"{whole} is a block, a step of a sampler.", given="DGLBlock", allowed="a DGLGraph")
    tree: dict[str, Any] = {EDGES: {}, COUNT: {ntype: int(graph.num_nodes(ntype)) for ntype in graph.ntypes}}
    single = len(graph.ntypes) == 1
    # A graph that may be stored by row or by column only cannot list its edges by their numbers.
    in_all_formats = graph.formats(["coo", "csr", "csc"])
    for triplet in graph.canonical_etypes:
        several, data = len(graph.canonical_etypes) > 1, dict(graph.edges[triplet].data)
        prefix = f"edges[{tuple(triplet)}].data" if several else "edata"
        masks = {name: given(f"{prefix}['{name}']", data.pop(name), "edge") for name in [*data] if name in MASKS}
        names = {str(name): f"{prefix}['{name}']" for name in data}
        carried = _on_edges(names, data, whole, unread)
        for used, array in carried.items():
            tree.setdefault(used, {})[tuple(triplet)] = array
        called = f"the edges {triplet}" if several else "the graph's edges"
        sources, destinations = in_all_formats.edges(etype=triplet)
        ends = given(called, sources), given(called, destinations)
        tree[EDGES][tuple(triplet)] = EdgeArrays(called, *ends)
        for name, mask in masks.items():
            if MASKS[name] in [MASKS[other] for other in masks if other != name]:
                raise DataError(f"{whole} has {prefix}['val_mask'] and {mask.name}, which mean the same.", hint="leave one out")
            if EDGE_LABELS in carried:
                tree.setdefault(f"edge_{name}", {})[tuple(triplet)] = mask
                continue
            tree.setdefault(f"{MASKS[name]}_pairs", {})[tuple(triplet)] = marked_pairs(called, *ends, mask)
    for ntype in graph.ntypes:
        prefix = "ndata" if single else f"nodes['{ntype}'].data"
        _collect(tree, ntype, dict(graph.nodes[ntype].data), lambda name, prefix=prefix: f"{prefix}['{name}']", whole, unread)  # type: ignore[misc]
    return _flat_if_single(tree)


def _on_edges(names: Mapping[str, str], data: Mapping[str, Any], whole: str, unread: Unread) -> dict[str, GivenArray]:
    """Which data of edges are weights, and which features, if any; others are left out. Raises ``DataError``: several are."""
    arrays: dict[str, GivenArray] = {}
    for used, known in ON_EDGES.items():
        alike = [name for name in names if name in known]
        if len(alike) > 1:
            both = " and ".join(names[name] for name in alike)
            raise DataError(f"{whole} has {both}, which mean the same.", hint="leave one out")
        for name in alike:
            arrays[used] = given(names[name], data[name], "edge")
    unread.of_edges.extend(names[name] for name in names if not any(name in known for known in ON_EDGES.values()))
    return arrays


def _from_pyg(data: Any, whole: str, unread: Unread, held: Mapping[str, Any] = MappingProxyType({})) -> Tree:
    """``held``: graphs that have validation and test pairs."""
    keys = data.keys() if callable(data.keys) else data.keys  # a property in older releases
    values = {str(key): data[key] for key in keys}
    tree: dict[str, Any] = _labelled({"train": data, **held}, "")
    if values.pop(_LINKS, None) is not None:
        values.pop(_LINK_LABELS, None)
    if EDGES not in values and values.get(_TRANSPOSED) is not None:
        tree[EDGES] = _transposed_edges(f"data.{_TRANSPOSED}", values.pop(_TRANSPOSED))
    names = {name: f"data.{name}" for name in values}
    others: list[str] = []
    known = known_names(names, whole, others, without=("weight", "w"))
    for called in others:
        (unread.of_edges if called.startswith("data.edge_") else unread.of_graph).append(called)
    for used, name in known.items():
        if values[name] is not None:
            tree[used] = _leaf(used, names[name], values[name])
    if EDGES not in tree:
        raise DataError(f"{whole} has no edges.", given=", ".join(sorted(values)) or "nothing", hint="data.edge_index, [2, E]")
    if FEATURES not in tree and LABELS not in tree and data.num_nodes is not None:
        tree.setdefault(COUNT, int(data.num_nodes))
    return tree


def _from_hetero(data: Any, whole: str, unread: Unread, held: Mapping[str, Any] = MappingProxyType({})) -> Tree:
    tree: dict[str, Any] = {EDGES: {}, COUNT: {}}
    for triplet in data.edge_types:
        store = data[triplet]
        called = f"data{list(triplet)}"
        if store.get(EDGES) is not None:
            tree[EDGES][tuple(triplet)] = _edges(f"{called}.{EDGES}", store[EDGES], of_relation=True)
        elif store.get(_TRANSPOSED) is not None:
            turned = store[_TRANSPOSED]
            tree[EDGES][tuple(triplet)] = _transposed_edges(f"{called}.{_TRANSPOSED}", turned, of_relation=True)
        else:
            raise DataError(f"{whole} has no edges of the type {triplet}.", hint=f"{called}.{EDGES}, [2, E]")
        parts = {split: part[triplet] for split, part in {"train": data, **held}.items()}
        for name, pairs in _labelled(parts, str(list(triplet))).items():
            tree.setdefault(name, {})[tuple(triplet)] = pairs
        read = (EDGES, _TRANSPOSED, *((_LINKS, _LINK_LABELS) if store.get(_LINKS) is not None else ()))
        others = {str(key): store[key] for key in store if key not in read and store[key] is not None}
        labelled = any(name in ON_EDGES[EDGE_LABELS] for name in others)
        for name in [name for name in others if labelled and (name in MASKS or name in EDGE_MASKS)]:
            used = name if name in EDGE_MASKS else f"edge_{name}"
            tree.setdefault(used, {})[tuple(triplet)] = given(f"{called}.{name}", others.pop(name), "edge")
        read_of = (WEIGHTS, *ALIASES[EDGE_FEATURES], *ON_EDGES[EDGE_LABELS])
        names = {key: f"{called}.{key}" for key in others if key in read_of}
        for used, array in _on_edges(names, others, whole, unread).items():
            tree.setdefault(used, {})[tuple(triplet)] = array
        unread.of_edges.extend(f"{called}.{key}" for key in others if key not in names)
    for ntype in data.node_types:
        store = data[ntype]
        values = {str(key): store[key] for key in store}
        _collect(tree, ntype, values, lambda name, ntype=ntype: f"data['{ntype}'].{name}", whole, unread)  # type: ignore[misc]
        if store.num_nodes is not None:
            tree[COUNT][ntype] = int(store.num_nodes)
    if not tree[EDGES]:
        raise DataError(f"{whole} has no edges.", given=", ".join(data.node_types))
    return _flat_if_single(tree)


def _from_networkx(graph: Any, whole: str, unread: Unread) -> Tree:
    numbers = {node: number for number, node in enumerate(graph.nodes)}
    pairs = np.array([(numbers[a], numbers[b]) for a, b in graph.edges()], np.int64).reshape(-1, 2)
    count, directed = len(pairs), graph.is_directed()
    both_ways = np.zeros(count, bool) if directed else pairs[:, 0] != pairs[:, 1]
    pairs = np.concatenate([pairs, pairs[both_ways][:, ::-1]])  # an edge without direction goes both ways; a loop once
    called = "the graph's edges"
    tree: dict[str, Any] = {
        COUNT: len(numbers),
        EDGES: EdgeArrays(called, PlainArray(called, pairs[:, 0]), PlainArray(called, pairs[:, 1])),
    }
    names = {str(name): f"the edge attribute '{name}'" for _, _, data in graph.edges(data=True) for name in data}
    given_arrays: dict[str, GivenArray] = {}
    if names.pop("weight", None) is not None:  # NetworkX takes an edge without one for 1
        weights = [weight for *_, weight in graph.edges(data="weight", default=1)]
        given_arrays[WEIGHTS] = given("the edge attribute 'weight'", weights, "edge")
    features = [name for name in names if name in ON_EDGES[EDGE_FEATURES]]
    if len(features) > 1:
        both = " and ".join(names[name] for name in features)
        raise DataError(f"{whole} has {both}, which mean the same.", hint="leave one out")
    for name in features:
        called = names.pop(name)
        values = [value for *_, value in graph.edges(data=name)]
        array = _stack(values, [f"edge {edge!r}" for edge in graph.edges()], called, "edges")
        given_arrays[EDGE_FEATURES] = PlainArray(called, array)
    labels = [name for name in names if name in ON_EDGES[EDGE_LABELS]]
    for name in labels[:1]:  # an edge without direction is one edge to predict
        called = names.pop(name)
        values = [value for *_, value in graph.edges(data=name)]
        blank = _blank(next((as_array(value) for value in values if value is not None), None))
        values = [blank if value is None else value for value in values]
        array = _stack(values, [f"edge {edge!r}" for edge in graph.edges()], called, "edges")
        again = np.broadcast_to(np.asarray(blank), (int(both_ways.sum()), *array.shape[1:]))
        tree[EDGE_LABELS] = PlainArray(called, np.concatenate([array, again]))
    for used, given_array in given_arrays.items():
        array = given_array.whole()
        tree[used] = PlainArray(given_array.name, np.concatenate([array, array[both_ways]]) if len(array) == count else array)
    unread.of_edges.extend(names.values())
    attributes = {str(name): f"the node attribute '{name}'" for _, data in graph.nodes(data=True) for name in data}
    for used, name in known_names(attributes, whole, unread.of_graph, without=_NOT_OF_NODES).items():
        if used not in (EDGES, COUNT):
            tree[used] = given(attributes[name], _attribute(graph, used, name, attributes[name]))
    return tree


def _attribute(graph: Any, used: str, name: str, called: str) -> np.ndarray | list[Any]:
    """An attribute of all nodes; a node without it is in no split and has no label, but must have features."""
    values = [data.get(name) for _, data in graph.nodes(data=True)]
    example = next((value for value in values if value is not None), None)
    first = as_array(example)
    if (used in MASKS or used in NUMBERS) and (first is None or not first.shape):
        return np.array([bool(value) for value in values])
    if first is not None and used in MASKS:  # a column for each split
        values = [np.zeros(first.shape, bool) if value is None else value for value in values]
    if first is not None and used == LABELS:
        values = [_blank(first) if value is None else value for value in values]
    return _stack(values, [f"node {node!r}" for node in graph.nodes], called, "nodes")


def _blank(label: np.ndarray | None) -> Any:
    """What stands for a label that is not there, among some like this one."""
    several = label is not None and (label.shape or label.dtype.kind == "f")
    return np.full(label.shape, np.nan) if several and label is not None else -1


def _stack(values: list[Any], places: list[str], called: str, of: str) -> np.ndarray:
    """An attribute's values, which all have one shape; ``places``, ``of``: what messages call each, and all."""
    example = next((value for value in values if value is not None), None)
    first = as_array(example)
    if first is None or first.dtype.kind not in "fiub":
        hint = "number texts first: np.unique(texts, return_inverse=True)[1]" if isinstance(example, str) else None
        raise DataError(f"{called} holds no numbers.", given=repr(example)[:60], hint=hint)
    arrays = [None if value is None else as_array(value) for value in values]
    for place, array in zip(places, arrays, strict=True):
        if array is None or array.shape != first.shape or array.dtype.kind not in "fiub":
            what = "nothing" if array is None else f"shape {list(array.shape)}, {array.dtype.name}"
            raise DataError(
                f"{called} is not there for all {of} in one shape.",
                given=f"{place}: {what}",
                allowed=f"shape {list(first.shape)}",
            )
    return np.stack([np.asarray(array) for array in arrays])


_CONVERTERS: tuple[tuple[Callable[[Any], bool], Callable[[Any, str, Unread], Tree]], ...] = (
    (_is_a("dgl", "DGLGraph"), _from_dgl),
    (_is_a("torch_geometric", "HeteroData"), _from_hetero),
    (_is_a("torch_geometric", "Data"), _from_pyg),
    (_is_a("networkx", "Graph"), _from_networkx),
    (_is_matrix, lambda matrix, whole, _: {EDGES: _edges(whole, matrix), COUNT: int(matrix.shape[0])}),
    (lambda value: isinstance(value, Mapping), _from_mapping),
)
