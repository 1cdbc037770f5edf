"""Trains a few steps and notes every tensor on the way: of the user's forward, loss, gradients, buffers, parameters.

Each step begins with the parameters of the world that is compared with, so that a step's differences are its own: Adam divides
a gradient by its size and makes steps of rounding errors where a gradient is 0.

What is noted of a tensor is so small that it can be kept, and such that it can be compared with other worlds:

| rows of the tensor | what is noted |
|---|---|
| nodes | for each row its original id and the row's products with 2 random vectors |
| edges | the same, times 2 numbers drawn by an edge's two original ends, summed over the edges into each destination |
| of no order that is known | sums over all elements: how many, x, abs(x), x squared, cos(x) |
| none: the same on all workers | the values; and these sums, since as many rows as the worker has may be meant |

All in fp64. Letters: N rows, W elements of a row, D destinations.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from sargnn.modules.calls import Observe
from sargnn.modules.session import Places
from sargnn.modules.tag import Mark, mark_of
from sargnn.training.trainer import Trainer
from sargnn.training.views import View

Kind = Literal["nodes", "edges", "loose", "same"]
MOST_VALUES = 1 << 16
"""A tensor without rows of the graph that has more elements is noted by its products with 2 random vectors, too."""
FORWARD, EVALUATION, OUTPUT, LOSS = "forward", "evaluation", "output", "loss"
GRADIENT, BUFFER, PARAMETER = "gradient", "buffer", "parameter"
_NUMBER = "_sargnn_number"
_ENTRIES = "entries"
_NAN, _INF, _MINUS_INF = 3.25, 5.5, -7.75


@dataclass(frozen=True)
class Entry:
    """One tensor on one worker.

    Attributes:
        during: such as ``forward``, ``gradient``.
        what: the function, or the parameter's name.
        place: ``FILE line N`` of the user's, or nothing.
        kind, type, count: of its rows; the type of nodes, or the relation.
        inputs: numbers of entries that it was computed from, where they are known.
        of_rows: some argument had rows.
    """

    step: int
    during: str
    what: str
    place: str
    shape: tuple[int, ...]
    kind: Kind
    type: int = 0
    count: int = 0
    inputs: tuple[int, ...] = ()
    of_rows: bool = False


@dataclass(frozen=True)
class Noted:
    """What the table above says: values [N, 2] or [D, 2] and original ids, int64, of rows; else flat values and sums [5]."""

    values: np.ndarray
    ids: np.ndarray | None = None
    sums: np.ndarray | None = None


@dataclass(frozen=True)
class Records:
    """What one worker has noted, in order."""

    entries: list[Entry]
    noted: list[Noted]


def note_tensor(tensor: Tensor, mark: Mark | None, places: Places | None) -> tuple[Kind, Noted]:
    """What is noted of a tensor with its rows at ``mark``, which are those of ``places``."""
    values = _numbers(tensor)
    if mark is not None and mark.rows is not None and places is not None:
        moved = mark.split(values).movedim(mark.dim + 1, 0).reshape(mark.number, -1) if mark.number else values.new_zeros(0, 1)
        products = _products(moved)
        if mark.rows.kind == "edges":
            sources, destinations = (ids.cpu() for ids in places.edge_ids(mark.rows))
            ends = torch.stack([sources, destinations], 1).double()
            factors = torch.cos(ends @ torch.tensor([[12.9898, 39.4251], [78.2331, 11.1352]], dtype=torch.float64))
            ids, place = torch.unique(destinations, return_inverse=True)
            summed = torch.zeros(len(ids), 2, dtype=torch.float64).index_add_(0, place, products * factors)
            return "edges", Noted(summed.numpy(), ids.numpy())
        return "nodes", Noted(products.numpy(), places.first_node_ids(mark.rows, mark.number).cpu().numpy())
    if mark is not None:
        return "loose", Noted(np.zeros(0), None, _sums(values))
    few = values.numel() <= MOST_VALUES
    own = values.flatten() if few else _products(values.reshape(len(values), -1)).flatten()
    return "same", Noted(own.numpy(), None, _sums(values))


def note_rows(tensor: Tensor, ids: Tensor) -> Noted:
    """Of a table of nodes [N, ...] whose original ids are known."""
    values = _numbers(tensor)
    return Noted(_products(values.reshape(len(values), -1) if len(values) else values.new_zeros(0, 1)).numpy(), ids.numpy())


def note_values(tensor: Tensor) -> Noted:
    """All values, however many."""
    return Noted(_numbers(tensor).flatten().numpy(), None, _sums(_numbers(tensor)))


def _numbers(tensor: Tensor) -> Tensor:
    """A copy in fp64."""
    numbers = tensor.detach()
    if numbers.is_sparse or numbers.layout != torch.strided:
        numbers = numbers.to_dense()
    if numbers.is_complex():
        numbers = torch.view_as_real(numbers.resolve_conj())
    return torch.nan_to_num(numbers.to("cpu", torch.float64, copy=True), _NAN, _INF, _MINUS_INF)


def _products(rows: Tensor) -> Tensor:
    """[N, W] with 2 vectors of W numbers that are always the same ones, [N, 2]."""
    generator = torch.Generator().manual_seed(rows.shape[1])
    return rows @ torch.randn(rows.shape[1], 2, generator=generator, dtype=torch.float64)


def _sums(values: Tensor) -> np.ndarray:
    sums = [values.sum(), values.abs().sum(), values.square().sum(), values.cos().sum()]
    return np.array([values.numel(), *map(float, sums)])


def save_records(path: Path, records: Records) -> None:
    """Tables of ids that several entries share stand in the file once."""
    arrays: dict[str, np.ndarray] = {}
    tables: dict[bytes, int] = {}
    rows: list[dict[str, Any]] = []
    for number, (entry, noted) in enumerate(zip(records.entries, records.noted, strict=True)):
        row = asdict(entry)
        arrays[f"values{number}"] = noted.values
        if noted.ids is not None:
            row["ids"] = tables.setdefault(noted.ids.tobytes(), len(tables))
            arrays[f"ids{row['ids']}"] = noted.ids
        if noted.sums is not None:
            row["sums"] = noted.sums.tolist()
        rows.append(row)
    arrays[_ENTRIES] = np.frombuffer(json.dumps(rows).encode(), np.uint8)
    with path.open("wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]


def load_records(path: Path) -> Records:
    with np.load(path) as arrays:
        rows = json.loads(arrays[_ENTRIES].tobytes())
        ids = {key: arrays[key] for key in arrays if key.startswith("ids")}
        return Records(*map(list, zip(*_read(rows, arrays, ids), strict=True))) if rows else Records([], [])


def _read(rows: list[dict[str, Any]], arrays: Any, ids: dict[str, np.ndarray]) -> Iterator[tuple[Entry, Noted]]:
    for number, row in enumerate(rows):
        table, sums = row.pop("ids", None), row.pop("sums", None)
        entry = Entry(**row | {"shape": tuple(row["shape"]), "inputs": tuple(row["inputs"])})
        own = None if table is None else ids[f"ids{table}"]
        yield entry, Noted(arrays[f"values{number}"], own, None if sums is None else np.array(sums))


class Recorder:
    """All workers must record the same, each with a trainer that has trained nothing yet."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer, self.records = trainer, Records([], [])
        self._step, self._during = 0, FORWARD
        trainer.model.observer = self._observer
        trainer.forward.on_output = self._note_output
        if trainer.optimization.optimizer is not None:
            trainer.optimization.optimizer.register_step_pre_hook(lambda *_: self._note_gradients())

    def train(self, steps: int, parameters: Path, *, follow: bool) -> None:
        """Train so many steps, then evaluate once.

        ``parameters`` is a folder for those after each step; with ``follow`` they are read there, else written.
        """
        trainer = self.trainer
        # Generators that nobody seeds from the run's seed begin elsewhere on each worker of each world, as they do in two runs.
        # Workers that one process was forked into would else draw the same numbers, and nobody would notice.
        number = 1000 * trainer.engine.group.world + trainer.engine.group.rank
        random.seed(number)
        np.random.seed(number)
        torch.default_generator.manual_seed(number)
        for step in range(steps):
            self._step, self._during = step + 1, FORWARD
            result = trainer.loop.train_epoch(step)
            self._add(Entry(self._step, LOSS, LOSS, "", (), "same"), note_values(torch.tensor(result.loss)))
            self._note_state()
            if follow:
                known = torch.load(parameters / f"{step}.pt")
                with torch.no_grad():
                    for name, parameter in self._replicated():
                        parameter.copy_(known[name])
            elif trainer.engine.group.rank == 0:
                torch.save({name: parameter.detach() for name, parameter in self._replicated()}, parameters / f"{step}.pt")
        self._step, self._during = steps, EVALUATION
        trainer.model.eval()
        if trainer.config.asks_queries:
            return  # views of an evaluation ask other queries on other workers
        with torch.no_grad():
            trainer.forward.logits(trainer.evaluation)

    def save(self, path: Path) -> None:
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
        for name, parameter in reversed(list(self.trainer.model.named_parameters())):
            if parameter.grad is not None:
                self._note_parameter(GRADIENT, name, parameter, parameter.grad)

    def _note_state(self) -> None:
        for name, buffer in self.trainer.model.named_buffers():
            self._add(self._entry(BUFFER, name, buffer), note_tensor(buffer, None, None)[1])
        for name, parameter in self.trainer.model.named_parameters():
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

    def _replicated(self) -> list[tuple[str, nn.Parameter]]:
        return [
            (name, parameter)
            for name, parameter in self.trainer.model.named_parameters()
            if all(parameter is not other for other in self.trainer.optimization.sharded)
        ]

    def _add(self, entry: Entry, noted: Noted) -> None:
        self.records.entries.append(entry)
        self.records.noted.append(noted)
