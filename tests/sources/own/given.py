"""One graph in every form that a user may give it in."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import sparse

from sargnn.graph.dataset import Dataset
from sargnn.graph.edge_columns import ATTR
from sargnn.graph.schema import SPLITS

OF_EDGES = ("edge_index", "edge_weight", "edge_attr")
MASKS = {"train_mask": "train", "val_mask": "valid", "test_mask": "test"}
Arrays = dict[str, Any]


def arrays_of(dataset: Dataset) -> Arrays:
    """A homogeneous dataset as a mapping of arrays, edges in another order than the store's."""
    destination = np.repeat(np.arange(dataset.num_nodes), np.diff(dataset.indptr))
    order = np.random.default_rng(1).permutation(dataset.num_edges)
    edges = np.stack([np.asarray(dataset.indices, np.int64), destination])[:, order]
    weights = {} if dataset.columns.weight is None else {"edge_weight": dataset.columns.weight[order]}
    features = {"edge_attr": np.asarray(dataset.columns[ATTR])[order]} if ATTR in dataset.columns else {}
    return {
        "edge_index": edges,
        **weights,
        **features,
        "x": np.asarray(dataset.features[0]),
        "y": np.asarray(dataset.labels),
        **{name: np.asarray(dataset.split) == SPLITS[split] for name, split in MASKS.items()},
    }


def typed_arrays_of(dataset: Dataset) -> Arrays:
    """A typed dataset as a mapping of mappings."""
    schema = dataset.schema
    destination = np.repeat(np.arange(dataset.num_nodes), np.diff(dataset.indptr))
    assert dataset.relation is not None
    edges: dict[Any, Any] = {}
    weights: dict[Any, Any] = {}
    features: dict[Any, Any] = {}
    for number, (source, name, end) in enumerate(schema.relations):
        own = dataset.relation == number
        pair = np.asarray(dataset.indices)[own] - schema.offsets[source], destination[own] - schema.offsets[end]
        triplet = schema.node_types[source], name, schema.node_types[end]
        edges[triplet] = np.stack(pair).astype(np.int64)
        if dataset.columns.weight is not None:
            weights[triplet] = dataset.columns.weight[own]
        if ATTR in dataset.columns:
            features[triplet] = np.asarray(dataset.columns[ATTR])[own]
    labelled = int(schema.types_of(np.flatnonzero(np.asarray(dataset.split))[:1])[0])
    own_nodes = slice(*schema.offsets[labelled : labelled + 2])
    labelled_name = schema.node_types[labelled]
    return {
        "edge_index": edges,
        **({"edge_weight": weights} if weights else {}),
        **({"edge_attr": features} if features else {}),
        "x": {t: rows for t, rows in zip(schema.node_types, dataset.features, strict=True) if rows.shape[1]},
        "num_nodes": {t: schema.count(k) for k, t in enumerate(schema.node_types)},
        "y": {labelled_name: dataset.labels[own_nodes]},
        **{name: {labelled_name: dataset.split[own_nodes] == SPLITS[split]} for name, split in MASKS.items()},
    }


