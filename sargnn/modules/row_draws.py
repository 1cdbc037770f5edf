"""Random numbers for rows, drawn by what the rows are: a node's original id, or both ends of an edge.

Dropout is drawn by ``RowDropout``. Any other function that a trial finds to be random (``trial.py``) has a rule here, or is
refused. A rule computes the result of uniform numbers, of which row i's depend on the seed, the epoch, the step, the number of
the call in its forward pass and on row i's ids alone: the same on any number of workers, and again when a pass is computed
again.

Letters: N rows, W elements of a row.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sargnn.engine.aggregate import Engine
from sargnn.engine.rebuild import rebuilt_by
from sargnn.errors import ConfigError
from sargnn.modules.lazy import EdgeRows
from sargnn.modules.row_operators import RowOperators, again_of
from sargnn.modules.session import Places
from sargnn.modules.tag import Mark, mark_of, user_line
from sargnn.profile import NODEWISE, Profile
from sargnn.rng import Draw, Purpose, dropout_rows, edge_mask, uniform_numbers


@dataclass
class RowNumbers:
    """Numbers for one call, of rows that ``mark`` says, in ``shape``.

    Attributes:
        ids: int64 [N] each, original ids of the rows' nodes and zeros, or of the edges' ends.
        draw: gives the draw of the next call.
        dtype: of a result of fractions.
    """

    ids: Callable[[], tuple[Tensor, Tensor]]
    draw: Callable[[], Draw]
    shape: Sequence[int]
    mark: Mark
    dtype: torch.dtype

    def uniform(self, dims: int | None = None) -> Tensor:
        """Numbers from [0, 1) in the result's shape. dims: the same number along the others than the first so many."""
        sources, destinations = self.ids()
        shape, mark = [size if dims is None or at < dims else 1 for at, size in enumerate(self.shape)], self.mark
        others = [*shape[: mark.dim], *shape[mark.dim + 1 :]]
        width = mark.before * mark.parts * math.prod(others)
        table = uniform_numbers(sources, destinations, width, self.draw(), self.dtype)
        table = table.view(len(sources), mark.before, mark.parts, *others)
        return table.movedim((1, 0, 2), (mark.dim, mark.dim + 1, mark.dim + 2)).flatten(mark.dim, mark.dim + 2)

    def normal(self) -> Tensor:
        """Standard normal numbers (Box and Muller)."""
        return self.exponential().mul_(2).sqrt_() * (2 * math.pi * self.uniform()).cos_()

    def exponential(self) -> Tensor:
        """-log(1 - u)."""
        return torch.log1p(-self.uniform()).neg_()


MOST_CALLS = 256
_CHUNK_EDGES = 1 << 16
DrawRule = Callable[..., Tensor]
"""(``RowNumbers``, the function's arguments ...) to its result."""


def _bernoulli(numbers: RowNumbers, input: Any, p: Any = None, *, generator: Any = None) -> Tensor:
    p = input if p is None else p
    return (numbers.uniform() < (p.detach() if isinstance(p, Tensor) else p)).to(numbers.dtype)


def _bernoulli_(numbers: RowNumbers, x: Tensor, p: Any = 0.5, *, generator: Any = None) -> Tensor:
    return _bernoulli(numbers, x, p)


def _normal(numbers: RowNumbers, mean: Any = 0.0, std: Any = 1.0, size: Any = None, **named: Any) -> Tensor:
    return numbers.normal() * std + mean


def _normal_(numbers: RowNumbers, x: Tensor, mean: float = 0.0, std: float = 1.0, *, generator: Any = None) -> Tensor:
    return numbers.normal() * std + mean


def _uniform_(numbers: RowNumbers, x: Tensor, *given: float, generator: Any = None, **named: float) -> Tensor:
    low, high = (*given, *(named.get("from", 0.0), named.get("to", named.get("b", 1.0)))[len(given) :])
    low = named.get("a", low)
    return numbers.uniform() * (high - low) + low


def _whole(numbers: RowNumbers, low: int, high: int) -> Tensor:
    return (numbers.uniform() * (high - low)).floor() + low


def _randint(numbers: RowNumbers, *given: Any, **named: Any) -> Tensor:
    limits = [value for value in given if isinstance(value, int)]
    low: Any
    high: Any
    low, high = (
        (named.get("low", 0), named.get("high"))
        if not limits
        else limits
        if len(limits) == 2
        else (named.get("low", 0), limits[0])
    )
    return _whole(numbers, low, high)


