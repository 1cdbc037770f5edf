"""Trains a few steps and notes every tensor on the way: of the user's forward, loss, gradients, buffers, parameters.

Each step begins with the parameters of the world that is compared with, so that a step's differences are its own: Adam divides
a gradient by its size and makes steps of rounding errors where a gradient is 0.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from sargnn.modules.calls import Observe
from sargnn.modules.session import Places
from sargnn.modules.tag import Mark, mark_of
from sargnn.training.trainer import Trainer
from sargnn.training.views import View
from sargnn.training.worlds.record import Entry, Noted, Records, note_rows, note_tensor, note_values, save_records

FORWARD, EVALUATION, OUTPUT, LOSS = "forward", "evaluation", "output", "loss"
GRADIENT, BUFFER, PARAMETER = "gradient", "buffer", "parameter"
_NUMBER = "_sargnn_number"


class Recorder:
    """Records one worker's training; all workers must do the same.

    Args:
        trainer: that has trained nothing yet.
    """

    def __init__(self, trainer: Trainer) -> None:
        self.trainer, self.records = trainer, Records([], [])
        self._step, self._during = 0, FORWARD
        trainer.model.observer = self._observer
        trainer.forward.on_output = self._note_output
        if trainer.optimization.optimizer is not None:
            trainer.optimization.optimizer.register_step_pre_hook(lambda *_: self._note_gradients())

    def train(self, steps: int, parameters: Path, *, follow: bool) -> None:
        """Train so many steps, then evaluate once.

        Args:
            parameters: a folder for those after each step. follow: read them there; else they are written.
        """
        trainer = self.trainer
        _seed_others(trainer.engine.group.world, trainer.engine.group.rank)
        for step in range(steps):
            self._step, self._during = step + 1, FORWARD
            result = trainer.loop.train_epoch(step)
            self._add(Entry(self._step, LOSS, LOSS, "", (), "same"), note_values(torch.tensor(result.loss)))
            self._note_state()
            if follow:
                self._take(parameters / f"{step}.pt")
            elif trainer.engine.group.rank == 0:
                torch.save({name: parameter.detach() for name, parameter in self._replicated()}, parameters / f"{step}.pt")
        self._step, self._during = steps, EVALUATION
        trainer.model.eval()
        with torch.no_grad():
            trainer.forward.logits(trainer.evaluation)

    def save(self, path: Path) -> None:
        """Write what was recorded."""
        save_records(path, self.records)

    def _observer(self, places: Places) -> Observe:
        def observe(what: str, place: str, out: Tensor, mark: Mark | None, inputs: Sequence[Tensor]) -> None:
            before = tuple(number for tensor in inputs if (number := getattr(tensor, _NUMBER, None)) is not None)
            with torch.no_grad():
                kind, noted = note_tensor(out, mark, places)
            node_type = mark.rows.type if mark is not None and mark.rows is not None else 0
            count = mark.number if mark is not None else 0
            setattr(out, _NUMBER, len(self.records.entries))
            of_rows = any(mark_of(tensor) is not None for tensor in inputs)
            entry = Entry(self._step, self._during, what, place, tuple(out.shape), kind, node_type, count, before, of_rows)
            self._add(entry, noted)

        return observe

    def _note_output(self, view: View, out: Tensor) -> None:
        ids = view.flow.own_outputs(self.trainer.ids)
        entry = Entry(
            self._step,
            OUTPUT,
            "the model's output",
            "",
            tuple(out.shape),
            "nodes",
            self.trainer.graph.labelled,
            len(ids),
            tuple(number for number in (getattr(out, _NUMBER, None),) if number is not None),
        )
        self._add(entry, note_rows(out, ids))

    def _note_gradients(self) -> None:
        """After backward and the sum over workers. The last layer's come first, as backward has them."""
        for name, parameter in reversed(list(self._named())):
            if parameter.grad is not None:
                self._note_parameter(GRADIENT, name, parameter, parameter.grad)

    def _note_state(self) -> None:
        """Parameters and buffers after a step."""
        for name, buffer in self.trainer.model.named_buffers():
            self._add(self._entry(BUFFER, name, buffer), note_tensor(buffer, None, None)[1])
        for name, parameter in self._named():
            self._note_parameter(PARAMETER, name, parameter, parameter)

    def _note_parameter(self, during: str, name: str, parameter: Tensor, values: Tensor) -> None:
        """Of parameters with a row for each of the worker's own nodes: by original id."""
        trainer, entry = self.trainer, self._entry(during, name, values)
        if any(parameter is table for table in trainer.optimization.sharded):
            bounds, number = trainer.graph.part.row_bounds, trainer.model.inputs.type_of(name)
            ids = trainer.ids[bounds[number] : bounds[number + 1]]
            self._add(replace(entry, kind="nodes", type=number, count=len(ids)), note_rows(values, ids))
        else:
            self._add(entry, note_values(values))

    def _entry(self, during: str, name: str, values: Tensor) -> Entry:
        """Names are those in the user's module, where there is one."""
        return Entry(self._step, during, name.removeprefix("module."), "", tuple(values.shape), "same")

    def _named(self) -> list[tuple[str, nn.Parameter]]:
        return list(self.trainer.model.named_parameters())

    def _replicated(self) -> list[tuple[str, nn.Parameter]]:
        return [
            (name, parameter)
            for name, parameter in self._named()
            if all(parameter is not other for other in self.trainer.optimization.sharded)
        ]

    def _take(self, path: Path) -> None:
        known = torch.load(path)
        with torch.no_grad():
            for name, parameter in self._replicated():
                parameter.copy_(known[name])

    def _add(self, entry: Entry, noted: Noted) -> None:
        self.records.entries.append(entry)
        self.records.noted.append(noted)


def _seed_others(world: int, rank: int) -> None:
    """Generators that nobody seeds from the run's seed begin elsewhere on each worker of each world, as they do in two runs.

    Workers that one process was forked into would else draw the same numbers, and nobody would notice.
    """
    number = 1000 * world + rank
    random.seed(number)
    np.random.seed(number)
    torch.manual_seed(number)
