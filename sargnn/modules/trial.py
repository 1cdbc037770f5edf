"""What a function does to rows, found by running it once on small tables: never by its name.

| | for any subset and order s of the rows, and for rows that are those of a and of b |
|---|---|
| row by row | f(x[s]) = f(x)[s], of k elements for each row along one dimension |
| others | f(x) has the rows of f(x[a]) and of f(x[b]) in some order: a condition lets some through, tables are joined |
| a sum | f(x) - f(0 rows) = f(x[a]) - f(0 rows) + f(x[b]) - f(0 rows), without the rows' dimension |
| a mean | N f(x) = A f(x[a]) + B f(x[b]), N = A + B, without the rows' dimension |
| alike | f depends on no number of x and on no number of rows |
| random | f(x) differs with the state of the generator |
| other | none of these: who calls needs a rule of its own, or refuses |

Tables have random numbers, in one round with an extreme row, in another with a NaN or an index that is often left out; what is
no table, such as a weight, has random numbers, too, so that one that begins with zeros decides nothing. Whole numbers that are
larger than a table are tried as small ones as well: ``x[:100]`` would take all rows of a small table. A verdict is kept by the
function, the shapes, types and constants of its arguments, without how many rows a worker has: all workers come to the same.

Letters: P rows of a trial's table, N rows of a worker.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from sargnn.modules.trial_round import FILLINGS, LAST_FILLINGS, SIZES, Fails, Round
from sargnn.modules.verdict import Describe, Groups, NotTried, Number, Out, Table, Verdict, describe_tensor, described, walk

_SMALL = 6
"""Whole numbers above it could be a number of rows that a trial's tables have not."""
_EMPTY = {
    "empty": "zeros",
    "empty_like": "zeros_like",
    "new_empty": "new_zeros",
    "empty_strided": "zeros",
    "new_empty_strided": "new_zeros",
}
"""What has any numbers, and what has zeros in their place."""
_NUMBERED = "it takes some rows by their number"
_VERDICTS: dict[Any, Verdict] = {}


def verdict_of(
    func: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    groups: Groups,
    describe: Describe = describe_tensor,
    *,
    writes: bool = False,
    rule: Callable[..., Any] | None = None,
    keep: bool = True,
) -> Verdict:
    """What a call does to rows.

    Args:
        func: the function.
        args, kwargs: of the call.
        groups: are numbered here.
        describe: tells which arguments have rows.
        writes: it writes to its first argument, or to ``out``, whose numbers afterwards are the result.
        keep: the verdict, for the next call of this function.
        rule: how ``func`` is computed over several workers; a call that is ``other`` and has no such rule, or one that gives
            other numbers than ``func`` does on one worker, says ``why``.
    """
    try:
        key = (func, rule, writes, described(args, groups, describe), described(kwargs, groups, describe))
        verdict = _VERDICTS.get(key)
    except NotTried as error:
        return Verdict((), why=str(error))
    except TypeError:
        return Verdict((), why="an argument that nobody can compare")
    if verdict is None:
        trial = _Trial(func, args, kwargs, key[3:], writes, rule)
        verdict = trial.verdict()
        if trial.has_counts and all(out.dim == -1 for out in verdict.outs):  # no size is made of them
            totals = replace(trial.with_totals().verdict(), by_totals=True)
            verdict = totals if totals.is_known else verdict
        if keep:
            _VERDICTS[key] = verdict
    return verdict


class _Trial:
    """One call's trial.

    Args:
        described: its arguments and keywords, as ``described`` gives them.
    """

    def __init__(
        self, func: Any, args: Any, kwargs: Any, described: tuple[Any, Any], writes: bool, rule: Any, *, totals: bool = False
    ) -> None:
        self.func, self.args, self.kwargs, self.writes, self.rule, self.totals = func, args, kwargs, writes, rule, totals
        name = getattr(func, "__name__", "")
        if name in _EMPTY:
            self.func = getattr(torch, _EMPTY[name], None) or getattr(Tensor, _EMPTY[name])
        self.described = described
        self.tables: list[Table] = []
        self.has_counts, self.largest = False, 0
        self._look(described)
        self.groups = 1 + max([table.group for table in self.tables], default=-1)

    def _look(self, value: Any) -> None:
        if isinstance(value, Table):
            self.tables.append(value)
        elif isinstance(value, Number):
            self.has_counts = True
        elif isinstance(value, tuple):
            if value[:1] not in (("tensor",), (float,)):
                for item in value:
                    self._look(item)
        elif type(value) is int:
            self.largest = max(self.largest, abs(value))

    def with_totals(self) -> _Trial:
        """The same where counts are numbers like others."""
        return _Trial(self.func, self.args, self.kwargs, self.described, self.writes, self.rule, totals=True)

    def verdict(self) -> Verdict:
        """See the module's text."""
        groups = 1 + max(
            [table.group for table in self.tables]
            + [number.group for number in walk(self.described) if isinstance(number, Number)],
            default=-1,
        )
        if groups > len(SIZES):
            return Verdict((), why="rows of more sets than can be told apart")
        self.groups = groups
        with torch.random.fork_rng(devices=[]), torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            verdict, why = None, ""
            for filling in FILLINGS:
                try:
                    judged = Round(self, filling).verdict()
                except Fails as error:
                    why = why or str(error)
                    continue
                verdict = judged if verdict is None else _both(verdict, judged)
            for filling in LAST_FILLINGS if verdict is None else ():
                with contextlib.suppress(Fails):
                    judged = Round(self, filling).verdict()
                    verdict = judged if verdict is None else _both(verdict, judged)
            if verdict is None:
                return Verdict((), why=why or "no round that tells anything")
            if self.largest > _SMALL and verdict.is_known and not self.totals:
                with contextlib.suppress(Fails):
                    small = Round(self, FILLINGS[0], most=2).verdict()
                    if [out.kind for out in small.outs] != [out.kind for out in verdict.outs]:
                        return replace(
                            small, outs=tuple(out._replace(kind="other") for out in small.outs), why=small.why or _NUMBERED
                        )
        return verdict


def _both(first: Verdict, other: Verdict) -> Verdict:
    """What holds in two rounds: the weaker of both."""
    if len(first.outs) != len(other.outs):
        return Verdict((), why="its results are not as many for all rows")
    outs = tuple(a if a == b else _weaker(a, b) for a, b in zip(first.outs, other.outs, strict=True))
    return Verdict(
        outs,
        first.is_random or other.is_random,
        first.starts and other.starts,
        first.returns_numbers or other.returns_numbers,
        "" if first.is_random or other.is_random else first.why or other.why,
        views=first.views or other.views,
        writes=first.writes or other.writes,
        nest=first.nest,
    )


def _weaker(a: Out, b: Out) -> Out:
    if {a.kind, b.kind} == {"rows", "others"} and (a.group, a.dim) == (b.group, b.dim):
        return a if a.kind == "others" else b
    if "alike" in (a.kind, b.kind) and a.dim == b.dim == -1 and a.shape == b.shape:  # all numbers were equal by chance
        return a if b.kind == "alike" else b
    return a._replace(kind="other") if a.dim == b.dim else Out("other")