def save_arrays(folder: Path, arrays: Arrays) -> Path:
    """As files of a folder; a mapping as a folder in it."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, value in arrays.items():
        if isinstance(value, dict):
            save_arrays(folder / name, {"___".join(key) if isinstance(key, tuple) else key: one for key, one in value.items()})
        else:
            np.save(folder / f"{name}.npy", value)
    return folder


def write_csv(
    folder: Path, arrays: Arrays, *, header: str = "", separator: str = ",", quote: str = "", more: str = "",
    weight: str = "",
) -> Path:  # fmt: skip
    """Weights as a file of their own, or as a third column called ``weight``."""
    columns = ("edge_weight", "edge_attr") if weight else ()
    save_arrays(folder, {name: value for name, value in arrays.items() if name not in ("edge_index", *columns)})
    if weight:
        others = [] if "edge_attr" not in arrays else arrays["edge_attr"].T.tolist()
        table = zip(*arrays["edge_index"].tolist(), arrays["edge_weight"].tolist(), *others, strict=True)
        lines = [["source", "target", weight, *(f"Edge_Attr_{name}" for name in "ab"[: len(others)])], *table]
        (folder / "edges.csv").write_text("".join(separator.join(map(str, one)) + "\n" for one in lines))
        return folder
    rows = "".join(f"{quote}{a}{separator}{b}{quote}{more}\n" for a, b in arrays["edge_index"].T.tolist())
    (folder / "edges.csv").write_text(header + rows, encoding="utf-8")
    return folder


def write_parquet(folder: Path, arrays: Arrays) -> Path:
    pytest.importorskip("pyarrow")
    from pyarrow import parquet, table

    save_arrays(folder, {name: value for name, value in arrays.items() if name not in ("edge_index", "edge_attr")})
    source, destination = arrays["edge_index"]
    features = {f"edge_features_{k}": column for k, column in enumerate(arrays.get("edge_attr", np.zeros((1, 0))).T)}
    columns = features | {"year": np.ones(len(source)), "dst": destination.astype(np.int32), "src": source.astype(np.int32)}
    parquet.write_table(table(columns), folder / "edges.parquet", row_group_size=100)
    return folder


def write_npz(folder: Path, arrays: Arrays, save: Callable[..., Any]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    save(folder / "graph.npz", **arrays)
    return folder / "graph.npz"


def with_numbers(arrays: Arrays) -> Arrays:
    """Node numbers instead of masks."""
    numbers = {name.replace("mask", "idx"): np.flatnonzero(value) for name, value in arrays.items() if name in MASKS}
    return {name: value for name, value in arrays.items() if name not in MASKS} | numbers


def as_dgl(arrays: Arrays) -> Any:
    import dgl
    import torch

    source, destination = map(torch.from_numpy, arrays["edge_index"])
    graph = dgl.graph((source, destination), num_nodes=len(arrays["x"]))
    names = {"x": "feat", "y": "label"}
    graph.ndata.update({names.get(k, k): torch.from_numpy(v) for k, v in arrays.items() if k not in OF_EDGES})
    if "edge_weight" in arrays:
        graph.edata["w"] = torch.from_numpy(arrays["edge_weight"])[:, None]
    if "edge_attr" in arrays:
        graph.edata["feat"] = torch.from_numpy(arrays["edge_attr"])
    return graph


def as_typed_dgl(arrays: Arrays) -> Any:
    import dgl
    import torch

    edges = {triplet: tuple(map(torch.from_numpy, pair)) for triplet, pair in arrays["edge_index"].items()}
    graph = dgl.heterograph(edges, num_nodes_dict=arrays["num_nodes"])
    for triplet, value in arrays.get("edge_weight", {}).items():
        graph.edges[triplet].data["weight"] = torch.from_numpy(value)
    for triplet, value in arrays.get("edge_attr", {}).items():
        graph.edges[triplet].data["edge_attr"] = torch.from_numpy(value)
    for key, name in (("x", "feat"), ("y", "label"), *((mask, mask) for mask in MASKS)):
        for node_type, value in arrays[key].items():
            graph.nodes[node_type].data[name] = torch.from_numpy(np.array(value))
    return graph


def as_pyg(arrays: Arrays) -> Any:
    pytest.importorskip("torch_geometric")
    import torch
    from torch_geometric.data import Data

    return Data(**{name: torch.from_numpy(value) for name, value in arrays.items()})


def as_hetero(arrays: Arrays) -> Any:
    pytest.importorskip("torch_geometric")
    import torch
    from torch_geometric.data import HeteroData

    data = HeteroData()
    for node_type, count in arrays["num_nodes"].items():
        data[node_type].num_nodes = count
    for triplet, pair in arrays["edge_index"].items():
        data[triplet].edge_index = torch.from_numpy(pair)
        if "edge_weight" in arrays:
            data[triplet].edge_weight = torch.from_numpy(arrays["edge_weight"][triplet])
        if "edge_attr" in arrays:
            data[triplet].edge_attr = torch.from_numpy(arrays["edge_attr"][triplet])
    for key in ("x", "y", *MASKS):
        for node_type, value in arrays[key].items():
            data[node_type][key] = torch.from_numpy(np.array(value))
    return data


def as_networkx(arrays: Arrays) -> Any:
    import networkx

    graph = networkx.MultiDiGraph()
    nodes = {name: value for name, value in arrays.items() if name not in OF_EDGES}
    graph.add_nodes_from((f"node {i}", {name: value[i] for name, value in nodes.items()}) for i in range(len(arrays["x"])))
    weights: Any = [{"weight": one} for one in arrays.get("edge_weight", np.zeros(0)).tolist()] or repeat({})
    if "edge_attr" in arrays:
        weights = [own | {"feat": row} for own, row in zip(weights, arrays["edge_attr"].tolist(), strict=False)]
    graph.add_edges_from(
        (f"node {a}", f"node {b}", w) for (a, b), w in zip(arrays["edge_index"].T.tolist(), weights, strict=False)
    )
    return graph


def as_matrix(arrays: Arrays) -> Any:
    """A SciPy matrix, which holds parallel edges as entries of their own, and the nodes' arrays."""
    source, destination = arrays["edge_index"]
    count = len(arrays["x"])
    values = arrays.get("edge_weight", np.ones(len(source)))
    matrix = sparse.coo_matrix((values, (source, destination)), shape=(count, count))
    others = {name: value for name, value in arrays.items() if name not in OF_EDGES}
    return matrix, others | {"x": sparse.csr_matrix(others["x"])}


def as_sparse_tensor(arrays: Arrays, layout: str, numbers: Any = None) -> Any:
    """A sparse tensor of PyTorch, in which parallel edges are entries of their own, and the nodes' arrays.

    Args:
        layout: ``coo``, ``csr`` or ``csc``. numbers: dtype of the entries; None: that of the weights, or fp32.
    """
    import torch

    source, destination = arrays["edge_index"]
    count = len(arrays["x"])
    values = torch.from_numpy(np.asarray(arrays.get("edge_weight", np.ones(len(source), np.float32)))).to(numbers)
    outer, inner = (destination, source) if layout == "csc" else (source, destination)
    order = np.argsort(outer, kind="stable")
    starts = torch.from_numpy(np.concatenate([[0], np.cumsum(np.bincount(outer, minlength=count))]))
    make = {
        "coo": lambda: torch.sparse_coo_tensor(
            torch.from_numpy(arrays["edge_index"]), values, (count, count), check_invariants=False
        ),
        "csr": lambda: torch.sparse_csr_tensor(starts, inner[order], values[order], (count, count), check_invariants=False),
        "csc": lambda: torch.sparse_csc_tensor(starts, inner[order], values[order], (count, count), check_invariants=False),
    }
    others = {name: value for name, value in arrays.items() if name not in OF_EDGES}
    features = torch.from_numpy(others["x"])
    to_layout = {"coo": features.to_sparse_coo, "csr": features.to_sparse_csr, "csc": features.to_sparse_csc}
    return make[layout](), others | {"x": to_layout[layout]()}


def as_lists(arrays: Arrays) -> Arrays:
    """Plain lists, as they come from JSON."""
    plain: Arrays = json.loads(json.dumps({name: value.tolist() for name, value in arrays.items()}))
    return plain
