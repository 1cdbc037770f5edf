"""A trained model on another graph: what both must have in common, and rows that were learned for nodes.

A row that was learned for a node is that of the node with the same id in the other graph, or with the same number where ids are
not known. With ``new_rows=mean`` a node that was not there gets the mean over its edges, both ways, of its neighbours' learned
rows of the same width; who has no such neighbour follows hop by hop, and zeros are left.

Letters: N nodes, T node types, D width of a learned row.
"""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from sargnn.config.run import RunConfig
from sargnn.errors import ConfigError, StoreError
from sargnn.graph.dataset import Dataset, open_dataset
from sargnn.graph.edge_columns import WEIGHT
from sargnn.graph.schema import has_label
from sargnn.graph.store import Store
from sargnn.sources.prepare import content_of
from sargnn.sources.settings import OwnGraphConfig, TablesConfig

_EMBEDDING = re.compile(r"param/.*embeddings\.(\d+)_[^.]*")
_SHOWN = 5


def trained_store(config: RunConfig, dataset_hash: str) -> Path:
    """Raises ``StoreError`` where the store of the dataset that a run was trained on is gone."""
    stores = Path(config.store_dir) / "datasets"
    for path in sorted(stores.glob("*")):
        if content_of(path) == dataset_hash:
            return path
    raise StoreError(
        "The store of the dataset that the run was trained on is gone, which says what the model reads.",
        given=f"content {dataset_hash}",
        hint=f"sargnn prepare with the run's dataset makes it; or name the folder of stores, store_dir={config.store_dir} now",
    )


def has_trained_store(config: RunConfig, dataset_hash: str) -> bool:
    try:
        trained_store(config, dataset_hash)
    except StoreError:
        return False
    return True


def for_other_graph(config: RunConfig, store: Path, trained: Dataset) -> RunConfig:
    """With what the other graph takes over: encodings of columns and the type that is predicted."""
    dataset: Any = config.dataset
    if config.predicts_pairs:
        raise ConfigError(
            "A model of links or of edges predicts on its own graph.", given=f"task={config.task}", hint="leave dataset out"
        )
    if isinstance(dataset, OwnGraphConfig) and dataset.predicted_type is None:
        dataset = dataclasses.replace(dataset, predicted_type=trained.schema.node_types[labelled_of(trained)])
    if isinstance(dataset, TablesConfig) and dataset.like is None and trained.origin is not None:
        dataset = dataclasses.replace(dataset, like=str(store.resolve()))
    return dataclasses.replace(config, dataset=dataset)


def predicted_type(config: RunConfig, run_dir: Path) -> str | None:
    """The type of the nodes that a run's model predicts; None where it was not trained. Raises ``StoreError`` where the store
    of its dataset is gone.
    """
    from sargnn.training import checkpoint

    path, _ = checkpoint.newest(run_dir)
    if path is None:
        return None
    made_of = checkpoint.open_checkpoint(path, verify=False).meta["dataset_hash"]
    trained = open_dataset(trained_store(config, made_of), verify=False)
    return trained.schema.node_types[labelled_of(trained)]


def labelled_of(trained: Dataset) -> int:
    return int(trained.schema.types_of(np.argmax(np.asarray(trained.split) > 0, keepdims=True))[0])


def check_alike(trained: Dataset, other: Dataset, config: RunConfig) -> None:
    """Raises ``ConfigError`` where the other graph lacks what the model reads, or has labels other than it gives."""
    mine, theirs = trained.schema, other.schema
    for what, before, now in (
        ("node types", list(mine.node_types), list(theirs.node_types)),
        ("relations", _relations(trained), _relations(other)),
        ("features of a node", _widths(trained), _widths(other)),
        ("features of an edge", [str(trained.columns.width)], [str(other.columns.width)]),
        ("edge weights", [str(WEIGHT in trained.columns)], [str(WEIGHT in other.columns)]),
    ):
        if what == "edge weights" and not config.dataset.edge_weights:
            continue
        if before != now:
            raise ConfigError(
                f"The graph has other {what} than the one that the model was trained on.",
                given=", ".join(now),
                allowed=", ".join(before),
            )
    labels = np.asarray(other.labels)
    if not has_label(labels).any():
        if config.smooth.name != "none":
            raise ConfigError("Correct & Smooth spreads labels, and this graph has none.", hint="smooth=none")
        return
    task, classes = (other.task, other.num_classes), (trained.task, trained.num_classes)
    if task[0] != classes[0] or task[1] > classes[1] or (task[0] != "classes" and task[1] != classes[1]):
        raise ConfigError(
            "The graph's labels are others than the model gives.",
            given=f"{task[0]}, {task[1]}",
            allowed=f"{classes[0]}, {classes[1]}",
            hint="leave the labels out, or number the classes as in training",
        )
    if mine.typed and labelled_of(other) != labelled_of(trained):
        given, allowed = (d.schema.node_types[labelled_of(d)] for d in (other, trained))
        raise ConfigError("The graph has labels on other nodes than the model predicts.", given=given, allowed=allowed)


