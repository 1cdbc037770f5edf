"""Checkpoints: what a run needs to go on as if nothing had happened, also on another number of workers.

A checkpoint is a store (``graph.store``) with

    param/NAME, buffer/NAME, first_moment/NAME, second_moment/NAME; of an optimizer of one's own state.KEY/NAME
    meta: epoch, how many there are to be, figures so far, hashes, the graph's schema, Adam's step, numbers of its own

Sharded tables (embeddings and their moments) are gathered into whole ones in the order of original ids, so that any
partition can take its rows. Nothing random is stored: draws are functions of (seed, epoch, id).

``init_from`` takes parameters and buffers from another run's checkpoint, but neither the optimizer's state nor epochs and
figures. Nothing of the graph, the schedule or the precision need be the same, as long as names and shapes fit.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sargnn.comm.collectives import gather_table
from sargnn.config.run import RunConfig
from sargnn.errors import ConfigError, StoreError
from sargnn.graph.manifest import MANIFEST
from sargnn.graph.schema import Schema
from sargnn.graph.store import Store, StoreWriter
from sargnn.models.base import Model
from sargnn.resolve import describe_source, is_target
from sargnn.tasks.kinds import Scores, is_better, selected
from sargnn.tracking.files import START
from sargnn.training.history import Requests, Underway
from sargnn.training.loop import EpochEnd, Listener
from sargnn.training.optim import Adam, check_state
from sargnn.training.trainer import Trainer

FORMAT_VERSION = 1
FOLDER = "checkpoints"
_NAME = re.compile(r"epoch_(\d+)(?:_step_(\d+))?")
_MOMENTS = {"first_moment": "exp_avg", "second_moment": "exp_avg_sq"}
_KINDS = ("param/", "buffer/")
_AVERAGE = "average/"
_STATE = "state."
_SHOWN = 5
_ROWS_AT_ONCE = 1 << 14
_SERIES = ("losses", "epoch_times_s", "compute_times_s", "wait_times_s", "epoch_bytes", "evaluate_times_s")


def path_of(run_dir: Path, epoch: int, steps: int = 0) -> Path:
    return run_dir / FOLDER / (f"epoch_{epoch:06d}" + (f"_step_{steps:06d}" if steps else ""))


def existing(run_dir: Path) -> list[Path]:
    """All checkpoints of a run, oldest first."""
    matches = [(match, path) for path in (run_dir / FOLDER).glob("epoch_*") if (match := _NAME.fullmatch(path.name))]
    return [path for _, path in sorted(matches, key=lambda pair: (int(pair[0][1]), int(pair[0][2] or 0)))]


def open_checkpoint(path: Path, *, verify: bool) -> Store:
    """With ``verify`` every checksum is compared first. Raises ``StoreError`` naming what is damaged."""
    store = Store(path, "checkpoint", FORMAT_VERSION)
    if verify:
        store.verify()
    return store


def newest(run_dir: Path) -> tuple[Path | None, list[tuple[Path, StoreError]]]:
    """The newest whole checkpoint, if there is one, and newer ones with what is wrong with them."""
    problems = []
    for path in reversed(existing(run_dir)):
        try:
            open_checkpoint(path, verify=True)
        except StoreError as error:
            problems.append((path, error))
            continue
        return path, problems
    return None, problems


_SLOWEST, _OF_ALL = ("elapsed_s", "wait_s", "between_wait_s"), ("sent_bytes", "between_bytes")
"""What an epoch under way has of its slowest rank, and of all ranks together."""


def save(trainer: Trainer, config: RunConfig, dataset_hash: str, run_dir: Path, epoch: int) -> None:
    """Write the checkpoint after ``epoch`` epochs and the steps that are under way; every rank must call it.

    Rank 0 writes, and removes all but the last ``checkpoint.keep`` and, of those evaluated, the best one. It raises
    ``StoreError`` where the disk is full or cannot be written to.
    """
    done = trainer.loop.underway
    path = path_of(run_dir, epoch, done.steps)
    figures = [getattr(done, name) for name in (*_SLOWEST, *_OF_ALL)]
    ranks = torch.stack(trainer.engine.group.gather(torch.tensor(figures, dtype=torch.float64)))
    slowest = dict(zip(_SLOWEST, ranks.amax(0).tolist(), strict=False))
    summed = dict(zip(_OF_ALL, ranks[:, len(_SLOWEST) :].sum(0).long().tolist(), strict=True))
    if trainer.engine.group.rank != 0:
        for name, table in _tables(trainer, sharded=True):
            _gather_rows(trainer, None, name, table)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    for stale in path.parent.glob(".*.tmp"):
        shutil.rmtree(stale, ignore_errors=True)
    if path.exists():  # left by a run that has died since, or damaged
        _remove(path)
    with StoreWriter(path, "checkpoint", FORMAT_VERSION) as writer:
        for name, tensor in _tables(trainer, sharded=False):
            writer.put(name, tensor.detach().cpu().numpy())
        for name, table in _tables(trainer, sharded=True):
            _gather_rows(trainer, writer, name, table)
        history = trainer.loop.history
        writer.meta = {
            "epoch": epoch,
            "epochs": config.epochs,
            "config_hash": config.config_hash,
            "dataset_hash": dataset_hash,
            "schema": trainer.graph.part.schema.to_json(),
            "adam_step": epoch * trainer.loop.steps.count + done.steps,
            "own_state": _own_numbers(trainer),
            "underway": vars(done) | slowest | summed,
            "series": {name: getattr(history, name) for name in _SERIES},
            "task": history.task,
            "metric": history.metric,
            "metric_source": _metric_source(config),
            "eval": config.eval,
            "scores": history.scores,
            "evaluated": trainer.evaluator.evaluated == epoch and not done.steps,
            "select": history.select,
            "best_selected": history.best_selected,
            "best_val_metric": history.best_val,
            "stale": history.stale,
            "counted_best": history.counted_best,
            "test_metric_at_best_val": history.test_at_best_val,
            "made_by": {"world": config.world, "mode": config.mode.name, "threads": config.threads},
        }
    kept = best(run_dir)
    for old in existing(run_dir)[: -config.checkpoint.keep]:
        if old != kept:
            _remove(old)


class Checkpoints(Listener):
    """On all ranks: saves after every so many epochs and the last one, and where somebody asks for it or ends the run."""

    def __init__(self, trainer: Trainer, config: RunConfig, dataset_hash: str, run_dir: Path) -> None:
        self._of = trainer, config, dataset_hash, run_dir

    def on_step(self, epoch: int, asked: Requests) -> None:
        if asked.checkpoint or asked.stop:
            save(*self._of, epoch)

    def on_epoch(self, end: EpochEnd) -> None:
        epochs, asked, every = end.result.epoch + 1, end.result.requests, self._of[1].checkpoint.every
        due = every is not None and (end.last or epochs % every == 0)
        if due or asked.checkpoint or asked.stop:
            save(*self._of, epochs)


def describe(meta: dict[str, Any]) -> str:
    """``epoch 3``, or ``epoch 3 and 12 steps``."""
    steps = meta.get("underway", {}).get("steps", 0)
    return f"epoch {meta['epoch']}" + (f" and {steps} step{'s' * (steps != 1)}" if steps else "")


def steps_trained(path: Path) -> int:
    """0 of a checkpoint that cannot be read."""
    try:
        return int(open_checkpoint(path, verify=False).meta["adam_step"])
    except StoreError:
        return 0


def best(run_dir: Path) -> Path | None:
    """Of the checkpoints whose epoch was evaluated, the one with the best validation metric, the last of tied ones.

    Where a run went on with another metric, that of its newest one.
    """
    best_so_far: tuple[float, Path] | None = None
    metric: tuple[str, str, str, str] | None = None
    for path in reversed(existing(run_dir)):
        try:
            evaluated = _evaluated(open_checkpoint(path, verify=False).meta)
        except StoreError:
            continue
        value, by = selected(evaluated.kind[2], evaluated.kind[0], evaluated.scores)
        if not evaluated.here or value is None or metric not in (None, evaluated.kind):
            continue
        metric = evaluated.kind
        if best_so_far is None or is_better(by, value, best_so_far[0]):
            best_so_far = value, path
    return best_so_far[1] if best_so_far else None


@dataclass(frozen=True)
class _Evaluated:
    """What a checkpoint says of evaluations; those of before there were tasks say it of accuracies.

    Attributes:
        here: whether its own epoch was evaluated.
        kind: the metric, ``RunConfig.eval``, ``RunConfig.select`` and an own metric's source: what may be compared.
        scores: the last evaluation's; all else as ``History`` has it.
    """

    here: bool
    kind: tuple[str, str, str, str]
    scores: Scores
    best_selected: float | None
    best_val: float | None
    test_at_best_val: float | None
    stale: int


def _metric_source(config: RunConfig) -> str:
    return describe_source(config.metric) if config.metric is not None and is_target(config.metric) else ""


def _evaluated(meta: dict[str, Any]) -> _Evaluated:
    end = "metric" if "metric" in meta else "acc"
    return _Evaluated(
        meta["evaluated"],
        (
            meta.get("metric", "accuracy"),
            meta.get("eval", "full"),
            meta.get("select", "val_metric"),
            meta.get("metric_source", ""),
        ),
        dict(meta["scores" if end == "metric" else "accuracies"]),
        meta.get("best_selected", meta[f"best_val_{end}"]),
        meta[f"best_val_{end}"],
        meta[f"test_{end}_at_best_val"],
        meta.get("stale", 0),
    )


def load(trainer: Trainer, path: Path, *, moments: bool = True, rows: Mapping[str, str] | None = None) -> int:
    """Put the trainer into a checkpoint's state; the number of whole epochs that were trained. Every rank reads its own rows.

    Args:
        moments: also the optimizer's state, to train on.
        rows: parameter -> the file of its whole table, of learned rows on another graph than the checkpoint's.
    """
    store = open_checkpoint(path, verify=False)  # whoever chose it has verified it
    fill(trainer, store, moments=moments, rows=rows)
    meta = store.meta
    if moments and not _has_own_optimizer(trainer):
        for state in trainer.optimization.optimizer.state.values() if trainer.optimization.optimizer else ():
            state["step"].fill_(float(meta["adam_step"]))
    trainer.loop.underway = Underway(**meta.get("underway", {}))
    if trainer.engine.group.rank:
        trainer.loop.underway.sent_bytes = trainer.loop.underway.between_bytes = 0  # all ranks' are in the first one's
    history = trainer.loop.history
    for name in _SERIES:
        setattr(history, name, list(meta["series"][name]))
    evaluated = _evaluated(meta)
    kind = history.metric, trainer.config.eval, history.select, _metric_source(trainer.config)
    if evaluated.kind == kind:  # else what was best before cannot be compared
        history.scores, history.stale = evaluated.scores, evaluated.stale
        history.best_selected = evaluated.best_selected
        history.best_val, history.test_at_best_val = evaluated.best_val, evaluated.test_at_best_val
        history.counted_best = meta.get("counted_best", evaluated.best_selected)
    return int(meta["epoch"])


def fill(trainer: Trainer, store: Store, *, moments: bool, rows: Mapping[str, str] | None = None) -> None:
    """Parameters, buffers and, with ``moments``, the optimizer's from a checkpoint, in the trainer's precision. ``rows``: as of
    ``load``. Without moments the parameters are their averages, where the checkpoint has these.
    """

    def stored(name: str) -> np.ndarray:
        if rows and name in rows:
            table: np.ndarray = np.load(rows[name], mmap_mode="r")
            return table
        average = f"{_AVERAGE}{name.partition('/')[2]}"
        return store.array(average if not moments and name.startswith("param/") and average in store.files else name)

    if moments and _has_own_optimizer(trainer):
        _make_own_state(trainer, store)
    with torch.no_grad():
        for name, tensor in _tables(trainer, sharded=False, make=True, moments=moments):
            tensor.copy_(torch.from_numpy(np.array(stored(name))))
        for name, table in _tables(trainer, sharded=True, make=True, moments=moments):
            whole, own = stored(name), torch.from_numpy(_rows_of_whole(trainer, name))
            for some, at in zip(table.split(_ROWS_AT_ONCE), own.split(_ROWS_AT_ONCE), strict=True):
                some.copy_(torch.from_numpy(np.asarray(whole[at.numpy()])))
                trainer.engine.pool.rest(some)


def _tables(trainer: Trainer, *, sharded: bool, make: bool = False, moments: bool = True) -> Iterator[tuple[str, Tensor]]:
    """Parameters, buffers and the optimizer's moments with their names; ``make`` creates moments that are not there yet."""
    own = {id(p) for p in trainer.optimization.sharded}
    for name, parameter in trainer.model.named_parameters():
        if (id(parameter) in own) != sharded:
            continue
        yield f"param/{name}", parameter.data
        if not moments or not parameter.requires_grad:
            continue
        averages = trainer.optimization.averages
        if make and trainer.config.optim.average is not None:
            trainer.optimization.start_average(parameter)
        if id(parameter) in averages:
            yield f"{_AVERAGE}{name}", averages[id(parameter)]
        optimizer = trainer.optimization.optimizer
        assert optimizer is not None
        if make and isinstance(optimizer, Adam):
            optimizer.begin(parameter)
        state = optimizer.state[parameter]
        if _has_own_optimizer(trainer):
            tables = {key: value for key, value in state.items() if isinstance(value, Tensor) and value.dim()}
            yield from ((f"{_STATE}{key}/{name}", tables[key]) for key in sorted(tables))
            continue
        yield from ((f"{moment}/{name}", state[key]) for moment, key in _MOMENTS.items())
    if not sharded:
        for name, buffer in trainer.model.named_buffers():
            yield f"buffer/{name}", buffer