def _alpha_dropout(numbers: RowNumbers, input: Tensor, p: float = 0.5, *given: Any, dims: Any = None, **named: Any) -> Tensor:
    """a (x m - alpha (1 - m)) + a alpha p with m kept or not, alpha of SELU (Klambauer et al., 2017)."""
    alpha = 1.7580993408473766
    a = 1 / math.sqrt((alpha**2 * p + 1) * (1 - p))
    kept = (numbers.uniform(dims) >= p).to(input.dtype)
    return input * (kept * a) + (kept - 1) * (alpha * a) + alpha * a * p


def _feature_alpha_dropout(numbers: RowNumbers, input: Tensor, p: float = 0.5, *given: Any, **named: Any) -> Tensor:
    return _alpha_dropout(numbers, input, p, dims=2)


def _feature_dropout(numbers: RowNumbers, input: Tensor, p: float = 0.5, *given: Any, **named: Any) -> Tensor:
    """Whole rows of the dimensions behind the second one."""
    return input * ((numbers.uniform(2) >= p).to(input.dtype) / (1 - p))


def _rrelu(numbers: RowNumbers, input: Tensor, lower: float = 1 / 8, upper: float = 1 / 3, *given: Any, **named: Any) -> Tensor:
    return torch.where(input >= 0, input, input * (numbers.uniform() * (upper - lower) + lower))


DRAWS: dict[str, DrawRule] = {
    **dict.fromkeys(("rand", "rand_like"), lambda numbers, *given, **named: numbers.uniform()),
    **dict.fromkeys(("randn", "randn_like"), lambda numbers, *given, **named: numbers.normal()),
    "bernoulli": _bernoulli,
    "bernoulli_": _bernoulli_,
    "normal": _normal,
    "normal_": _normal_,
    "uniform_": _uniform_,
    "exponential_": lambda numbers, x, lambd=1.0, generator=None: numbers.exponential() / lambd,
    "cauchy_": lambda numbers, x, median=0.0, sigma=1.0, generator=None: (
        median + sigma * (math.pi * (numbers.uniform() - 0.5)).tan()
    ),
    "log_normal_": lambda numbers, x, mean=1.0, std=2.0, generator=None: (numbers.normal() * std + mean).exp(),
    "geometric_": lambda numbers, x, p, generator=None: (numbers.exponential() / -math.log1p(-p)).floor() + 1,
    **dict.fromkeys(("randint", "randint_like"), _randint),
    "random_": _randint,
    "alpha_dropout": _alpha_dropout,
    "alpha_dropout_": _alpha_dropout,
    "feature_alpha_dropout": _feature_alpha_dropout,
    "feature_alpha_dropout_": _feature_alpha_dropout,
    "feature_dropout": _feature_dropout,
    "feature_dropout_": _feature_dropout,
    "rrelu": _rrelu,
    "rrelu_": _rrelu,
    "rrelu_with_noise": _rrelu,
}
"""By the function's name."""


