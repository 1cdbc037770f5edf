"""Predictions of a trained run, on local workers: any world, mode and kernel."""

from __future__ import annotations

import dataclasses
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sargnn.config.groups import BatchesConfig, MemoryConfig, PreloadConfig, SampleConfig
from sargnn.config.run import RunConfig, load, save
from sargnn.errors import ConfigError, DataError, SargnnError
from sargnn.graph.dataset import open_dataset
from sargnn.run.check import check_network, check_strategies, prepare_stores
from sargnn.run.checkpoints import check_made_for, newest_whole
from sargnn.run.env import prepare_process, with_processes, workers_of
from sargnn.run.local import run_workers
from sargnn.run.other_graph import for_other_graph, has_trained_store, labelled_of, learned_rows, trained_store
from sargnn.run.prediction_tables import write_tables
from sargnn.run.processes import start_fork_server
from sargnn.run.run_folder import LOCK, hold_run_dir
from sargnn.sources.links import read_pairs, relation_of
from sargnn.sources.prepare import content_of, prepare_dataset
from sargnn.steps import step
from sargnn.tracking import files
from sargnn.tracking.files import Inputs, read_inputs, write_inputs
from sargnn.tracking.progress import say

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
        form: npy; or parquet or csv, tables beside the arrays (``run.prediction_tables``).
        other_graph: the configuration's dataset is not the one of the training.
        new_rows: what nodes of another graph get for which no row was learned (``run.other_graph``).
        asked: what of.

    Raises:
        SargnnError: anything a user can cause.
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
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = hold_run_dir(folder, "Another process is writing predictions into this folder.")
    except OSError as error:
        raise ConfigError(
            f"The folder cannot be written: {error.strerror}.", given=str(folder), hint="choose another: out=FOLDER"
        ) from error
    try:
        _check_folder(folder)
        for path in folder.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            elif path.name != LOCK:
                path.unlink()
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
