"""P ranks as threads of one process, of which exactly one runs at a time.

A rank keeps the turn until it waits: for a message or in a collective. Then it hands the turn to a rank that can go on. So
ranks need no locks, share one team of compute threads, and a message is one copy. Where nobody can go on, that is a deadlock,
and it is known at once. On a GPU all ranks give their work to one stream, which does it in the order of their turns: what one
has given there before it hands the turn on comes before all that others give, so nobody waits for the GPU.

A message is known by who sends it, who receives it and its tag; those of one kind arrive in the order in which they were
posted. It is copied when both ends have been posted, and both are done then.

With several processes of several ranks each they take turns in their process, and reach ranks of others over gloo.

Letters: P ranks, R processes, P / R ranks in each: process r has [r P / R, (r + 1) P / R).
"""

from __future__ import annotations

import sys
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from sargnn.comm.distributed import DistributedGroup
from sargnn.comm.group import Group, Leave, Traffic, Work
from sargnn.errors import CommError
from sargnn.profile import EXCHANGE_WAIT, Profile

T = TypeVar("T")
_SIGNALS_S = 0.2
_HERE = str(Path(__file__).parent)


class _Line(NamedTuple):
    file: str
    number: int
    function: str

    def __str__(self) -> str:
        path = Path(self.file)
        return f"{path.parent.name}/{path.name}:{self.number} ({self.function})"


class DeadlockError(CommError):
    """All ranks wait for each other."""


@dataclass(eq=False)
class End:
    """One end of a message. ``other``: the other end, from its post until this one has been waited for."""

    rank: int
    peer: int
    tag: int
    sends: bool
    tensor: Tensor
    place: _Line
    other: End | None = None

    def wait(self) -> None:
        raise AssertionError("a group waits for its works")

    def __str__(self) -> str:
        kind = f"{list(self.tensor.shape)} {str(self.tensor.dtype).removeprefix('torch.')}"
        if self.sends:
            return f"rank {self.rank} sends {kind} to rank {self.peer}, tag {self.tag}, at {self.place}"
        return f"rank {self.rank} receives {kind} from rank {self.peer}, tag {self.tag}, at {self.place}"


@dataclass(eq=False)
class _Pause:
    """Why a rank waits: until ``ready()``; ``doing`` says what for, if anyone asks."""

    ready: Callable[[], bool]
    doing: Callable[[], str]


@dataclass(eq=False)
class _Meeting:
    """What each rank brings to one gather, and how many have taken all."""

    parts: dict[int, Tensor]
    complete: bool = False
    taken: int = 0


class _Ended(BaseException):
    """Ends a rank's thread after another one has failed; not an ``Exception``, so that nothing takes it for one."""