def _has_own_optimizer(trainer: Trainer) -> bool:
    return trainer.config.optim.name == "custom" and trainer.optimization.optimizer is not None


def _own_states(trainer: Trainer) -> Iterator[tuple[str, Tensor, dict[str, Any]]]:
    """Each trained parameter, with its name and what one's own optimizer keeps of it."""
    assert trainer.optimization.optimizer is not None
    for name, parameter in trainer.model.named_parameters():
        if parameter.requires_grad:
            yield name, parameter, trainer.optimization.optimizer.state[parameter]


def _own_numbers(trainer: Trainer) -> dict[str, Any]:
    """What an optimizer of one's own keeps beside tables, which all ranks have alike: of each parameter, and of groups.

    A number of Python is kept as it is; a tensor of one number as [it, its dtype]. Anything else raises ``ConfigError``.
    """
    if not _has_own_optimizer(trainer):
        return {}
    assert trainer.optimization.optimizer is not None
    own = {id(p) for p in trainer.optimization.sharded}
    numbers: dict[str, dict[str, Any]] = {}
    for name, parameter, state in _own_states(trainer):
        check_state(trainer.config.optim, state, parameter, sharded=id(parameter) in own)
        kept = {key: value for key, value in state.items() if not (isinstance(value, Tensor) and value.dim())}
        numbers[name] = {
            key: [value.item(), str(value.dtype).removeprefix("torch.")] if isinstance(value, Tensor) else value
            for key, value in kept.items()
        }
    groups = [
        {key: value for key, value in group.items() if key != "lr" and isinstance(value, int | float)}
        for group in trainer.optimization.optimizer.param_groups
    ]
    return {"numbers": numbers, "groups": groups}


