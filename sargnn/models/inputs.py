"""What the first layer reads: features, and learnable rows for node types that have none.

Letters: N own rows, F features, D width of the first layer's input, T node types.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from sargnn.backends.device import device_of
from sargnn.backends.memory import Pool
from sargnn.bf16 import wide
from sargnn.config.choices import Task
from sargnn.engine.linear import linear_map
from sargnn.engine.workspace import Workspace
from sargnn.errors import ConfigError
from sargnn.graph.schema import Schema
from sargnn.partition.part import Part
from sargnn.rng import uniform_rows

if TYPE_CHECKING:
    from sargnn.plan.copies import Copies

_DRAWN_ROWS = 1 << 14
"""That are drawn at a time."""
EVERY_TYPE = -1
"""In the place of a node type: all of them."""


@dataclass(frozen=True)
class GraphShape:
    """What a model must know of a graph to be built.

    Attributes:
        feature_widths: F of each node type.
        num_classes: C, outputs.
        label_columns: columns of labels beside the features: 0 or C.
        labelled: the node type whose rows are the outputs; ``EVERY_TYPE``: all rows are.
        weighted: whether its edges have weights that the model is to use.
        edge_width: D, features of an edge that the model is to read; 0: there are none.
        degrees: how many nodes have 0, 1, 2, ... edges into them, where the model reads that; None: not known.
    """

    schema: Schema
    feature_widths: tuple[int, ...]
    num_classes: int
    label_columns: int = 0
    task: Task = "classes"
    labelled: int = 0
    weighted: bool = False
    edge_width: int = 0
    degrees: tuple[int, ...] | None = None


class Inputs(nn.Module, ABC):
    """The rows [N, D] that the first layer reads.

    Attributes:
        constant: they are the same in every epoch and need no gradient.
        pool: what learned rows are to lie in.
    """

    width: int
    constant: bool
    pool = Pool()

    @abstractmethod
    def load(self, part: Part, seed: int, device: torch.device, dtype: torch.dtype, copies: Copies | None = None) -> Tensor:
        """The worker's rows [N, D], before training. ``copies``: of a part that has some."""

    def forward(self, rows: Tensor) -> Tensor:
        """The same rows [N, D] in an epoch, differentiable in what is learned."""
        return rows

    def sharded(self) -> list[nn.Parameter]:
        """Parameters of which every worker has its own rows only; their gradients are complete without a sum."""
        return []

    def held(self) -> list[Tensor]:
        """Tables beside the rows of ``load`` that it keeps, other than parameters."""
        return []

    def whole_tables(self) -> dict[str, tuple[int, int]]:
        """Name in this module -> shape over all workers, of the parameters that ``load`` shards."""
        return {}

    def type_of(self, parameter: str) -> int:
        """The node type whose rows a sharded parameter has."""
        raise KeyError(parameter)


class Features(Inputs):
    """A homogeneous graph's features. Raises ``ConfigError`` where the graph has types."""

    def __init__(self, shape: GraphShape, model: str) -> None:
        super().__init__()
        schema = shape.schema
        if schema.typed:
            raise ConfigError(
                f"The model '{model}' knows neither node types nor relations.",
                given=f"a graph with {len(schema.node_types)} node types and {len(schema.relations)} relations",
                hint="model=rgcn uses them; dataset.homogenize=true drops them",
            )
        (self.width,) = shape.feature_widths
        self.constant = True

    def load(self, part: Part, seed: int, device: torch.device, dtype: torch.dtype, copies: Copies | None = None) -> Tensor:
        features = device_of(device).load(part.features[0], dtype)
        features.sum()  # reading in what stays mapped from the store belongs to the baseline
        return features


class NoRows(Inputs):
    """Of a model that reads no rows."""

    width, constant = 0, True

    def load(self, part: Part, seed: int, device: torch.device, dtype: torch.dtype, copies: Copies | None = None) -> Tensor:
        return torch.empty(len(part.node_ids), 0, device=device, dtype=dtype)


def input_rows(shape: GraphShape, model: str, otherwise: int) -> Inputs:
    """The features of a graph without types; learned rows of width ``otherwise`` where it has none.

    Raises ``ConfigError`` where the graph has types.
    """
    if not shape.schema.typed and shape.feature_widths == (0,):
        return TypedRows(shape, None, otherwise)
    return Features(shape, model)


