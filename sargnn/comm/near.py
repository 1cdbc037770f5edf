"""Ranks of one process, whose rows others of it read where they lie (``HaloLists.near``).

Letters: N own rows, F features.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sargnn.comm.group import Group, Traffic
from sargnn.comm.lists import Arrival, HaloLists

Show = Callable[[Sequence[Tensor]], Callable[[], None]]


@dataclass
class Shown:
    """What a rank shows the others of its process in one exchange: rows to be read, or gradients to be added to.

    ``readers`` ranks have still to read; ``hide`` is called when all have. Of gradients those of the rank ``turn`` ranks after
    this one are added next; with 0 it adds its own.
    """

    tensors: tuple[Tensor, ...]
    lists: HaloLists
    traffic: Traffic
    readers: int
    hide: Callable[[], None]
    turn: int = 0

    def pass_turn(self, rank: int) -> None:
        """All gradients of the rank whose turn it is have been added to those of ``rank``; who has none is left out."""
        world = len(self.lists.send_rows)
        self.turn += 1
        while self.turn < world and not len(self.lists.send_rows[(rank + self.turn) % world]):
            self.turn += 1


class Near:
    """The part of an exchange that stays in the process."""

    def __init__(self, group: Group, lists: HaloLists, tensors: tuple[Tensor, ...], show: Show) -> None:
        self._group, self._lists, self._number = group, lists, group.traffic.begun
        self._others = [rank for rank in lists.near if rank != group.rank]
        hide = show(tensors) if self._others else lambda: None
        self.own = Shown(tuple(tensor.detach() for tensor in tensors), lists, group.traffic, len(self._others), hide)
        if self._others:
            group.board[self._key(group.rank)] = self.own

    def _key(self, rank: int) -> tuple[int, int]:
        return self._number, self._group.first + rank

    def shown(self, rank: int) -> Shown:
        """What another rank shows, once it does."""
        key = self._key(rank)
        self._group.until(lambda: key in self._group.board, "for what a rank of this process shows")
        shown: Shown = self._group.board[key]
        return shown

    def wait_for(self, now: Arrival) -> None:
        """Wait until all owners of a piece's rows show them."""
        for run in now.runs:
            self.shown(run.peer)

    def wait_for_turn(self, now: Arrival) -> None:
        """Wait until it is this rank's turn to add gradients to those of a piece's owners."""
        for run in now.runs:
            owner = run.peer
            turn = (self._group.rank - owner) % self._group.world
            shown = self.shown(owner)
            self._group.until(lambda shown=shown, turn=turn: shown.turn == turn, "for its turn to add gradients")  # type: ignore[misc]

    def wait_for_all(self, turn: int) -> None:
        """Wait until all gradients for this rank that come before those of the rank ``turn`` ranks after it were added."""
        if self._others:
            self._group.until(lambda: self.own.turn >= turn, "for gradients from ranks of this process")

    def leave(self, *, waits: bool = True) -> None:
        """This rank has read all; wait until all others have, or let the last of them put away what this one shows."""
        for rank in self._others:
            shown = self.shown(rank)
            shown.readers -= 1
            if not shown.readers:
                del self._group.board[self._key(rank)]
                shown.hide()
        if self._others and waits:
            self._group.until(lambda: self.own.readers == 0, "until all ranks of this process have read")

    def rows_of(self, now: Arrival) -> tuple[list[Shown], list[slice], Tensor]:
        """What the owners of a piece's rows show, for each of its runs, where their rows lie in the piece, and int32, which of
        their rows these are.
        """
        shown: list[Shown] = [self._group.board[self._key(run.peer)] for run in now.runs]
        if now.piece not in self._lists.near_rows:
            me = self._group.rank
            parts = [owner.lists.send_rows[me][run.first : run.last] for owner, run in zip(shown, now.runs, strict=True)]
            self._lists.near_rows[now.piece] = torch.cat(parts)
        return shown, [at for _, at in now.places()], self._lists.near_rows[now.piece]
