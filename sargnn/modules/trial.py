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
import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from sargnn.modules.call import (
    ODD,
    PAIRS,
    Describe,
    Groups,
    Kind,
    NotTried,
    Number,
    Out,
    Table,
    Verdict,
    describe_tensor,
    described,
    flatten,
    is_close,
    memory_of,
    same_value,
    told_apart,
    walk,
)
from sargnn.modules.row_folds import Over, OverParts, Waits
from sargnn.modules.tag import Count

_SMALL = 6
"""Whole numbers above it could be a number of rows that a trial's tables have not."""
_EMPTY = "empty empty_like new_empty empty_strided new_empty_strided".split()
"""What has any numbers: zeros are tried in their place."""
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
    """One call's trial, of its arguments and keywords as ``described`` gives them."""

    def __init__(
        self, func: Any, args: Any, kwargs: Any, described: tuple[Any, Any], writes: bool, rule: Any, *, totals: bool = False
    ) -> None:
        self.func, self.args, self.kwargs, self.writes, self.rule, self.totals = func, args, kwargs, writes, rule, totals
        name = getattr(func, "__name__", "")
        if name in _EMPTY:
            name = name.replace("empty", "zeros").removesuffix("_strided")
            self.func = getattr(torch, name, None) or getattr(Tensor, name)
        self.described = described
        parts = list(walk(described))
        self.tables = [part for part in parts if isinstance(part, Table)]
        self.has_counts = any(isinstance(part, Number) for part in parts)
        self.largest = max([abs(part) for part in parts if type(part) is int], default=0)
        self.groups = 1 + max([part.group for part in parts if isinstance(part, (Table, Number))], default=-1)

    def with_totals(self) -> _Trial:
        """The same where counts are numbers like others."""
        return _Trial(self.func, self.args, self.kwargs, self.described, self.writes, self.rule, totals=True)

    def verdict(self) -> Verdict:
        if self.groups > len(SIZES):
            return Verdict((), why="rows of more sets than can be told apart")
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


SIZES = ((13, 7), (17, 11), (23, 19), (31, 29), (41, 37), (53, 43), (61, 59), (71, 67))
"""Rows of the whole tables and of the picked ones, for each set of rows in a call: all proportions differ."""
_MOST_COPIED = 1 << 22


class Fails(Exception):
    """A round of a trial that the function does not take."""


class Filling(NamedTuple):
    """How a round fills tables: of fractions, of whole numbers, and whether a NaN or -100 is among them."""

    floats: str
    ints: str
    special: bool = False


FILLINGS = (
    Filling("normal", "two"),
    Filling("between", "first"),
    Filling("extreme", "large"),
    Filling("signs", "two"),
    Filling("normal", "two", True),
)

LAST_FILLINGS = Filling("normal", "zero"), Filling("between", "zero")
"""Where whole numbers are numbers of rows of a table that has one."""


