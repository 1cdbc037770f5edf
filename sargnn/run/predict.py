"""Predictions of a trained run, on local workers: any world, mode and kernel; and their tables in Parquet or CSV, with the ids
that nodes had in their tables, from the ``.npy`` files that workers wrote.

| file | a row for each |
|---|---|
| ``predictions`` | node, ``id``; edge, ``source``, ``destination``: ``prediction``, ``logits``, ``smoothed``, ... |
| ``embeddings`` | node, of links and edges; ``type`` in a typed graph |
| ``pair_scores`` | pair of ``pairs=FILE``: ``source``, ``destination``, ``score`` |
| ``partners`` | node and partner: ``id``, ``rank`` from 1, ``partner``, ``score`` |

A node without an id has its number, as column ``node``. In CSV a column of rows [C] is C columns.

Letters: n rows of a piece, C outputs.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import csv, parquet

from sargnn.config.groups import BatchesConfig, MemoryConfig, PreloadConfig, SampleConfig
from sargnn.config.run import RunConfig, load, save
from sargnn.errors import ConfigError, DataError, SargnnError, writing
from sargnn.graph.claim import remove
from sargnn.graph.dataset import Dataset, open_dataset
from sargnn.run.check import check_network, check_strategies, prepare_stores
from sargnn.run.checkpoints import check_made_for, newest_whole
from sargnn.run.env import prepare_process, with_processes, workers_of
from sargnn.run.local import run_workers
from sargnn.run.other_graph import for_other_graph, has_trained_store, labelled_of, learned_rows, trained_store
from sargnn.run.processes import start_fork_server
from sargnn.run.run_folder import LOCK, hold_run_dir
from sargnn.sources.links import read_pairs, relation_of
from sargnn.sources.prepare import content_of, prepare_dataset
from sargnn.steps import step
from sargnn.tasks.kinds import EMBEDDINGS, LOGITS, PREDICTIONS, SMOOTHED
from sargnn.tracking import files
from sargnn.tracking.files import Inputs, read_inputs, write_inputs
from sargnn.tracking.progress import say

_ROWS = 1 << 16
Columns = dict[str, pa.Array]


def write_tables(
    folder: Path, written: Sequence[str], dataset: Dataset, form: str, asked: dict[str, Any], *, of: str
) -> list[str]:
    """Write tables (parquet or csv) beside the arrays in a folder, whose names are ``written``; the names of the tables.

    Args:
        asked: what of (``training.evaluation.write_predictions``).
        of: the labelled type of nodes; empty: of edges, or links.
    """
    arrays = {name.removesuffix(".npy"): np.load(folder / name, mmap_mode="r") for name in written}
    tables: dict[str, tuple[int, Callable[[int, int], Columns]]] = {}
    predicted = [name.removesuffix(".npy") for name in (PREDICTIONS, LOGITS, SMOOTHED, EMBEDDINGS) if name in written]
    schema = dataset.schema
    if of:
        node_type = schema.node_types.index(of)
        own = {name: arrays[name] for name in predicted}

        def nodes(first: int, last: int) -> Columns:
            return _ids(dataset, node_type, first, last) | _values(dataset, own, first, last, form)

        tables["predictions"] = (schema.count(node_type), nodes)
    elif "predictions" in arrays:
        pairs = dataset.pairs
        assert pairs is not None
        own = {name: arrays[name] for name in predicted if name != "embeddings"}

        def edges(first: int, last: int) -> Columns:
            ends = {name: np.asarray(end[first:last]) for name, end in (("source", pairs.heads), ("destination", pairs.tails))}
            numbers = np.zeros(last - first, np.uint8) if pairs.relation is None else np.asarray(pairs.relation[first:last])
            names = pa.array([relation.name for relation in schema.relations])
            kinds = {"relation": names.take(pa.array(numbers))} if schema.typed else {}
            return {name: _named(dataset, end) for name, end in ends.items()} | kinds | _values(dataset, own, first, last, form)

        tables["predictions"] = (len(pairs.heads), edges)
    if not of and "embeddings" in arrays:

        def every(first: int, last: int) -> Columns:
            rows = np.arange(first, last)
            types = pa.array(schema.node_types).take(pa.array(schema.types_of(rows)))
            own = {"embeddings": arrays["embeddings"]}
            return (
                {"id": _named(dataset, rows)}
                | ({"type": types} if schema.typed else {})
                | _values(dataset, own, first, last, form)
            )

        tables["embeddings"] = (schema.num_nodes, every)
    if "pair_scores" in arrays or "partners" in arrays:
        relation = schema.relations[relation_of(schema, asked["relation"])]
        ends = (relation.source, relation.destination)
        begins = [schema.offsets[end] for end in ends]
    if "pair_scores" in arrays:
        given = read_pairs(Path(asked["pairs"]))

        def scored(first: int, last: int) -> Columns:
            heads, tails = (_named(dataset, given[end, first:last] + begins[end], ends[end]) for end in (0, 1))
            return {"source": heads, "destination": tails} | _wide("score", np.array(arrays["pair_scores"][first:last]), form)

        tables["pair_scores"] = (given.shape[1], scored)
    if "partners" in arrays:

        def best(first: int, last: int) -> Columns:
            partners = np.array(arrays["partners"][first:last])
            rows, ranks = np.nonzero(partners >= 0)
            scores = np.array(arrays["partner_scores"][first:last])[rows, ranks]
            names = (
                _named(dataset, rows + first + begins[0], ends[0]),
                _named(dataset, partners[rows, ranks] + begins[1], ends[1]),
            )
            return {"id": names[0], "rank": pa.array(ranks + 1), "partner": names[1], "score": pa.array(scores)}

        tables["partners"] = (len(arrays["partners"]), best)
    for name, (rows, columns) in tables.items():
        _write(folder / f"{name}.{form}", _batches(rows, columns), form)
    return [f"{name}.{form}" for name in tables]


def _batches(rows: int, columns: Callable[[int, int], Columns]) -> Iterator[pa.RecordBatch]:
    for first in range(0, max(1, rows), _ROWS):
        yield pa.RecordBatch.from_pydict(columns(first, min(first + _ROWS, rows)))


def _write(path: Path, batches: Iterator[pa.RecordBatch], form: str) -> None:
    temporary, writer = path.with_name(f".{path.name}.tmp"), None
    for batch in batches:
        if writer is None:
            writer = (parquet.ParquetWriter if form == "parquet" else csv.CSVWriter)(temporary, batch.schema)
        (writer.write_batch if form == "parquet" else writer.write)(batch)
    assert writer is not None
    writer.close()
    temporary.replace(path)


def _values(dataset: Dataset, arrays: dict[str, np.ndarray], first: int, last: int, form: str) -> Columns:
    """Classes by their names, where they have some."""
    columns: Columns = {}
    outputs = dataset.num_classes if dataset.pairs is None or dataset.pairs.labels is None else dataset.pairs.outputs
    for name, array in arrays.items():
        piece = np.array(array[first:last])
        classes = dataset.origin.classes if dataset.origin is not None else ()
        if name == "predictions":
            of_classes = piece.ndim == 1 and len(classes) >= outputs and piece.dtype.kind in "iu"
            named = pa.array(classes).take(pa.array(piece)) if of_classes else None
            columns |= {"prediction": named} if named is not None else _wide("prediction", piece, form)
        else:
            columns |= _wide(name, piece, form)
    return columns


def _wide(name: str, rows: np.ndarray, form: str) -> Columns:
    """One column of numbers [n]; of rows [n, C] one of lists, or C of numbers in CSV."""
    if rows.ndim == 1:
        return {name: pa.array(rows)}
    if form == "csv":
        return {f"{name}_{column}": pa.array(np.ascontiguousarray(rows[:, column])) for column in range(rows.shape[1])}
    return {name: pa.FixedSizeListArray.from_arrays(pa.array(np.ascontiguousarray(rows).reshape(-1)), rows.shape[1])}


def _ids(dataset: Dataset, node_type: int, first: int, last: int) -> Columns:
    ids = dataset.origin.ids[node_type] if dataset.origin is not None else None
    return {"id": ids.arrow(first, last)} if ids is not None else {"node": pa.array(np.arange(first, last))}


def _named(dataset: Dataset, nodes: np.ndarray, *types: int) -> pa.Array:
    """Ids of nodes (int64 [n], numbers in the whole graph), or their numbers within their types, all or some; texts where one
    of these has some.
    """
    schema, every = dataset.schema, types or range(len(dataset.schema.node_types))
    ids_of = {t: dataset.origin.ids[t] if dataset.origin is not None else None for t in every}
    texts = any(ids is not None and ids.ends is not None for ids in ids_of.values())
    kind = pa.large_string() if texts else pa.int64()
    of, parts, places = schema.types_of(nodes), [pa.array([], kind)], [np.zeros(0, np.int64)]
    for node_type in np.unique(of).tolist():
        chosen, ids = np.flatnonzero(of == node_type), ids_of[node_type]
        within = nodes[chosen] - schema.offsets[node_type]
        parts.append((pa.array(within) if ids is None else ids.take(within)).cast(kind))
        places.append(chosen)
    order = np.argsort(np.concatenate(places), kind="stable")
    return pa.concat_arrays(parts).take(pa.array(order))


FOLDER = "predictions"


def predict(
    config: RunConfig,
    run_dir: Path,
    folder: Path,
    *,
    which: str = "newest",
    form: str = "npy",
    other_graph: bool = False,
    new_rows: str = "refuse",
    **asked: Any,
) -> dict[str, Any]:
    """Write what a run's model predicts for all nodes (``training.evaluation.write_predictions``); the manifest.

    Args:
        config: the run's; world, mode, kernel, partitioner and ``smooth`` may differ from what it was trained with.
        which: of its checkpoints: ``newest`` or ``best``.
        form: npy; or parquet or csv, tables beside the arrays (the module).
        other_graph: the configuration's dataset is not the one of the training.
        new_rows: what nodes of another graph get for which no row was learned (``run.other_graph``).
        asked: what of.

    Raises ``SargnnError``: anything a user can cause.
    """
    started_at = time.time()
    trained = dataclasses.replace(config, dataset=load(run_dir / files.CONFIG).dataset) if other_graph else config
    moved = config.config_hash == trained.config_hash  # a dataset that is named may be the same one, in another place
    _check_folder(folder)
    budget = config.memory_budget if config.spills else MemoryConfig()
    config = dataclasses.replace(
        config, mfg=False, batches=BatchesConfig(), memory_budget=budget, preload=PreloadConfig(), profile=False
    )
    config = dataclasses.replace(config, tracking=dataclasses.replace(config.tracking, enabled=False))
    if config.eval == "full":
        config = dataclasses.replace(config, sample=SampleConfig())
    processes = config.processes
    config = prepare_process(with_processes(config))
    check_network(config.comm)
    if not other_graph:  # else it is not known yet what it may lack
        config.dataset.check_files()
    start_fork_server()
    config = config.stand_in
    check_strategies(config)
    from sargnn.training import checkpoint
    from sargnn.training.evaluation import MANIFEST

    if asked.get("embeddings") and not config.model.has_embeddings:
        raise ConfigError(config.model.no_embeddings, given="embeddings=true", allowed="embeddings=false")
    path, meta, content, trained_on, store = None, None, None, None, None
    if config.model.trains:  # else there is nothing to remember
        path = choose_checkpoint(run_dir, which)
        store = checkpoint.open_checkpoint(path, verify=which == "best")
        meta, content = store.meta, store.content_hash
        check_made_for(meta, trained, meta["dataset_hash"], path)
        other_graph = other_graph and not (moved and _is_same(config, meta["dataset_hash"]))
        if other_graph:
            trained_path = trained_store(config, meta["dataset_hash"])
            trained_on = open_dataset(trained_path, verify=False)
            config = for_other_graph(config, trained_path, trained_on)
            config.dataset.check_files()
    stores = prepare_stores(config, trained=trained_on)
    _check_asked(asked, config, stores.dataset)
    if path is not None and meta is not None and not other_graph:
        check_made_for(meta, trained, stores.dataset_hash, path)
    epoch = None if meta is None else meta["epoch"]
    config = dataclasses.replace(config, run_dir=str(run_dir))
    loaded = str(path.resolve()) if path else None
    predict = {"embeddings": False, "pairs": None, "top": 0, "relation": None} | asked
    inputs = Inputs(
        str(stores.partition),
        started_at,
        stores.dataset_hash,
        checkpoint=loaded,
        predict=predict,
        processes=config.num_processes,
    )
    with _held_empty(folder):
        if trained_on is not None and store is not None:
            opened = open_dataset(stores.dataset, verify=False)
            rows = learned_rows(store, trained_on, opened, folder, new_rows)
            shape = {"outputs": trained_on.num_classes, "task": trained_on.task, "labelled": labelled_of(trained_on)}
            inputs = dataclasses.replace(inputs, trained=shape | {"rows": rows})
        write_inputs(folder, inputs)
        save(dataclasses.replace(config, processes=processes), folder / files.CONFIG)
        after = f" after epoch {epoch}" if epoch is not None else ""
        say(f"predicting with {config.name}{after}: {workers_of(config)}")
        run_workers(folder, config, hint="the same command again starts anew")
        manifest = files.read_json(folder / MANIFEST)
        if form != "npy":
            step("writing tables")
            dataset, node_type = open_dataset(stores.dataset, verify=False), manifest["node_type"]
            if trained_on is not None:
                dataset = dataclasses.replace(dataset, num_classes=trained_on.num_classes)
            of = "" if config.predicts_pairs else node_type
            manifest["tables"] = write_tables(folder, manifest["files"], dataset, form, predict, of=of)
        for name in (inputs.trained or {}).get("rows", {}).values():
            Path(name).unlink()
        manifest |= {
            "run": str(run_dir),
            "other_graph": other_graph,
            "checkpoint": content,
            "epoch": epoch,
            "time_s": time.time() - started_at,
        }
        files.write_json(folder / MANIFEST, manifest)
    return manifest


def _check_asked(asked: dict[str, Any], config: RunConfig, dataset: Path) -> None:
    """Raises ``SargnnError`` where what is asked of pairs cannot be answered. ``dataset``: its store."""
    given = [f"{name}={value}" for name in ("pairs", "top", "relation") if (value := asked.get(name))]
    if given and not config.predicts_pairs:
        raise ConfigError("Only a run of task=links or task=edges scores pairs.", given=" ".join(given), hint="leave it out")
    if not given:
        return
    if asked.get("top") and not config.predicts_links:
        raise ConfigError(
            "Only links have best partners.", given=f"task={config.task} top={asked['top']}", allowed="task=links"
        )
    opened = open_dataset(dataset, verify=False)
    schema, pairs = opened.schema, opened.pairs
    if config.predicts_edges and config.edges.features and pairs is not None and pairs.width:
        raise ConfigError(
            "Edges are told by their own features here, which a file of pairs does not have.",
            given=" ".join(given),
            hint="edges without a label (-1) are predicted with all others; or train with edges.features=false",
        )
    relation = schema.relations[relation_of(schema, asked.get("relation"))]
    if asked.get("pairs"):
        for end, ids in zip((relation.source, relation.destination), read_pairs(Path(asked["pairs"])), strict=True):
            count = schema.count(end)
            if len(ids) and not 0 <= ids.min() <= ids.max() < count:
                wrong = int(ids.min() if ids.min() < 0 else ids.max())
                raise DataError(f"'{asked['pairs']}' names a node that there is not.", given=wrong, allowed=f"0 to {count - 1}")


def _is_same(config: RunConfig, dataset_hash: str) -> bool:
    """Whether a dataset is the training's own. It is looked at where that matters."""
    if not config.predicts_pairs and has_trained_store(config, dataset_hash):
        return False
    try:
        path = prepare_dataset(config.dataset, config.store_dir, config.prepare.bytes)
    except SargnnError:  # it lacks what training needs
        return False
    return content_of(path) == dataset_hash