def _make_own_state(trainer: Trainer, store: Store) -> None:
    """Numbers of one's own optimizer from a checkpoint, and tables of the shapes that it holds, which ``fill`` fills."""
    assert trainer.optimization.optimizer is not None
    held, own = store.meta["own_state"], {id(p) for p in trainer.optimization.sharded}
    of_name = {name: (parameter, state) for name, parameter, state in _own_states(trainer)}
    for name, (_, state) in of_name.items():
        for key, value in held["numbers"][name].items():
            state[key] = torch.tensor(value[0], dtype=getattr(torch, value[1])) if isinstance(value, list) else value
    for file in store.files:
        kind, _, name = file.partition("/")
        if kind.startswith(_STATE):
            (parameter, state), array = of_name[name], store.array(file)
            shape = parameter.shape if id(parameter) in own else array.shape
            dtype = torch.from_numpy(np.empty(0, array.dtype)).dtype
            state[kind.removeprefix(_STATE)] = torch.empty(shape, dtype=dtype, device=parameter.device)
    for group, numbers in zip(trainer.optimization.optimizer.param_groups, held["groups"], strict=True):
        group.update(numbers)


def _rows_of_whole(trainer: Trainer, name: str) -> np.ndarray:
    """Which rows of the whole table this rank has, int64."""
    node_type = trainer.model.inputs.type_of(name.partition("/")[2])
    part = trainer.graph.part
    ids = np.asarray(part.node_ids[trainer.graph.rows_of_type(node_type)])
    return ids - part.schema.offsets[node_type]