class RowDropout:
    """The dropouts of one module: nodes are drawn by original id, edges by their two ends' ids, parameters by row number.

    The calls of one forward pass are numbered, and the number takes the place of the layer in a draw. Nodes and parameters are
    numbered together, edges apart from them: a stack with one dropout after each layer draws the masks of the built-in stack,
    and attention dropout those of the built-in attention, whichever of both the module calls first. Calls that drop nothing do
    not count. ``operators`` make dropped rows straight from what they were made of, where that is known.
    """

    def __init__(self, engine: Engine, places: Places, operators: RowOperators, path: str | None) -> None:
        self._engine, self._places, self._operators, self._path = engine, places, operators, path
        self.begin()

    def begin(self) -> None:
        """A forward pass begins: number its calls from 0."""
        self._calls = {"nodes": 0, "edges": 0}

    def __call__(self, x: Any, p: float, *, inplace: bool) -> Any:
        """``x``, a tensor or an expression of edges, with a method ``dropped(draw)``, dropped with probability 0 < p <= 1."""
        if isinstance(x, EdgeRows) or not isinstance(x, Tensor):
            return x.dropped(self.draw(p, of_edges=True))
        mark = mark_of(x)
        if mark is not None and mark.rows is None:
            raise self._not_of_one_type(mark)
        draw = self.draw(p, of_edges=mark is not None and mark.rows is not None and mark.rows.kind == "edges")
        if p >= 1:
            return x.mul_(0) if inplace else x * 0
        if inplace or x.dtype not in (torch.float32, torch.float64):  # no kernel is compiled for other formats
            with torch.no_grad():
                ones = torch.ones_like(x, dtype=x.dtype if x.dtype == torch.float64 else torch.float32)
                factor = self._dropped(ones, mark, draw).to(x.dtype)
            return x.mul_(factor) if inplace else x * factor
        if self._operators.is_table(x, mark):
            assert mark is not None
            ids, out = self.ids(mark), self._operators.dropped(x, self.ids(mark), draw)
            if out is not None:
                return out
            # A table that the fused operators serve; rebuilt where its rows are held anyway.
            out = self._engine.operators.dropout(self._operators.reads(x), ids, draw)
            source = again_of(x) if out.requires_grad else None
            return out if source is None else rebuilt_by(out, lambda: dropout_rows(source(), ids, draw))
        return self._dropped(x, mark, draw)

    def ids(self, mark: Mark) -> Tensor:
        """int64 [count], original ids of marked node rows."""
        assert mark.rows is not None
        return self._places.first_node_ids(mark.rows, mark.number)

    def numbers(self, mark: Mark, shape: Sequence[int], dtype: torch.dtype) -> RowNumbers:
        if mark.rows is None:
            raise self._not_of_one_type(mark)
        of_edges, rows = mark.rows.kind == "edges", mark.rows

        def ids() -> tuple[Tensor, Tensor]:
            if of_edges:
                return self._places.edge_ids(rows)
            of_nodes = self.ids(mark)
            return of_nodes, torch.zeros_like(of_nodes)

        return RowNumbers(ids, lambda: self.draw(0.0, of_edges=of_edges), shape, mark, dtype)

    def _not_of_one_type(self, mark: Mark) -> ConfigError:
        return ConfigError(
            "Dropout is drawn for a graph's nodes or edges, and these rows are no longer those of one type",
            given=f"{user_line(self._path)}: {mark.why}",
            allowed="rows of one node type or relation, also as [N, K, D], stacked or transposed",
            hint="drop the rows before they are joined or picked",
        )

    def draw(self, p: float, *, of_edges: bool) -> Draw:
        kind = "edges" if of_edges else "nodes"
        number = self._calls[kind]
        self._calls[kind] += 1
        if number >= MOST_CALLS:
            raise ConfigError(
                "A forward pass has more dropouts than can be told apart",
                given=f"{user_line(self._path)}: call {number + 1}",
                allowed=f"at most {MOST_CALLS} calls in a forward pass, and as many of edges",
                hint="drop several tensors in one call, or fewer of them",
            )
        purpose = Purpose.ATTENTION_DROPOUT if of_edges else Purpose.DROPOUT
        return Draw(self._engine.seed, self._engine.epoch, purpose, number, p if p < 1 else 0.0)

    def _dropped(self, x: Tensor, mark: Mark | None, draw: Draw) -> Tensor:
        """Rows that run along any dimension, dropped as a table [N, W]."""
        if mark is not None and not mark.is_single:
            split = mark.split(x)
            single = mark._replace(dim=mark.dim + 1, parts=1, before=1)
            return self._dropped(split, single, draw).flatten(mark.dim, mark.dim + 2)
        at = mark.dim if mark is not None else 0
        moved = x.movedim(at, 0) if at else x
        if mark is not None and mark.number and moved.dim() > 2:
            table = moved.reshape(mark.number, -1)
        else:
            table = moved.flatten(1) if moved.dim() > 1 else moved.reshape(-1, 1)
        if mark is not None and mark.rows is not None and mark.rows.kind == "edges":
            out = _EdgeDropout.apply(table, self._places.edge_ids(mark.rows), draw, self._engine.profile)
        else:
            ids = torch.arange(len(table)) if mark is None else self.ids(mark)
            out = self._engine.operators.dropout(table, ids.to(table.device), draw)
        out = out.view(moved.shape)
        return out.movedim(0, at) if at else out


class _EdgeDropout(torch.autograd.Function):
    """``y = x * mask / (1 - p)`` for rows of edges [E, W]. Saves nothing: the mask is drawn again."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, ids: tuple[Tensor, Tensor], draw: Draw, profile: Profile) -> Tensor:
        ctx.ids, ctx.draw, ctx.profile = ids, draw, profile
        return _EdgeDropout.drop(ctx, x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return _EdgeDropout.drop(ctx, grad), None, None, None

    @staticmethod
    def drop(ctx: Any, x: Tensor) -> Tensor:
        """Run by run of edges: the counters of a draw are larger than the rows."""
        source, destination = ctx.ids
        with ctx.profile.span(NODEWISE):
            out = torch.empty_like(x)
            for start in range(0, len(x), _CHUNK_EDGES):
                run = slice(start, start + _CHUNK_EDGES)
                kept = edge_mask(source[run].to(x.device), destination[run].to(x.device), x.shape[1], ctx.draw)
                torch.mul(x[run], kept.to(x.dtype).mul_(ctx.draw.scale), out=out[run])
        return out
