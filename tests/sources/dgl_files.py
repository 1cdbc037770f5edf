"""Partitions written by DGL itself, from our datasets."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sargnn.graph.dataset import Dataset
from sargnn.graph.edge_columns import ATTR
from sargnn.graph.schema import SPLITS
from sargnn.interop.dgl import import_dgl


def write_parts(folder: Path, dataset: Dataset, parts: int, *, original: bool = True, **more: Any) -> Any:
    """``dgl.distributed.partition_graph`` of a dataset into ``folder/mine.json``; returns its mapping of node ids.

    Typed graphs are cut at random, always alike: DGL 2.1 fails where a part has no node of a type or no edge of a relation.

    Args:
        original: the nodes carry ``orig_id``. more: further arguments.
    """
    dgl = import_dgl()
    graph = dgl_graph(dataset, original=original)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # DGL's own
        dgl.seed(0)
        more = {"part_method": "random"} | more if dataset.schema.typed else more
        nodes, _ = dgl.distributed.partition_graph(graph, "mine", parts, str(folder), return_mapping=True, **more)
    return nodes


def dgl_graph(dataset: Dataset, *, original: bool) -> Any:
    """The graph with ``feat``, ``label``, ``train_mask``, ``val_mask`` and ``test_mask``; and ``w`` and ``feat`` of edges
    with weights and features."""
    dgl, schema = import_dgl(), dataset.schema
    sources = torch.from_numpy(dataset.indices.astype(np.int64))
    destinations = torch.from_numpy(np.repeat(np.arange(dataset.num_nodes), np.diff(dataset.indptr)))
    if not schema.typed:
        graph = dgl.graph((sources, destinations), num_nodes=dataset.num_nodes)
    else:
        edges = {}
        for r, one in enumerate(schema.relations):
            own = torch.from_numpy(dataset.relation == r) if dataset.relation is not None else slice(None)
            ends = sources[own] - schema.offsets[one.source], destinations[own] - schema.offsets[one.destination]
            edges[schema.node_types[one.source], one.name, schema.node_types[one.destination]] = ends
        counts = {name: schema.count(t) for t, name in enumerate(schema.node_types)}
        graph = dgl.heterograph(edges, num_nodes_dict=counts)
    if dataset.columns.weight is not None:
        for r, etype in enumerate(graph.canonical_etypes if not schema.typed else edges):
            own = torch.from_numpy(dataset.relation == r) if dataset.relation is not None else slice(None)
            graph.edges[etype].data["w"] = torch.from_numpy(np.array(dataset.columns.weight))[own]
    if ATTR in dataset.columns:
        for r, etype in enumerate(graph.canonical_etypes if not schema.typed else edges):
            own = torch.from_numpy(dataset.relation == r) if dataset.relation is not None else slice(None)
            graph.edges[etype].data["feat"] = torch.from_numpy(np.array(dataset.columns[ATTR]))[own]
    labelled = int(schema.types_of(np.flatnonzero(dataset.split))[0])
    for t, name in enumerate(schema.node_types):
        data = graph.nodes[name].data if schema.typed else graph.ndata
        own_nodes = slice(*schema.offsets[t : t + 2])
        if dataset.feature_widths[t]:
            data["feat"] = torch.from_numpy(np.array(dataset.features[t]))
        if original:
            data["orig_id"] = torch.arange(schema.count(t))
        if t == labelled:
            data["label"] = torch.from_numpy(np.array(dataset.labels[own_nodes]))
            for split, value in SPLITS.items():
                mask = {"valid": "val"}.get(split, split)
                data[f"{mask}_mask"] = torch.from_numpy(np.array(dataset.split[own_nodes]) == value)
    return graph