class Turns:
    """Runs a function on P ranks, in turns.

    Args:
        world: P.
        seed: the next rank is drawn from it at every wait, also where the one that waits could go on; None: who waits goes on
            while it can, and then the next one in the order of ranks.
        near: whether ranks read each other's rows where they lie, instead of sending them.
        first: the number of the first of the P ranks, where other processes have further ones.
    """

    def __init__(self, world: int, seed: int | None = None, *, near: bool = False, first: int = 0) -> None:
        self.ranks, self.near = range(first, first + world), near
        self.board: dict[Any, Any] = {}
        self._drawn = None if seed is None else Random(seed)
        self._batons = {rank: _taken_lock() for rank in self.ranks}  # each is held but while it is handed over
        self._all_ended = _taken_lock()
        self._threads: list[threading.Thread] = []
        self._paused: dict[int, _Pause] = {}
        self._answers: dict[int, Any] = {}
        self._failure: BaseException | None = None
        self._posted: dict[tuple[int, int, int, bool], deque[End]] = defaultdict(deque)
        self._meetings: dict[int, _Meeting] = {}
        self._met = dict.fromkeys(self.ranks, 0)
        self._put_away: dict[int, list[Leave]] = {rank: [] for rank in self.ranks}
        self._changing = threading.Lock()  # held while it is decided who has the turn
        self._away: set[int] = set()
        self._nobody = False  # no rank has the turn

    def run(self, work: Callable[[Group], T]) -> list[T]:
        """``work(group)`` on every rank; the results in rank order. An instance runs once.

        Raises:
            DeadlockError: all ranks wait for each other, or for one that has ended.
            CommError: the two ends of a message differ in size, ranks meet in different collectives, or a message is posted
                at one end only.
            BaseException: whatever ``work`` raises; the other ranks are ended then.
        """
        assert not self._threads, "a group of turns runs once"
        for rank in self.ranks:
            self._paused[rank] = _Pause(lambda: True, lambda: "starting")
            thread = threading.Thread(target=self._live, args=(rank, work), name=f"rank {rank}", daemon=True)
            self._threads.append(thread)
            thread.start()
        self._hand_over(self.ranks[-1])
        try:
            while not self._all_ended.acquire(timeout=_SIGNALS_S):  # the main thread hears signals in between
                pass
        except BaseException as error:  # an interrupt of the main thread: the ranks end at their next wait
            self._failure = self._failure or error
            raise
        if self._failure is not None:
            raise self._failure
        for thread in self._threads:
            thread.join()
        self.check_ends()
        return [self._answers[rank] for rank in self.ranks]

    def check_ends(self) -> None:
        """Called when all ranks have ended. Raises ``CommError`` for a message that was posted at one end only."""
        left = [end for ends in self._posted.values() for end in ends]
        if left:
            raise CommError(f"{len(left)} messages were posted at one end only: {'; '.join(map(str, left[:5]))}")

    def posted(self, end: End) -> None:
        """Called when one end of a message is posted."""

    def met(self, send: End, receive: End) -> None:
        """Called when both ends of a message are posted: copies it."""
        receive.tensor.view(-1).copy_(send.tensor.view(-1))

    def taken(self, end: End) -> None:
        """Called when the rank that posted an end has waited for it."""

    def post(self, end: End) -> End:
        self.posted(end)
        others = self._posted[end.peer, end.rank, end.tag, not end.sends]
        if not others:
            self._posted[end.rank, end.peer, end.tag, end.sends].append(end)
            return end
        other = others.popleft()
        end.other, other.other = other, end
        send, receive = (end, other) if end.sends else (other, end)
        if (send.tensor.numel(), send.tensor.dtype) != (receive.tensor.numel(), receive.tensor.dtype):
            raise CommError(f"The two ends of a message differ: {send}; {receive}.")
        self.met(send, receive)
        return end

    def finish(self, end: End, doing: str) -> None:
        """Wait until the other end of a message is posted."""
        self.pause(end.rank, lambda: end.other is not None, lambda: f"{doing}: {end}")
        self.taken(end)
        end.other, end.tensor = None, torch.empty(0)  # the other end, which is still to be waited for, holds this one

    def gather(self, rank: int, tensor: Tensor) -> list[Tensor]:
        """In rank order; each rank gets copies."""
        number = self._met[rank]
        self._met[rank] += 1
        meeting = self._meetings.setdefault(number, _Meeting({}))
        for other, part in meeting.parts.items():
            if (part.shape, part.dtype) != (tensor.shape, tensor.dtype):
                raise CommError(f"Ranks gather different tensors: {_kind(rank, tensor)}; {_kind(other, part)}.")
        meeting.parts[rank] = tensor.detach().clone()
        if len(meeting.parts) == len(self.ranks):
            self.complete(rank, meeting.parts)
            meeting.complete = True
        self.pause(rank, lambda: meeting.complete, lambda: f"in a collective, {_kind(rank, tensor)}")
        parts = [part.clone() for _, part in sorted(meeting.parts.items())]
        meeting.taken += 1
        if meeting.taken == len(self.ranks):
            del self._meetings[number]
        return parts

    def complete(self, rank: int, parts: dict[int, Tensor]) -> None:
        """Called by the last rank of a gather: adds what ranks of other processes bring."""

    def pause(self, rank: int, ready: Callable[[], bool], doing: Callable[[], str]) -> None:
        """Hand the turn over, and return when ``ready()`` and it is this rank's turn again."""
        if self._drawn is None and ready():
            return
        self._paused[rank] = _Pause(ready, doing)
        taken_up = [leave() for leave in reversed(self._put_away[rank])]
        self._hand_over(rank)
        self._take(rank, taken_up)

    def outside(self, rank: int, wait: Callable[[], None]) -> None:
        """``wait()`` for what no rank of this process brings about; others run meanwhile."""
        taken_up = [leave() for leave in reversed(self._put_away[rank])]
        self._away.add(rank)
        self._hand_over(rank)
        try:
            wait()
        finally:
            with self._changing:
                self._away.discard(rank)
                self._paused[rank] = _Pause(lambda: True, lambda: "coming back")
                if self._nobody:
                    self._nobody = False
                    self._batons[rank].release()
            self._take(rank, taken_up)

    def _take(self, rank: int, taken_up: list[Callable[[], None]]) -> None:
        self._batons[rank].acquire()
        del self._paused[rank]  # first, for what follows may fail
        for take_up in reversed(taken_up):
            take_up()
        if self._failure is not None:
            raise _Ended

    def _hand_over(self, rank: int) -> None:
        """Give the turn to a rank that can go on; to nobody while those that could wait for other processes."""
        with self._changing:
            chosen = self._next(rank)
            if chosen is not None:
                self._batons[chosen].release()
            self._nobody = chosen is None

    @contextmanager
    def putting_away(self, rank: int, leave: Leave) -> Iterator[None]:
        self._put_away[rank].append(leave)
        try:
            yield
        finally:
            self._put_away[rank].remove(leave)

    def _next(self, rank: int) -> int | None:
        """Who gets the turn; if nobody can go on, all are ended, one after the other."""
        if self._failure is None:
            ready = [other for other, pause in sorted(self._paused.items()) if pause.ready()]
            if ready:
                if self._drawn is not None:
                    return self._drawn.choice(ready)
                return next((other for other in ready if other > rank), ready[0])
            if self._away:
                return None
            self._failure = DeadlockError(self._deadlock())
        return next(iter(self._paused))

    def _live(self, rank: int, work: Callable[[Group], T]) -> None:
        """A rank's thread."""
        self._batons[rank].acquire()
        torch.autograd.set_multithreading_enabled(False)  # backward stays in this thread
        del self._paused[rank]
        if self._failure is None:
            try:
                self._answers[rank] = work(self.group(rank))
            except _Ended:
                self._paused.pop(rank, None)
            except BaseException as error:
                self._failure = self._failure or error
        if self._paused or (self._away and self._failure is None):
            self._hand_over(rank)
        else:  # a rank that is away after a failure is not waited for
            self._all_ended.release()

    def group(self, rank: int) -> Group:
        return TurnsGroup(self, rank, len(self.ranks))

    def _deadlock(self) -> str:
        """What each rank waits for, and where."""
        frames = sys._current_frames()
        lines = []
        for rank, thread in zip(self.ranks, self._threads, strict=True):
            if rank in self._paused:
                frame = frames.get(thread.ident or 0)
                lines.append(
                    f"rank {rank} waits {self._paused[rank].doing()}, called at {' < '.join(map(str, _callers(frame, 3)))}"
                )
            else:
                lines.append(f"rank {rank} has ended")
        return "All ranks wait for each other:\n" + "\n".join(lines)