class TypedRows(Inputs):
    """Rows of all node types in one table: features as they are, mapped to width D, or learnable embeddings.

    An embedding's rows live with their nodes, as a part of the table itself; copies of nodes get their owners' rows before each
    use, and their gradients go there. They are drawn by original id from the Glorot uniform distribution of the whole
    [nodes of the type, D] table, so they are the same on any number of workers.

    Args:
        width: D, or by the name of a type without features, which needs ``as_they_are``; None: that of the features, or
            ``otherwise`` where no type has features or their widths differ.
        as_they_are: nothing is mapped: D is the largest width; rows of a narrower type have zeros behind their columns.

    Raises ``ConfigError``: a width is given of a type that learns no rows, or by type where all rows are as wide.
    """

    def __init__(
        self, shape: GraphShape, width: int | dict[str, int] | None, otherwise: int, *, as_they_are: bool = False
    ) -> None:
        super().__init__()
        self.schema = shape.schema
        widths = {columns for columns in shape.feature_widths if columns}
        by_type, width = (width, None) if isinstance(width, dict) else ({}, width)
        _check_widths(by_type, shape, as_they_are)
        self.width = width or (widths.pop() if len(widths) == 1 else otherwise)
        self.widths = tuple(
            columns or by_type.get(name, self.width) if as_they_are else self.width
            for name, columns in zip(self.schema.node_types, shape.feature_widths, strict=True)
        )
        self.width = max(self.widths)
        # Numbered: a name alone could be that of an attribute, or equal another's without its dots.
        names = [f"{t:02d}_{name.replace('.', '_')}" for t, name in enumerate(self.schema.node_types)]
        self._embedded = {t: names[t] for t, columns in enumerate(shape.feature_widths) if columns == 0}
        self._mapped = {t: names[t] for t, columns in enumerate(shape.feature_widths) if columns not in (0, self.widths[t])}
        self.maps = nn.ModuleDict(
            {name: nn.Linear(shape.feature_widths[t], self.width, bias=False) for t, name in self._mapped.items()}
        )
        self.embeddings = nn.ParameterDict()
        self._features: dict[int, Tensor] = {}
        self._bounds: tuple[int, ...] = ()
        self._learned: list[tuple[int, int]] = []
        self._copies: Copies | None = None
        self.constant = not self._embedded and not self._mapped

    def load(self, part: Part, seed: int, device: torch.device, dtype: torch.dtype, copies: Copies | None = None) -> Tensor:
        self._bounds, self._copies, self._learned = part.row_bounds, copies, []
        inner = part.inner
        like = torch.empty(0, device=device, dtype=dtype)
        pool = self.pool if self._embedded else Pool()
        rows = pool.lasting(len(part.node_ids), self.width, like)
        ids = torch.from_numpy(part.node_ids)
        for t, (first, last) in enumerate(zip(self._bounds, self._bounds[1:], strict=False)):
            own = rows[first:last]
            if t in self._embedded:
                last = first + int(inner[first:last].sum())
                own = rows[first:last]
                self._learned.append((first, last))
                bound = math.sqrt(6.0 / (self.schema.count(t) + self.widths[t]))
                # What is learned is fp32: of bf16 rows, or wider ones, a table of its own, which they are written from.
                in_place = wide(dtype) == dtype and self.widths[t] == self.width
                learned = own if in_place else pool.lasting(last - first, self.widths[t], like.to(wide(dtype)))
                for some, at in zip(learned.split(_DRAWN_ROWS), ids[first:last].split(_DRAWN_ROWS), strict=True):
                    some.copy_(uniform_rows(at, self.widths[t], seed, bound))
                    pool.rest(some)
                self.embeddings[self._embedded[t]] = nn.Parameter(learned)
                continue
            if t in self._mapped:
                self._features[t] = device_of(device).load(part.features[t], dtype)
            else:
                device_of(device).fill(own[:, : self.widths[t]], part.features[t])
        return rows

    def forward(self, rows: Tensor) -> Tensor:
        tables = [self.embeddings[name] for name in self._embedded.values()]
        joined: Tensor = _Joined.apply(rows, self._learned, *tables) if tables else rows
        if tables and self._copies is not None:
            joined = _Fetched.apply(joined, self._copies)
        if not self._mapped:
            return joined
        pieces = [joined[a:b] for a, b in zip(self._bounds, self._bounds[1:], strict=False)]
        for t, name in self._mapped.items():
            features, linear = self._features[t], cast(nn.Linear, self.maps[name])
            same = features.dtype == linear.weight.dtype
            pieces[t] = linear(features) if same else linear_map(Workspace(), features, linear.weight, None)
        return torch.cat(pieces)

    def sharded(self) -> list[nn.Parameter]:
        return list(self.embeddings.values())

    def held(self) -> list[Tensor]:
        return list(self._features.values())

    def whole_tables(self) -> dict[str, tuple[int, int]]:
        return {f"embeddings.{name}": (self.schema.count(t), self.widths[t]) for t, name in self._embedded.items()}

    def type_of(self, parameter: str) -> int:
        return int(parameter.rpartition(".")[2].partition("_")[0])


def _check_widths(by_type: dict[str, int], shape: GraphShape, as_they_are: bool) -> None:
    learned = [name for name, columns in zip(shape.schema.node_types, shape.feature_widths, strict=True) if not columns]
    if by_type and not as_they_are:
        raise ConfigError(
            "Rows of all node types have one width here: the module takes one width, or all types as one graph.",
            given=f"model.embedding={by_type}",
            allowed="model.embedding=WIDTH",
        )
    for name in by_type.keys() - set(learned):
        raise ConfigError(
            f"Node type '{name}' has no learned rows.",
            given=f"model.embedding.{name}={by_type[name]}",
            allowed=learned or "none: all types have features",
        )


class _Joined(torch.autograd.Function):
    """The table that the embeddings are runs of: nothing is copied, and each gets its run of the table's gradient.

    In a table of bf16 rows, or of wider ones, they are written anew.
    """

    @staticmethod
    def forward(ctx: Any, rows: Tensor, runs: list[tuple[int, int]], *tables: Tensor) -> Tensor:
        ctx.runs = [(*run, table.shape[1]) for run, table in zip(runs, tables, strict=True)]
        for (first, last), table in zip(runs, tables, strict=True):
            if table.dtype != rows.dtype or table.shape[1] != rows.shape[1]:
                # No version: whoever holds these rows from an earlier call, for its gradients, finds the same numbers.
                rows.data[first:last, : table.shape[1]] = table
        return rows.view_as(rows)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return (None, None, *(grad[a:b, :width].to(wide(grad.dtype)) for a, b, width in ctx.runs))


class _Fetched(torch.autograd.Function):
    """The table with the rows of copies as their owners have them: y_c = x_owner(c). Backward adds the gradients of all copies
    of a row to that of the owner's, dx_v = dy_v + sum over copies c of v of dy_c."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, copies: Copies) -> Tensor:
        ctx.copies = copies
        copies.fetch(rows.data)  # no version: see _Joined
        return rows.view_as(rows)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        grad = grad.clone()
        ctx.copies.give_back(grad)
        return grad, None