@contextmanager
def _held_empty(folder: Path) -> Iterator[None]:
    """The folder, made or emptied, and held against other processes. Raises ``ConfigError`` where it holds something else."""
    with writing("The folder", folder, hint="choose another: out=FOLDER"):
        folder.mkdir(parents=True, exist_ok=True)
        lock = hold_run_dir(folder, "Another process is writing predictions into this folder.")
    try:
        _check_folder(folder)
        for path in folder.iterdir():
            if path.name != LOCK:
                remove(path)
        yield
    finally:
        lock.release()


def _check_folder(folder: Path) -> None:
    """Raises ``ConfigError``: only predictions may be replaced."""
    if not folder.exists():
        return
    try:
        empty = all(path.name == LOCK for path in folder.iterdir())
        ours = empty or read_inputs(folder).predict is not None
    except (OSError, SargnnError):
        ours = False
    if not ours:
        raise ConfigError("The folder holds something else.", given=str(folder), hint="choose another: out=FOLDER")


def choose_checkpoint(run_dir: Path, which: str) -> Path:
    """A run's newest whole checkpoint, or the one that validates best. Raises ``ConfigError`` where there is none."""
    from sargnn.training import checkpoint

    if which == "best":
        path = checkpoint.best(run_dir)
    else:
        path, _ = newest_whole(run_dir)
    if path is None:
        raise ConfigError(
            f"The run holds no {'evaluated' if which == 'best' else 'whole'} checkpoint.",
            given=str(run_dir),
            hint="train with checkpoint.every=N; the last epoch is written then, too",
        )
    return path
