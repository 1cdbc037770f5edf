"""Dropout in a user's module: nodes are drawn by original id, edges by their two ends' ids, parameters by row number.

The calls of one forward pass are numbered, and the number takes the place of the layer in a draw. Nodes and parameters are
numbered together, edges apart from them: a stack with one dropout after each layer draws the masks of the built-in stack, and
attention dropout those of the built-in attention, whichever of both the module calls first. Calls that drop nothing do not
count. Nothing here knows a graph: ``Places`` says whose rows a tensor has.

Letters: N rows, E edges, W elements of a row.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sargnn.engine.aggregate import Engine
from sargnn.engine.rebuild import rebuilt_by
from sargnn.errors import ConfigError
from sargnn.modules.row_operators import RowOperators, again_of
from sargnn.modules.session import Places
from sargnn.modules.tag import Mark, is_plain, mark_of, user_line
from sargnn.profile import NODEWISE, Profile
from sargnn.rng import Draw, Purpose, dropout_rows, edge_mask

MOST_CALLS = 256
_CHUNK_EDGES = 1 << 16


class RowDropout:
    """The dropouts of one module.

    Args:
        engine: whose seed and epoch they are drawn for.
        places: whose rows they drop.
        operators: make dropped rows straight from what they were made of, where that is known.
        path: the user's file.
    """

    def __init__(self, engine: Engine, places: Places, operators: RowOperators, path: str | None) -> None:
        self._engine, self._places, self._operators, self._path = engine, places, operators, path
        self.begin()

    def begin(self) -> None:
        """A forward pass begins: number its calls from 0."""
        self._calls = {"nodes": 0, "edges": 0}

    def __call__(self, x: Any, p: float, *, inplace: bool) -> Any:
        """``x`` dropped with probability 0 < p <= 1.

        Args:
            x: a tensor, or an expression per edge, which has a method ``dropped(draw)``.
        """
        if not isinstance(x, Tensor):
            return x.dropped(self.draw(p, of_edges=True))
        mark = mark_of(x)
        if mark is not None and mark.rows is None:
            raise ConfigError(
                "Dropout is drawn for a graph's nodes or edges, and these rows are no longer those of one type",
                given=f"{user_line(self._path)}: {mark.why}",
                allowed="rows of one node type or relation, also as [N, K, D], stacked or transposed",
                hint="drop the rows before they are joined or picked",
            )
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
            return self._dropped_table(x, self.ids(mark), draw)
        return self._dropped(x, mark, draw)

    def ids(self, mark: Mark) -> Tensor:
        """int64 [count], original ids of marked node rows."""
        assert mark.rows is not None
        return self._places.first_node_ids(mark.rows, mark.number)

    def draw(self, p: float, *, of_edges: bool) -> Draw:
        """The draw of the next call."""
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
        at = mark.dim if mark is not None else 0
        moved = x.movedim(at, 0) if at else x
        if mark is not None and mark.number and not is_plain(moved, mark._replace(dim=0)):
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

    def _dropped_table(self, x: Tensor, ids: Tensor, draw: Draw) -> Tensor:
        """A table that the fused operators serve; rebuilt where its rows are held anyway."""
        out = self._operators.dropped(x, ids, draw)
        if out is not None:
            return out
        out = self._engine.operators.dropout(self._operators.reads(x), ids, draw)
        source = again_of(x) if out.requires_grad else None
        return out if source is None else rebuilt_by(out, lambda: dropout_rows(source(), ids, draw))


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