class Round:
    """One round: tables of P rows, parts of them, and what the function gives for these."""

    def __init__(self, trial: _Trial, filling: Filling, most: int | None = None) -> None:
        self.trial, self.filling, self.most = trial, filling, most
        self.generator = torch.Generator().manual_seed(1234567 + len(filling.floats) + 10 * filling.special)
        self.whole = {group: SIZES[group][0] for group in range(trial.groups)}
        self.picked, self.rest = {}, {}
        for group in range(trial.groups):
            count, part = SIZES[group]
            order = torch.randperm(count - 1, generator=self.generator) + 1  # the first row, an extreme one, is in the rest
            self.picked[group] = order[:part]
            self.rest[group] = torch.cat([order[part:], torch.zeros(1, dtype=torch.int64)])
        self.filled: dict[int, Tensor] = {}
        self._count = 0
        self._given: list[Tensor] = []

    # What the function gets.

    def _fill(self, table: Table) -> Tensor:
        """[.., before, P, parts, ..] with random numbers; in a computer's memory, then moved."""
        sizes = list(table.sizes)
        sizes[table.dim : table.dim] = [table.before, self.whole[table.group], table.parts]
        return self._random(sizes, table.dtype, table.dim + 1).to(table.device)

    def _random(self, sizes: Sequence[int], dtype: torch.dtype, dim: int | None) -> Tensor:
        filling, generator = self.filling, self.generator
        if dtype.is_complex:
            return torch.randn(sizes, generator=generator, dtype=dtype)
        if dtype.is_floating_point:
            wide = torch.float64 if dtype == torch.float64 else torch.float32
            values = torch.rand(sizes, generator=generator, dtype=wide) * 0.8 + 0.1
            if filling.floats != "between":
                values = torch.randn(sizes, generator=generator, dtype=wide)
            if filling.floats == "signs":
                values = values.mul_(1.5).round_().clamp_(-1, 1)
            if dim is not None and values.numel():
                if filling.floats == "extreme":
                    values.narrow(dim, 0, 1).mul_(50)
                if filling.special:
                    values.narrow(dim, values.shape[dim] - 1, 1).fill_(torch.nan)
            return values.to(dtype)
        if dim is None:
            return torch.zeros(list(sizes), dtype=dtype)
        if dtype == torch.bool:
            if filling.ints == "first":
                values = torch.zeros(list(sizes), dtype=dtype)
                values.narrow(dim, 0, 1).fill_(True)
                return values
            return torch.rand(list(sizes), generator=generator) < (0.5 if filling.ints == "two" else 0.9)
        values = torch.randint(2, list(sizes), generator=generator, dtype=torch.int64)
        if filling.ints == "zero":
            values.zero_()
        elif filling.ints == "first":
            values.zero_().narrow(dim, 0, 1).fill_(1)
        elif filling.ints == "large":
            values = torch.randint(3, list(sizes), generator=generator, dtype=torch.int64)
            values.narrow(dim, 0, 1).fill_(4)
        if filling.special and values.numel() and dtype != torch.uint8:
            values.narrow(dim, values.shape[dim] - 1, 1).fill_(-100)
        return values.to(dtype)

    def _argument(self, value: Any, described: Any, rows: dict[int, Tensor] | None) -> Any:
        """An argument for the rows ``rows`` of each group; None: for all of them."""
        if isinstance(described, Table):
            number = self._count
            self._count += 1
            if number not in self.filled:
                self.filled[number] = self._fill(described)
            whole = self.filled[number]
            dim = described.dim
            if rows is not None:
                whole = whole.index_select(dim + 1, rows[described.group].to(whole.device))
            shape = whole.shape
            self._given.append(whole.reshape(*shape[:dim], math.prod(shape[dim : dim + 3]), *shape[dim + 3 :]).clone())
            return self._given[-1]
        if isinstance(described, Number):
            if self.trial.totals:
                return described.factor * 5 + described.shift
            own = self.whole[described.group] if rows is None else len(rows[described.group])
            return described.factor * own + described.shift
        if isinstance(value, Tensor):
            number = self._count
            self._count += 1
            floats = value.is_floating_point() and value.layout == torch.strided and value.numel() <= _MOST_COPIED
            if floats and number not in self.filled:
                self.filled[number] = self._random(value.shape, value.dtype, None).to(value.device)
            plain = self.filled[number] if floats else value.detach()
            return plain.clone() if self.trial.writes or floats else plain
        if isinstance(value, (tuple, list)):
            items = [self._argument(item, part, rows) for item, part in zip(value, described[1:], strict=True)]
            return items if isinstance(value, list) else tuple(items)
        if isinstance(value, dict):
            return {
                key: self._argument(item, part, rows)
                for (key, item), (_, part) in zip(value.items(), described[1:], strict=True)
            }
        if type(value) is slice:
            ends = (value.start, value.stop, value.step)
            return slice(*(self._argument(end, part, rows) for end, part in zip(ends, described[1:], strict=True)))
        if isinstance(value, Count):
            return value.own
        if self.most is not None and type(value) is int and abs(value) > _SMALL:
            return self.most if value > 0 else -self.most
        return value

    def run(
        self, rows: dict[int, Tensor] | None, func: Callable[..., Any] | None = None, seed: int = 1
    ) -> tuple[list[Any], Any]:
        """The function's results, flat, and what nest they come in. Raises ``Fails``."""
        trial, self._count, self._given = self.trial, 0, []
        args = self._argument(trial.args, trial.described[0], rows)
        kwargs = self._argument(trial.kwargs, trial.described[1], rows)
        torch.default_generator.manual_seed(seed)  # not also that of a GPU, which would note who asked, a stack each time
        try:
            out = (func or trial.func)(*args, **kwargs)
        except Waits:
            raise
        except Exception as error:
            raise Fails(f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}") from None
        if trial.writes:
            out = args[0] if args else next(iter(kwargs.values()))
        leaves: list[Any] = []
        return leaves, flatten(out, leaves)

    # What its results say.

    def verdict(self) -> Verdict:
        trial = self.trial
        whole, nest = self.run(None)
        writes = any(tensor._version for tensor in self._given)
        memory = {memory_of(tensor) for tensor in self._given}
        views = any(isinstance(out, Tensor) and memory_of(out) in memory for out in whole)
        part, nest_of_part = self.run(self.picked, seed=2)
        if nest != nest_of_part:
            return Verdict((), returns_numbers=True, why="it gives another number of results for another number of rows")
        outs, numbers = [], False
        for number, (a, b) in enumerate(zip(whole, part, strict=True)):
            if not isinstance(a, Tensor) or not isinstance(b, Tensor):
                told = isinstance(a, (bool, int, float, complex)) and bool(trial.tables)  # alike in a trial is not alike
                numbers = numbers or told or type(a) is not type(b) or not same_value(a, b)
                continue
            outs.append(self._judge(number, a, b, whole))
        is_random = False
        if numbers or any(out.kind == "other" for out in outs):
            again, _ = self.run(None, seed=3)
            is_random = not all(
                is_close(a, b) if isinstance(a, Tensor) else same_value(a, b) for a, b in zip(whole, again, strict=True)
            )
            if not is_random and not numbers:
                why = self._check_rule(whole, outs)
                return Verdict(tuple(outs), why=why, nest=nest)
        nothing = [self._of_nothing(k) for k, out in enumerate(outs) if out.kind == "sum"]
        starts = all(out is not None and not bool(out.count_nonzero()) for out in nothing)
        constant = not any(type(value) is tuple and value[:1] == ("tensor",) for value in walk(trial.described))
        return Verdict(tuple(outs), is_random, starts and constant, numbers, views=views, writes=writes, nest=nest)

    def _check_rule(self, whole: list[Any], outs: list[Out]) -> str:
        """Whether the rule gives of two parts what the function gives of the whole."""
        if self.trial.rule is None:
            return "its rows are not computed one by one, and no rule says how it is computed over all workers"
        trial = self.trial
        rule, func = trial.rule, trial.func
        over = OverParts(trial.tables[0].dim if trial.tables else None)
        parts = self.picked, self.rest

        def of(rows: dict[int, Tensor]) -> Callable[[Over], list[Any]]:
            def results(over: Over) -> list[Any]:
                return self.run(rows, lambda *args, **kwargs: rule(over, func, *args, **kwargs))[0]

            return results

        try:
            by_rule = over.results([of(rows) for rows in parts])
        except (Fails, RuntimeError):
            return "the rule by which it is computed over all workers does not take these arguments"
        for rows, results in zip(parts, by_rule, strict=True):
            if len(results) != len(whole) or not all(
                b is None or self._is_of(a, b, out, rows) for a, b, out in zip(whole, results, outs, strict=True)
            ):
                return "the rule by which it is computed over all workers gives other numbers for these arguments"
        return ""

    def _is_of(self, a: Any, b: Any, out: Out, rows: dict[int, Tensor]) -> bool:
        """Whether a part's result by a rule is the whole one, or its rows are the part's of these."""
        if not isinstance(a, Tensor):
            return same_value(a, b)
        if out.dim >= 0:
            a = out.rows_at(a, rows[out.group])
        return out.dim != PAIRS and isinstance(b, Tensor) and is_close(a, b)

    def _judge(self, number: int, a: Tensor, b: Tensor, whole: list[Any]) -> Out:
        shape, dtype = tuple(a.shape), a.dtype
        if a.layout != torch.strided or a.dim() != b.dim():
            return Out("other")
        changed = [dim for dim in range(a.dim()) if a.shape[dim] != b.shape[dim]]
        if len(changed) == 1:
            (dim,) = changed
            sizes = (*shape[:dim], *shape[dim + 1 :])
            for group, (count, part) in enumerate(SIZES[: self.trial.groups]):
                times = a.shape[dim] // count
                if times and a.shape[dim] == times * count and b.shape[dim] == times * part:
                    for before in (before for before in range(1, times + 1) if times % before == 0):
                        out = Out("rows", group, dim, times // before, sizes, dtype, before)
                        if is_close(out.rows_at(a, self.picked[group]), b):
                            return out
                    kind: Kind = "others" if self._has_all(number, dim, a, b) else "other"
                    return Out(kind, group, dim, times, sizes, dtype)
            return Out("others", 0, dim, 1, sizes, dtype) if self._has_all(number, dim, a, b) else Out("other", dim=ODD)
        if changed:
            return Out("other", dim=PAIRS if len(changed) > 1 else ODD)
        if self._is_alike(number, a, b):
            return Out("alike", shape=shape, dtype=dtype)
        if self._is_sum(number, a, b):
            return Out("sum", shape=shape, dtype=dtype)
        if self._is_mean(number, a, b):
            return Out("mean", shape=shape, dtype=dtype)
        if (same := next((dim for dim in range(a.dim()) if self._has_all(number, dim, a, b)), None)) is not None:
            return Out("others", 0, same, 1, (*shape[:same], *shape[same + 1 :]), dtype)
        return Out("other", shape=shape, dtype=dtype)

    def _of(self, number: int, rows: dict[int, Tensor]) -> Tensor | None:
        """A tensor of its results for some rows; None where it fails for them, or gives others."""
        try:
            leaves, _ = self.run(rows)
        except Fails:
            return None
        out = leaves[number] if number < len(leaves) else None
        return out if isinstance(out, Tensor) else None

    def _of_nothing(self, number: int) -> Tensor | None:
        return self._of(number, {group: rows[:0] for group, rows in self.picked.items()})

    def _has_all(self, number: int, dim: int, a: Tensor, b: Tensor) -> bool:
        """Whether the rows of the whole result are those of the picked rows' and of the rest's, in any order."""
        rest = self._of(number, self.rest)
        if rest is None or rest.dim() != a.dim() or rest.dtype != a.dtype:
            return False
        shape = list(a.shape)
        shape[dim] -= b.shape[dim]
        return list(rest.shape) == shape and is_close(told_apart(a, dim), told_apart(b, dim) + told_apart(rest, dim))

    def _is_alike(self, number: int, a: Tensor, b: Tensor) -> bool:
        if not is_close(a, b):
            return False
        for filling in (*FILLINGS, Filling("extreme", "first")):
            other = Round(self.trial, filling, self.most)
            other.generator.manual_seed(99)
            out = other._of(number, other.rest)
            if out is not None and not is_close(a, out):
                return False
        return True

    def _is_sum(self, number: int, a: Tensor, b: Tensor) -> bool:
        if a.dtype == torch.bool:
            return False
        rest, nothing = self._of(number, self.rest), self._of_nothing(number)
        if rest is None or nothing is None or not rest.shape == nothing.shape == a.shape or bool(nothing.isnan().any()):
            return False
        return is_close(a + nothing, b + rest)

    def _is_mean(self, number: int, a: Tensor, b: Tensor) -> bool:
        if not a.is_floating_point() or self.trial.groups != 1 or not self.trial.tables:
            return False
        rest, (count, part) = self._of(number, self.rest), SIZES[0]
        return rest is not None and rest.shape == a.shape and is_close(a * count, b * part + rest * (count - part))