class TurnsGroup(Group):
    def __init__(self, turns: Turns, rank: int, world: int, *given: Any, **placed: Any) -> None:
        self._turns, self.board = turns, turns.board
        super().__init__(rank, world, *given, **placed)
        if turns.near:
            first, last = turns.ranks.start - self._first, turns.ranks.stop - self._first
            self.near = range(max(0, first), min(world, last))

    def _made(self, rank: int, world: int, *given: Any, **placed: Any) -> Group:
        return TurnsGroup(self._turns, rank, world, *given, **placed)

    def putting_away(self, leave: Leave) -> AbstractContextManager[None]:
        return self._turns.putting_away(self._first + self.rank, leave)

    def until(self, ready: Callable[[], bool], doing: str) -> None:
        if not ready():  # a rank that may go on holds memory that all share
            with self.profile.span(EXCHANGE_WAIT):
                self._turns.pause(self._first + self.rank, ready, lambda: doing)

    def _post_send(self, tensor: Tensor, peer: int, tag: int) -> Work:
        return self._post(tensor, peer, tag, sends=True)

    def _post_receive(self, tensor: Tensor, peer: int, tag: int) -> Work:
        return self._post(tensor, peer, tag, sends=False)

    def _waited(self, peer: int, started: float) -> float:
        """Where a rank waits others compute."""
        return super()._waited(peer, started) if self._first + peer not in self._turns.ranks else 0.0

    def _post(self, tensor: Tensor, peer: int, tag: int, *, sends: bool) -> End:
        place = next(_callers(sys._getframe(), 1))
        return self._turns.post(End(self._first + self.rank, self._first + peer, tag, sends, tensor.detach(), place))

    def _finish(self, work: Any, peer: int, doing: str) -> None:
        self._turns.finish(work, doing)

    def _gather(self, tensor: Tensor) -> list[Tensor]:
        if self.servers > 1 or not self._is_whole:
            return super()._gather(tensor)
        return self._turns.gather(self.rank, tensor)


