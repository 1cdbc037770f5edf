"""What all graphs of one forward pass share: the engine, the user's place in the code, random draws, and what the log says."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from sargnn.engine.aggregate import Engine
from sargnn.engine.reducers.base import Tensors
from sargnn.engine.reducers.generic import EdgeRun
from sargnn.errors import ConfigError, nearest
from sargnn.modules.rows import user_line
from sargnn.modules.stock_calls import paused
from sargnn.modules.user_functions import EdgeCalls
from sargnn.rng import Draw
from sargnn.shards.plan import LayerPlan


class Owner:
    """Who owns what is kept of constant rows, one for each name."""


@dataclass
class Report:
    """What each call of a graph became, said once."""

    lines: list[str] = field(default_factory=list)

    def add(self, line: str) -> None:
        """Note a line that is not there yet."""
        if line not in self.lines:
            self.lines.append(line)


@dataclass
class Asked:
    """What a forward pass asked of ``graph.blocks``.

    Attributes:
        numbers: of which blocks. drawn: how many it went through, one after the other. counted: it asked how many there are.
    """

    numbers: set[int] = field(default_factory=set)
    drawn: int = 0
    counted: bool = False


@dataclass(frozen=True)
class Totals:
    """Of a plan over all workers. Attributes: rows_by_type, outputs_by_type, edges: how many there are."""

    rows_by_type: tuple[int, ...]
    outputs_by_type: tuple[int, ...]
    edges: int

    @property
    def rows(self) -> int:
        return sum(self.rows_by_type)

    @property
    def outputs(self) -> int:
        return sum(self.outputs_by_type)

    @property
    def is_block(self) -> bool:
        """Whether some worker computes not all rows of the layer."""
        return self.rows_by_type != self.outputs_by_type


class Session:
    """One forward pass.

    Args:
        engine: the worker's. totals: of a plan. path: the user's file, if there is one. report: gets lines for the log.
        edge_draw: the next draw for edges, of a probability. owner: who owns what is kept of constant rows, by its name.
        seen: gets the name and the results of a graph's function.
        training: whether this is a step of training, which decides what is kept.
        num_blocks: how many layers there are; None while that is being found out.

    Attributes:
        asked: what was asked of blocks so far.
    """

    def __init__(
        self,
        engine: Engine,
        totals: Callable[[LayerPlan], Totals],
        path: str | None,
        report: Report,
        edge_draw: Callable[[float], Draw],
        owner: Callable[[Hashable, bool], Owner | None],
        seen: Callable[[str, Any], None],
        *,
        training: bool,
        num_blocks: int | None,
    ) -> None:
        self.engine, self.totals, self.path, self.report = engine, totals, path, report
        self._edge_draw, self._owner, self._training, self.seen = edge_draw, owner, training, seen
        self.num_blocks, self.asked = num_blocks, Asked()

    def kept(self, name: Hashable, plan: LayerPlan, compute: Callable[[], Tensors]) -> Tensors:
        """What ``compute()`` gives of constant rows. Training decides what is kept; an evaluation may read it.

        What a module has written to in place is computed anew.
        """
        owner = self._owner(name, self._training)
        if owner is None:
            return compute()
        tensors = self.engine.constant(owner, plan, compute)
        versions = [tensor._version for tensor in tensors]
        return tensors if plan.kept.setdefault(owner, versions) == versions else compute()

    def calls_of_edges(self, draws: dict[int, Draw], run: EdgeRun | None) -> EdgeCalls:
        """What a user's function of edges is called in.

        Args:
            draws: of this function so far, by the number of the call. run: the edges; None for made-up ones.
        """

        def draw(number: int, p: float) -> Draw:
            if number not in draws:
                draws[number] = self._edge_draw(p)
            return draws[number]

        return EdgeCalls(draw, run, self.wrong)

    def paused(self) -> AbstractContextManager[None]:
        """The user's calls are not watched meanwhile."""
        return paused()

    def place(self) -> str:
        """The user's file and line."""
        return user_line(self.path)

    def place_of_error(self, error: BaseException) -> str:
        """The last line of the user's file in an error's trace."""
        frames = traceback.extract_tb(error.__traceback__)
        own = [frame for frame in frames if frame.filename == self.path]
        return f"{own[-1].filename} line {own[-1].lineno}" if own else self.place()

    def not_there(self, what: str, name: str, known: Sequence[str], otherwise: str, hint: str) -> ConfigError:
        """The error for what a graph does not have, called where it was asked for.

        Who asks in the user's file has perhaps meant another name. A layer from elsewhere has not: then its own line is told.

        Args:
            what: which graph. known: names that it has. otherwise: some of them, where none is like it.
        """
        frame = sys._getframe(2)
        asker = frame.f_code.co_filename
        if self.path is not None and asker != self.path:
            return self.wrong(
                f"A layer asks for '{name}', which {what} does not have.", given=f"{asker} line {frame.f_lineno}", hint=hint
            )
        return self.wrong(f"{what.capitalize()} has no '{name}'.", allowed=nearest(name, known) or otherwise, hint=hint)

    def wrong(
        self, what: str, *, given: object = None, place: str | None = None, allowed: Any = None, hint: str | None = None
    ) -> ConfigError:
        """An error about the user's code, with its place."""
        where = place or self.place()
        return ConfigError(what, given=where if given is None else f"{given}; {where}", allowed=allowed, hint=hint)
