"""Evaluations, predictions, which are written in the order of original ids, and Correct & Smooth of a model as it is now.

All workers call these together. Where servers hold copies of nodes (``plan.copies``) two things are done by a second trainer,
on the parts without copies: Correct & Smooth, which spreads over many hops, and, where less is preloaded than the model reads,
predictions, which would depend on the servers.

Letters: N own rows, F features, C outputs.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from sargnn.comm.collectives import gather_table
from sargnn.graph.schema import SPLITS
from sargnn.profile import EVALUATION
from sargnn.tasks.kinds import EMBEDDINGS, LOGITS, SMOOTHED, Scores
from sargnn.training.fit import Setup, evaluation_sample
from sargnn.training.history import EvaluationResult, History
from sargnn.training.loop import EpochEnd, Listener
from sargnn.training.steps import Views
from sargnn.training.views import Forward

if TYPE_CHECKING:
    from sargnn.training.trainer import Trainer

MANIFEST = "predictions.json"


class Evaluator(Listener):
    """Measures the model after every ``eval_every`` epochs and after the last one. ``evaluated``: after how many it did last.

    Args:
        views: whose outputs an evaluation measures together: one view, or groups of its rows.
        flat: where the graph has copies, makes a trainer of the same model on the part without.
    """

    def __init__(
        self, setup: Setup, forward: Forward, views: Views, history: History, flat: Callable[[], Trainer] | None
    ) -> None:
        self._setup, self._forward, self.views, self.history = setup, forward, views, history
        self._make_flat, self._reads_flat = flat, flat is not None and setup.config.bounds_preload
        self._made_flat: Trainer | None = None
        self._config, self._model, self._engine = setup.config, setup.model, setup.engine
        self._task, self._builder, self._meter = setup.task, setup.builder, setup.meter
        self.evaluated = 0

    def on_epoch(self, end: EpochEnd) -> None:
        epochs = end.result.epoch + 1
        regular = epochs % self._config.eval_every == 0
        if regular or end.last:
            end.evaluation = self.evaluate(counts=regular)
            self.evaluated = epochs

    def evaluate(self, *, counts: bool = True) -> EvaluationResult:
        """The metric on all splits, in the same mode without autograd. ``counts``: for early stopping."""
        self._engine.reset_tables()  # training's tables are of no use to an evaluation, nor the other way round
        self._meter.begin()
        started = time.perf_counter()
        self._model.eval()
        with torch.no_grad(), self._engine.profile.span(EVALUATION), self._setup.optimization.averaged():
            scores = self.measure()
        self._engine.place.synchronize()
        time_s = time.perf_counter() - started
        peak = self._meter.end()
        self._engine.reset_tables()
        self.history.add_evaluation(scores, time_s, peak, counts=counts)
        peaks = self._engine.group.gather(torch.tensor(peak, dtype=torch.int64))
        return EvaluationResult(self._task.name, self._task.metric, scores, [int(rank_peak) for rank_peak in peaks])

    def _flat(self) -> Trainer:
        """The trainer without copies, with the parameters and buffers of now. All workers must call it together."""
        assert self._make_flat is not None
        if self._made_flat is None:
            self._made_flat = self._make_flat()
        theirs: list[Tensor] = [*self._made_flat.model.parameters(), *self._made_flat.model.buffers()]
        with torch.no_grad():
            for own, other in zip([*self._model.parameters(), *self._model.buffers()], theirs, strict=True):
                other.copy_(own)
        return self._made_flat

    def measure(self) -> Scores:
        """The metric by split, of one view after the other; in evaluation mode, without gradients."""
        if self._reads_flat:
            flat = self._flat()
            flat.model.eval()
            scores = flat.evaluator.measure()
            flat.engine.reset_tables()
            return scores
        if not len(self.views):
            return dict.fromkeys(SPLITS)
        logits, targets, columns = [], [], self._forward.columns(None)
        for number in range(len(self.views)):
            view = self.views[number]
            out = self._forward(view, columns)
            logits.append(self._task.kept_of(out, view.targets))
            targets.append(view.targets)
            del view, out
        joined = logits[0] if len(logits) == 1 else torch.cat(logits)
        del logits
        together = targets[0].join(targets)
        scores = self._task.metrics(joined, together)
        if self._config.select == "val_loss":
            scores["val_loss"] = self._task.validation_loss(joined, together)
        return scores

    def predictions(self, *, hidden: bool = False) -> Tensor:
        """Logits [N, C] of all own rows of the labelled type, or the last layer's input; evaluation mode, without gradients.

        Read are all rows, or a sample of the edges into each.
        """
        if self._reads_flat:
            return self._flat().evaluator.predictions(hidden=hidden)
        if self._config.eval == "sampled":
            rows = self._setup.graph.labelled_rows
            sample = evaluation_sample(self._config, self._model)
            view = self._builder.drawn_evaluation(np.arange(rows.start, rows.stop), sample)
        else:
            view = self._builder.whole()
        self._model.eval()
        with torch.no_grad(), self._engine.profile.span(EVALUATION):
            return self._forward.logits(view, hidden=hidden)

    def smoothed(self, logits: Tensor) -> Tensor:
        """Scores [N, C] after Correct & Smooth, for what ``predictions`` gave."""
        self._engine.reset_tables()
        targets = self._builder.whole().targets
        engine, graph = self._engine, self._setup.graph
        if self._make_flat is not None:
            flat = self._flat()
            engine, graph = flat.engine, flat.graph
        with self._engine.profile.span(EVALUATION):
            from sargnn.engine.propagate import propagate
            from sargnn.tasks.correct_smooth import correct_and_smooth

            spread = partial(propagate, engine, graph.neighbourhood())
            return correct_and_smooth(self._config.smooth, spread, engine.group, logits, targets)

    def smooth(self) -> None:
        """Correct & Smooth after training; its scores and memory peak go into the history."""
        self._engine.forget_constants()  # training is over
        with self._setup.optimization.averaged():
            logits = self.predictions()
        targets = self._builder.whole().targets
        self._engine.reset_tables()
        started = time.perf_counter()
        self._meter.begin()
        scores = self.smoothed(logits)
        self.history.smoothed = self._task.metrics(scores, targets)
        self._engine.place.synchronize()
        self.history.peak_smooth_bytes = self._meter.end()
        self.history.smooth_time_s = time.perf_counter() - started


def write_predictions(trainer: Trainer, folder: Path, *, embeddings: bool, **of_pairs: Any) -> dict[str, Any]:
    """Write predictions of the labelled type's nodes; all ranks must call it, rank 0 writes. Gives what was written.

    | file | |
    |---|---|
    | ``predictions.npy`` | classes: int64 [nodes], after Correct & Smooth where that is configured |
    | | multilabel: uint8 [nodes, C], 1 where the logit is above 0; regression: [nodes, C], the values, equal to the logits |
    | ``logits.npy`` | [nodes, C], as the model gives them |
    | ``smoothed.npy`` | [nodes, C], scores after Correct & Smooth, where that is configured |
    | ``embeddings.npy`` | [nodes, F], what the last layer reads, if asked for |

    Of links and edges ``training.pairs.write_pairs`` says what there is, and takes ``of_pairs``.
    """
    part, graph = trainer.graph.part, trainer.graph
    offset = part.schema.offsets[max(graph.labelled, 0)]
    own = np.asarray(part.node_ids[graph.labelled_rows]) - offset
    files = []

    def write(name: str, rows: Tensor, rows_of_whole: np.ndarray = own) -> None:
        temporary = folder / f".{name}.tmp"

        def create(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
            return np.lib.format.open_memmap(temporary, mode="w+", dtype=dtype, shape=shape)

        gather_table(trainer.engine.group, rows.cpu(), rows_of_whole, create, "writing predictions")
        if trainer.engine.group.rank == 0:
            temporary.replace(folder / name)
            files.append(name)

    if trainer.config.asks_queries:
        from sargnn.training.queries import write_answers

        more = write_answers(trainer, of_pairs, write)
        return {"node_type": ", ".join(part.schema.node_types), "nodes": part.schema.num_nodes, "files": files} | more
    logits = trainer.evaluator.predictions()
    if trainer.config.predicts_pairs:
        from sargnn.training.pairs import write_pairs

        more = write_pairs(trainer.task, logits, part.schema, own, of_pairs | {"embeddings": embeddings}, write)
        return {"node_type": ", ".join(part.schema.node_types), "nodes": part.schema.num_nodes, "files": files} | more
    write(LOGITS, logits)
    if trainer.config.smooth.name != "none":
        logits = trainer.evaluator.smoothed(logits)
        write(SMOOTHED, logits)
    for name, table in trainer.task.tables(logits).items():
        write(f"{name}.npy", table)
    del logits
    if embeddings:
        write(EMBEDDINGS, trainer.evaluator.predictions(hidden=True))
    return {"node_type": part.schema.node_types[graph.labelled], "nodes": part.schema.count(graph.labelled), "files": files}
