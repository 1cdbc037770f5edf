"""What evaluations, predictions and Correct & Smooth compute with a trainer's model. All workers call these together.

Where servers hold copies of nodes (``shards.copies``) they read what the workers have without copies in two cases: Correct &
Smooth spreads over many hops, and where less is preloaded than the model reads an output would depend on the servers. Then a
second trainer, on the parts without copies, has the parameters of now.

Letters: N own rows, F features, C outputs.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from sargnn.bf16 import wide
from sargnn.engine.propagate import propagate
from sargnn.profile import EVALUATION
from sargnn.tasks.base import Targets
from sargnn.tasks.correct_smooth import correct_and_smooth
from sargnn.tasks.kinds import Scores
from sargnn.training.fit import evaluation_sample

if TYPE_CHECKING:
    from sargnn.training.loop import Trainer
    from sargnn.training.views import View


def measured(trainer: Trainer) -> Scores:
    """The metric by split, of one view after the other; in evaluation mode, without gradients."""
    if trainer.flat.serves_evaluations:
        flat = trainer.flat.get(trainer)
        flat.model.eval()
        scores = measured(flat)
        flat.engine.pool.reset()
        return scores
    logits, targets, columns = [], [], trainer.label_columns(None)
    for number in range(len(trainer.evaluations)):
        trainer.view = None  # as in training
        view = trainer.evaluations[number]
        out = trainer.forward(view, columns)
        logits.append(out.to(wide(out.dtype)))
        targets.append(view.targets)
        del view, out
    joined = logits[0] if len(logits) == 1 else torch.cat(logits)
    del logits
    return trainer.task.metrics(joined, Targets.join(targets))


def predictions(trainer: Trainer, *, hidden: bool = False) -> Tensor:
    """Logits [N, C] of all own rows of the labelled type, or the last layer's input; evaluation mode, without gradients."""
    if trainer.flat.serves_evaluations:
        return predictions(trainer.flat.get(trainer), hidden=hidden)
    view = _predicted(trainer)
    trainer.model.eval()
    with torch.no_grad(), trainer.engine.profile.span(EVALUATION):
        return trainer.logits(view, hidden=hidden)


def _predicted(trainer: Trainer) -> View:
    """What predictions of all nodes read: all rows, or a sample of the edges into each."""
    if trainer.config.eval != "sampled":
        return trainer.build_whole()
    rows = trainer.graph.labelled_rows
    return trainer.builder.drawn_evaluation(np.arange(rows.start, rows.stop), evaluation_sample(trainer.config, trainer.model))


def smoothed(trainer: Trainer, logits: Tensor) -> Tensor:
    """Scores [N, C] after Correct & Smooth, for what ``predictions`` gave."""
    trainer.engine.pool.reset()
    targets = trainer.build_whole().targets
    flat = trainer.flat.get(trainer) if trainer.flat.exists else trainer
    with trainer.engine.profile.span(EVALUATION):
        spread = partial(propagate, flat.engine, flat.graph.neighbourhood())
        return correct_and_smooth(trainer.config.smooth, spread, flat.engine.group, logits, targets)