def _taken_lock() -> threading.Lock:
    lock = threading.Lock()
    lock.acquire()
    return lock


def _kind(rank: int, tensor: Tensor) -> str:
    return f"rank {rank} brings {list(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}"


def _callers(frame: Any, most: int) -> Iterator[_Line]:
    """Where a call came from, innermost first, outside of this folder."""
    while frame is not None and most:
        code = frame.f_code
        if not code.co_filename.startswith((_HERE, threading.__file__)):
            yield _Line(code.co_filename, frame.f_lineno, code.co_name)
            most -= 1
        frame = frame.f_back


class Parts(Turns):
    """The ranks of this process. ``processes`` are the ranks of its group; ``traffics`` gets those of the ranks."""

    def __init__(
        self,
        processes: Group,
        world: int,
        *,
        servers: int = 1,
        profiles: bool = False,
        traffics: list[Traffic] | None = None,
    ) -> None:
        count = world // processes.world
        super().__init__(count, near=True, first=processes.rank * count)
        self.processes, self.world, self.servers, self.profiles = processes, world, servers, profiles
        self.traffics = [] if traffics is None else traffics

    def group(self, rank: int) -> Group:
        self.traffics.append(Traffic())
        return PartsGroup(self, rank, self.world, self.traffics[-1], Profile(self.profiles), servers=self.servers)

    def complete(self, rank: int, parts: dict[int, Tensor]) -> None:
        if self.processes.world > 1:
            own = torch.stack([parts[other] for other in self.ranks])
            every: list[Tensor] = []
            self.outside(rank, lambda: every.extend(self.processes.gather(own)))
            parts.update(enumerate(torch.cat(every)))


class PartsGroup(TurnsGroup):
    _turns: Parts

    def __init__(self, turns: Parts, rank: int, world: int, *given: Any, **placed: Any) -> None:
        super().__init__(turns, rank, world, *given, **placed)
        of_process = len(turns.ranks)
        if isinstance(turns.processes, DistributedGroup) and turns.processes.hosts:
            self.hosts = tuple(turns.processes.hosts[(self._first + r) // of_process] for r in range(world))

    def _made(self, rank: int, world: int, *given: Any, **placed: Any) -> Group:
        return PartsGroup(self._turns, rank, world, *given, **placed)

    def _post_send(self, tensor: Tensor, peer: int, tag: int) -> Work:
        if self._is_here(peer):
            return super()._post_send(tensor, peer, tag)
        return self._turns.processes._post_send(tensor.detach(), *self._place(self.rank, peer, tag))

    def _post_receive(self, tensor: Tensor, peer: int, tag: int) -> Work:
        if self._is_here(peer):
            return super()._post_receive(tensor, peer, tag)
        _, tag = self._place(peer, self.rank, tag)
        return self._turns.processes._post_receive(tensor.detach(), (self._first + peer) // len(self._turns.ranks), tag)

    def _finish(self, work: Any, peer: int, doing: str) -> None:
        if isinstance(work, End):
            super()._finish(work, peer, doing)
            return
        process = (self._first + peer) // len(self._turns.ranks)
        self._turns.outside(self._first + self.rank, lambda: self._turns.processes._finish(work, process, doing))

    def _is_here(self, peer: int) -> bool:
        return self._first + peer in self._turns.ranks

    def _place(self, sender: int, receiver: int, tag: int) -> tuple[int, int]:
        """The receiver's process, and a tag that no other pair of ranks of the two processes has."""
        of_process = len(self._turns.ranks)
        process, to = divmod(self._first + receiver, of_process)
        return process, (tag * of_process + (self._first + sender) % of_process) * of_process + to
