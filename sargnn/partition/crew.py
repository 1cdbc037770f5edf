"""What is done part by part, by this process or by several.

    python -m sargnn.partition.crew JSON

A job (``JOBS``) is opened with settings and then called for each part; it leaves files. Processes of a crew are programs of
their own, not forks, which threads of a process do not survive; they map the same files. Each reads the numbers of parts from
its input, one after the other, and answers in lines of JSON. They are in a session of their own, so that a terminal's Ctrl-C
reaches only this process, which ends them; and they end with it.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from sargnn import errors
from sargnn.errors import SargnnError, StoreError
from sargnn.interop.kaminpar import end_with_parent, reason_of_end
from sargnn.partition.sort_edges import Report
from sargnn.resolve import load_attribute
from sargnn.steps import step

JOBS = {"order": "sargnn.partition.stages:open_order", "write": "sargnn.partition.stages:open_write"}
Job = Callable[[int, Report], None]
_WORTH_EDGES = 1 << 23
"""A process more for each: fewer are done before it has started."""
_SAID, _CLOSE_S = 400, 10.0


@dataclass(frozen=True)
class Crew:
    """How many processes there may be, what they may take together, and descriptors that they inherit."""

    most: int
    buffer_bytes: int
    descriptors: Sequence[int] = ()

    def size(self, parts: int, edges: int, one_bytes: float, free_bytes: int) -> int:
        """As many processes as it is worth and as there is memory for, ``one_bytes`` each, and one in any case."""
        fit = int(min(self.buffer_bytes, free_bytes) // max(1.0, one_bytes))
        return max(1, min(self.most, parts, fit, 1 + edges // _WORTH_EDGES))


class Tally:
    """Tells how much of a step is done, whoever does it."""

    def __init__(self, text: str, sizes: Mapping[int, int], before: int) -> None:
        self._text, self._sizes, self._finished = text, sizes, before
        self._total = before + sum(sizes.values())
        self._begun: dict[int, int] = {}
        self._tell()

    def add(self, p: int, amount: int) -> None:
        self._begun[p] = min(self._sizes[p], self._begun.get(p, 0) + amount)
        self._tell()

    def finish(self, p: int) -> None:
        self._begun.pop(p, None)
        self._finished += self._sizes[p]
        self._tell()

    def _tell(self) -> None:
        step(self._text, self._finished + sum(self._begun.values()), self._total)


def do_parts(
    job: str, settings: dict[str, Any], text: str, sizes: Mapping[int, int], before: int, processes: int, crew: Crew
) -> None:
    """Do a job for some parts, the largest first.

    Args:
        settings: of the job, JSON-able.
        text: what is done, for ``steps``.
        sizes: of each part, how much there is to do.
        before: how much of the same was done earlier.

    Raises:
        StoreError: a process ended; what was finished stays.
        SargnnError, OSError: what the job raises.
    """
    tally = Tally(text, sizes, before)
    order = sorted(sizes, key=lambda p: (-sizes[p], p))
    if not order:
        return
    if processes == 1:
        work: Job = load_attribute(JOBS[job])(settings)
        for p in order:
            work(p, partial(tally.add, p))
            tally.finish(p)
        return
    with tempfile.TemporaryFile("w+") as said, selectors.DefaultSelector() as ready:
        waiting, members = iter(order), []
        try:
            for _ in range(processes):
                members.append(_Member(job, settings, crew, said.fileno()))
                ready.register(members[-1].answers, selectors.EVENT_READ, members[-1])
                members[-1].give(next(waiting))
            left = len(order)
            while left:
                for key, _ in ready.select():
                    member: _Member = key.data
                    for answer in member.read():
                        if "more" in answer:
                            tally.add(member.part, answer["more"])
                        elif "done" in answer:
                            tally.finish(member.part)
                            left -= 1
                            if (following := next(waiting, None)) is not None:
                                member.give(following)
                        else:
                            raise _error_of(answer)
                    if member.over:
                        if not member.idle:
                            raise _ended(text, member.wait(), said)
                        ready.unregister(member.answers)
        finally:
            for member in members:
                member.end()


class _Member:
    """One process of a crew: the part that it was given last, whether its answers are over, and whether nothing is due."""

    def __init__(self, job: str, settings: dict[str, Any], crew: Crew, errors_to: int) -> None:
        wanted = {"job": job, "settings": settings, "parent": os.getpid()}
        command = [sys.executable, "-m", "sargnn.partition.crew", json.dumps(wanted)]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors_to,
            start_new_session=True,
            pass_fds=tuple(crew.descriptors),
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._orders, self.answers = self._process.stdin, self._process.stdout
        self.part, self.over, self.idle = -1, False, True
        self._half = b""

    def give(self, p: int) -> None:
        self.part, self.idle = p, False
        with suppress(BrokenPipeError):  # it has ended, which shows where its answers are read
            self._orders.write(f"{p}\n".encode())
            self._orders.flush()

    def read(self) -> Iterator[dict[str, Any]]:
        """The answers that are there, at least a piece of one."""
        received = os.read(self.answers.fileno(), 1 << 16)
        self.over = not received
        *lines, self._half = (self._half + received).split(b"\n")
        for line in lines:
            answer = json.loads(line)
            self.idle = self.idle or "done" in answer
            yield answer

    def wait(self) -> int:
        """Its exit code, once its answers have ended."""
        with suppress(subprocess.TimeoutExpired):
            return self._process.wait(_CLOSE_S)
        return -signal.SIGKILL

    def end(self) -> None:
        """End it, with what it has started."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self.answers.close()
        with suppress(BrokenPipeError):
            self._orders.close()


def _ended(text: str, code: int, said: Any) -> StoreError:
    said.seek(0)
    return StoreError(
        f"A process has failed while {text}.",
        given=reason_of_end(code, said.read()[-_SAID:]),
        hint="the same command goes on where it was; a smaller prepare.buffer has fewer processes, more workers smaller parts",
    )


def _error_of(answer: dict[str, Any]) -> Exception:
    kind, text = answer["error"], answer["text"]
    if kind == OSError.__name__:
        return OSError(text) if answer["number"] is None else OSError(answer["number"], text)
    error_class = getattr(errors, kind, SargnnError)
    return error_class(text)


def main(words: Sequence[str]) -> int:
    wanted = json.loads(words[0])
    end_with_parent(wanted["parent"])
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever else is printed is no answer

    def answer(**content: Any) -> None:
        print(json.dumps(content), file=answers, flush=True)

    try:
        work: Job = load_attribute(JOBS[wanted["job"]])(wanted["settings"])
        for line in sys.stdin:
            work(int(line), lambda amount: answer(more=amount))
            answer(done=int(line))
    except SargnnError as error:
        answer(error=type(error).__name__, text=str(error))
        return 1
    except OSError as error:
        answer(error=OSError.__name__, text=error.strerror or str(error), number=error.errno)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