def _relations(dataset: Dataset) -> list[str]:
    types = dataset.schema.node_types
    return [f"{types[r.source]} {r.name} {types[r.destination]}" for r in dataset.schema.relations]


def _widths(dataset: Dataset) -> list[str]:
    names = dataset.schema.node_types
    return [f"{name}: {width}" for name, width in zip(names, dataset.feature_widths, strict=True)]


def learned_rows(checkpoint: Store, trained: Dataset, other: Dataset, folder: Path, new_rows: str) -> dict[str, str]:
    """The rows that were learned for nodes, for the other graph's: parameter -> the path of its table.

    Args:
        checkpoint: of the run.
        folder: where the tables go, [N of the type, D] each.
        new_rows: what nodes get that were not there: refuse or mean.

    Raises ``ConfigError``: nodes were not there, and ``new_rows`` is refuse.
    """
    names = {name: int(match[1]) for name in checkpoint.files if (match := _EMBEDDING.fullmatch(name))}
    tables: dict[str, np.ndarray] = {}
    there: dict[str, np.ndarray] = {}
    for name, node_type in names.items():
        before = _rows_before(trained, other, node_type)
        average = f"average/{name.partition('/')[2]}"
        learned = checkpoint.array(average if average in checkpoint.files else name)
        table = np.zeros((len(before), learned.shape[1]), learned.dtype)
        known = before >= 0
        table[known] = learned[before[known]]
        tables[name], there[name] = table, known
    missing = {name: int((~known).sum()) for name, known in there.items() if not known.all()}
    if missing and new_rows != "mean":
        name = next(iter(missing))
        node_type = names[name]
        new = np.flatnonzero(~there[name])[:_SHOWN]
        ids = other.origin.ids[node_type] if other.origin is not None else None
        shown = ", ".join(map(str, new.tolist() if ids is None else ids.take(new).to_pylist()))
        raise ConfigError(
            f"The model has learned a row for each node of type '{other.schema.node_types[node_type]}', and some are new.",
            given=f"{missing[name]} of {len(there[name])} nodes, such as {shown}",
            hint="new_rows=mean gives them the mean of their neighbours' rows",
        )
    if missing:
        _fill_with_means(other, names, tables, there)
    paths = {}
    for number, (name, table) in enumerate(tables.items()):
        path = folder / f"rows_{number}.npy"
        np.save(path, table)
        paths[name] = str(path)
    return paths


def _rows_before(trained: Dataset, other: Dataset, node_type: int) -> np.ndarray:
    """int64 [N of the type]: which node of the trained graph each node is; -1: it was not there."""
    counts = [dataset.schema.count(node_type) for dataset in (trained, other)]
    ids = [d.origin.ids[node_type] if d.origin is not None else None for d in (trained, other)]
    if ids[0] is None or ids[1] is None:
        numbers = np.arange(counts[1])
        return np.where(numbers < counts[0], numbers, -1)
    import pyarrow.compute as pc

    before, now = ids[0].arrow(0, counts[0]), ids[1].arrow(0, counts[1])
    if before.type != now.type:
        before, now = (each.cast("large_string") for each in (before, now))
    return np.asarray(pc.fill_null(pc.index_in(now, before), -1).to_numpy(zero_copy_only=False), np.int64)


def _fill_with_means(
    other: Dataset, names: dict[str, int], tables: dict[str, np.ndarray], there: dict[str, np.ndarray]
) -> None:
    """Rows of nodes that were not there, in place."""
    n, schema = other.num_nodes, other.schema
    ones = np.ones(other.num_edges, np.float32)
    edges = sparse.csr_array((ones, np.asarray(other.indices), np.asarray(other.indptr)), shape=(n, n))
    near = edges + edges.T
    for width in sorted({table.shape[1] for table in tables.values()}):
        rows, known = np.zeros((n, width), np.result_type(*tables.values())), np.zeros(n, bool)
        own = [(name, slice(*schema.offsets[t : t + 2])) for name, t in names.items() if tables[name].shape[1] == width]
        wanted = np.zeros(n, bool)
        for name, span in own:
            rows[span], known[span], wanted[span] = tables[name], there[name], True
        while True:
            waiting = np.flatnonzero(wanted & ~known)
            counts = near[waiting] @ known.astype(np.float32)
            reached = counts > 0
            if not reached.any():
                break
            means = (near[waiting] @ (rows * known[:, None]))[reached] / counts[reached, None]
            rows[waiting[reached]], known[waiting[reached]] = means, True
        for name, span in own:
            tables[name][:] = rows[span]