def _gather_rows(trainer: Trainer, writer: StoreWriter | None, name: str, own: Tensor) -> None:
    tables: list[np.ndarray] = []
    own = own.detach().cpu()

    def create(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        assert writer is not None
        if not shape[0]:
            writer.put(name, own.numpy())
            return own.numpy()
        tables.append(writer.create(name, shape, dtype))
        return tables[0]

    gather_table(trainer.engine.group, own, _rows_of_whole(trainer, name), create, "writing a checkpoint")
    for table in tables:
        table.flush()  # type: ignore[attr-defined]


def _remove(path: Path) -> None:
    doomed = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    path.rename(doomed)  # so that a half-removed one has no final name
    shutil.rmtree(doomed, ignore_errors=True)


def open_start(config: RunConfig) -> Store:
    """The checkpoint that the launching process has found, the run's own copy where there is one. Raises ``ConfigError``."""
    own = Path(config.run_dir) / START if config.run_dir is not None else None
    path = own if own is not None and own.is_dir() else Path(str(config.init_from))
    if not (path / MANIFEST).is_file():
        raise ConfigError("The checkpoint that the run starts from is gone.", given=str(path), hint="start a new run")
    store = open_checkpoint(path, verify=False)
    if digest_of(store) != config.init_digest:
        raise ConfigError(
            "The checkpoint that the run starts from has changed since the run was made.",
            given=str(path),
            hint="start a new run: it takes the parameters as they are now",
        )
    return store


def check_start(config: RunConfig, model: Model, schema: Schema) -> None:
    """Check that the parameters to start from fit a model, as it is before it has read its part of a graph of this schema.

    Raises ``ConfigError`` for other names or shapes, or, of a typed graph, other node types or relations.
    """
    store = open_start(config)
    there = {name: entry.shape for name, entry in store.files.items() if name.startswith(_KINDS)}
    here = {f"param/{name}": tuple(parameter.shape) for name, parameter in model.named_parameters()}
    here |= {f"buffer/{name}": tuple(buffer.shape) for name, buffer in model.named_buffers()}
    here |= {f"param/inputs.{name}": shape for name, shape in model.inputs.whole_tables().items()}

    def shape_in(shapes: Mapping[str, tuple[int, ...]], name: str) -> str:
        return str(list(shapes[name])) if name in shapes else "none"

    wrong = [
        f"{name.partition('/')[2]}: {shape_in(there, name)} there, {shape_in(here, name)} here"
        for name in [*here, *sorted(set(there) - set(here))]
        if there.get(name) != here.get(name)
    ]
    if wrong:
        more = [f"and {len(wrong) - _SHOWN} more"] if len(wrong) > _SHOWN else []
        lines = "".join(f"\n    {line}" for line in wrong[:_SHOWN] + more)
        raise ConfigError(
            f"The parameters to start from do not fit this run's model.{lines}",
            given=f"init_from={config.init_from}",
            hint="dataset and model are those of this command, and must have the widths, classes and settings of that run",
        )
    theirs, ours = store.meta.get("schema"), schema.to_json()  # older checkpoints do not say
    if schema.typed and theirs is not None and any(theirs[key] != ours[key] for key in ("node_types", "relations")):
        raise ConfigError(
            "The parameters to start from belong to other node types or relations, or to another order of them.",
            given=f"init_from={config.init_from}, with {_named(theirs)}",
            allowed=_named(ours),
        )


def digest_of(store: Store) -> str:
    """16 hex digits over the checksums of parameters, their averages and buffers."""
    digest = hashlib.sha256()
    for name in sorted(store.files):
        if name.startswith((*_KINDS, _AVERAGE)):
            digest.update(f"{name}:{store.files[name].sha256};".encode())
    return digest.hexdigest()[:16]


def _named(schema: dict[str, Any]) -> str:
    names = [f"{relation[1]}" for relation in schema["relations"]]
    return f"node types {', '.join(schema['node_types'])}; relations {', '.join(names)}"
