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

Tables have random numbers, in one round with an extreme row, in another with a NaN or an index that is often left out; what is no
table, such as a weight, has random numbers, too, so that one that begins with zeros decides nothing. Whole numbers that are
larger than a table are tried as small ones as well: ``x[:100]`` would take all rows of a small table. A verdict is kept by the
function, the shapes, types and constants of its arguments, without how many rows a worker has: all workers come to the same.

Letters: P rows of a trial's table, N rows of a worker.
"""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from sargnn.modules.row_folds import Over, OverParts, Waits
from sargnn.modules.tag import Count, Mark, mark_of

Kind = Literal["rows", "others", "sum", "mean", "alike", "other"]
_SIZES = ((13, 7), (17, 11), (23, 19), (31, 29), (41, 37), (53, 43), (61, 59), (71, 67))
"""Rows of the whole tables and of the parts, for each set of rows in a call: all proportions differ."""
_SMALL = 6
"""Whole numbers above it could be a number of rows that a trial's tables have not."""
_MOST_COPIED = 1 << 22
PAIRS, ODD = -2, -3
"""In ``Out.dim``: rows run along two dimensions; a dimension depends on how many there are, in another way."""
_EMPTY = {
    "empty": "zeros", "empty_like": "zeros_like", "new_empty": "new_zeros", "empty_strided": "zeros", "new_empty_strided": "new_zeros"
}  # fmt: skip
"""What has any numbers, and what has zeros in their place."""


class Out(NamedTuple):
    """One tensor of a result.

    Attributes:
        kind: as the table above has it; ``other`` with ``dim`` >= 0: it has rows, but they are none by themselves.
        group: which set of the call's rows, by its number; -1 without rows.
        dim: the dimension of the rows; -1 without.
        parts, before: as ``Mark`` has them.
        shape: without the rows' dimension, where there is one.
        dtype: of its numbers.
    """

    kind: Kind
    group: int = -1
    dim: int = -1
    parts: int = 1
    shape: tuple[int, ...] = ()
    dtype: torch.dtype = torch.float32
    before: int = 1

    def rows_at(self, tensor: Tensor, rows: Tensor) -> Tensor:
        """The elements of some rows, in that order."""
        split = tensor.unflatten(self.dim, (self.before, tensor.shape[self.dim] // (self.before * self.parts), self.parts))
        return split.index_select(self.dim + 1, rows.to(tensor.device)).flatten(self.dim, self.dim + 2)


@dataclass(frozen=True)
class Verdict:
    """What a call does to rows.

    Attributes:
        outs: of the tensors in its result, in order.
        is_random: it draws numbers.
        starts: whether f(0 rows) is known to be zeros, so that a sum needs not take it off.
        returns_numbers: the result has numbers that are no tensors and depend on the rows.
        why: what went wrong, where nothing could be tried.
        nest: what its tensors come in: ``tensor``, or a kind of tuple with what is in it.
        by_totals: counts of rows among the arguments are numbers to calculate with: those of all workers.
    """

    outs: tuple[Out, ...]
    is_random: bool = False
    starts: bool = False
    returns_numbers: bool = False
    why: str = ""
    by_totals: bool = False
    nest: Any = "tensor"

    @property
    def is_known(self) -> bool:
        """Whether a worker may compute it by itself, or as a sum or mean over workers."""
        return not (self.why or self.is_random or self.returns_numbers) and all(out.kind != "other" for out in self.outs)

    @property
    def is_each_row(self) -> bool:
        """Whether every result is row by row with one element of the first dimension for each row."""
        rows = all(out.kind == "rows" and out.dim == 0 and out.parts == 1 == out.before for out in self.outs)
        return rows and bool(self.outs) and not (self.why or self.is_random or self.returns_numbers)


class Table(NamedTuple):
    """An argument that has rows, described without their number: group of rows, dimension, how they run there, other sizes."""

    group: int
    dim: int
    parts: int
    before: int
    sizes: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device


class _Number(NamedTuple):
    """A count of rows among the arguments: ``factor`` times that of a group, plus ``shift``."""

    group: int
    factor: int
    shift: int


class Groups:
    """The sets of rows in one call, numbered as they come; their marks."""

    def __init__(self) -> None:
        self.numbers: dict[Hashable, int] = {}
        self.marks: list[Mark | None] = []

    def number(self, key: Hashable, mark: Mark | None) -> int:
        """Of a set."""
        number = self.numbers.setdefault(key, len(self.numbers))
        if number == len(self.marks):
            self.marks.append(mark)
        elif self.marks[number] is None:
            self.marks[number] = mark
        return number


class NotTried(Exception):
    """Why a call cannot be tried."""


Describe = Callable[[Any, Groups], Any]
"""(an argument, the groups) to its ``Table``; ``NotImplemented``: it has no rows."""


def describe_tensor(value: Any, groups: Groups) -> Any:
    """A tensor with a mark as a ``Table``."""
    mark = mark_of(value) if isinstance(value, Tensor) else None
    if mark is None:
        return NotImplemented
    with torch._C.DisableTorchFunctionSubclass():
        shape, dtype, device = tuple(value.shape), value.dtype, value.device
    if mark.before * mark.number * mark.parts != shape[mark.dim]:
        raise NotTried(f"rows of shape {shape}, of which there are {mark.number}")
    sizes = (*shape[: mark.dim], *shape[mark.dim + 1 :])
    return Table(groups.number(mark.key, mark), mark.dim, mark.parts, mark.before, sizes, dtype, device)


def described(value: Any, groups: Groups, describe: Describe) -> Any:
    """An argument, or a nest of them, as something hashable that does not depend on a worker's rows."""
    kind = type(value)
    if kind in (str, float, bool, type(None), torch.dtype, torch.device, type(Ellipsis), torch.layout, torch.memory_format, complex):
        return kind, value
    if kind is int:
        return value
    if isinstance(value, Count):
        return _Number(groups.number(value.of[0], None), *value.of[1:]) if value.of is not None else ("count", int(value))
    table = describe(value, groups)
    if table is not NotImplemented:
        return table
    if isinstance(value, Tensor):
        return "tensor", tuple(value.shape), value.dtype, value.device, value.layout
    if isinstance(value, (tuple, list)):
        return kind, *(described(item, groups, describe) for item in value)
    if kind is slice:
        return "slice", *(described(item, groups, describe) for item in (value.start, value.stop, value.step))
    if isinstance(value, dict):
        return "dict", *((key, described(item, groups, describe)) for key, item in value.items())
    if isinstance(value, (int, np.generic)):  # of an enumeration and the like
        return kind, value.item() if isinstance(value, np.generic) else int(value)
    raise NotTried(f"an argument of type {kind.__name__}")


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
        rule: how ``func`` is computed over several workers; a call that is ``other`` and has no such rule, or one that gives other
            numbers than ``func`` does on one worker, says ``why``.
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
        if not verdict.is_known and trial.has_counts and all(out.dim == -1 for out in verdict.outs):
            totals = replace(trial.with_totals().verdict(), by_totals=True)
            verdict = totals if totals.is_known else verdict
        if keep:
            _VERDICTS[key] = verdict
    return verdict


class _Fails(Exception):
    """A round of a trial that the function does not take."""


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
        elif isinstance(value, _Number):
            self.has_counts = True
            self.largest_group = value.group
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
        groups = 1 + max([t.group for t in self.tables] + [n.group for n in _numbers(self.described)], default=-1)
        if groups > len(_SIZES):
            return Verdict((), why="rows of more sets than can be told apart")
        self.groups = groups
        with torch.random.fork_rng(devices=[]), torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            verdict, why = None, ""
            for filling in _FILLINGS:
                try:
                    found = _Round(self, filling).verdict()
                except _Fails as error:
                    why = why or str(error)
                    continue
                verdict = found if verdict is None else _both(verdict, found)
            for filling in _LAST_FILLINGS if verdict is None else ():
                with contextlib.suppress(_Fails):
                    found = _Round(self, filling).verdict()
                    verdict = found if verdict is None else _both(verdict, found)
            if verdict is None:
                return Verdict((), why=why or "no round that tells anything")
            if self.largest > _SMALL and verdict.is_known and not self.totals:
                with contextlib.suppress(_Fails):
                    small = _Round(self, _FILLINGS[0], most=2).verdict()
                    if [out.kind for out in small.outs] != [out.kind for out in verdict.outs]:
                        return replace(small, outs=tuple(replace_kind(out) for out in small.outs), why=small.why or _NUMBERED)
        return verdict


_NUMBERED = "it takes some rows by their number"


def replace_kind(out: Out) -> Out:
    """The same, of which nothing is known."""
    return out._replace(kind="other")


def _numbers(value: Any) -> Iterator[_Number]:
    if isinstance(value, _Number):
        yield value
    elif isinstance(value, tuple) and not isinstance(value, Table):
        for item in value:
            yield from _numbers(item)


def _both(one: Verdict, other: Verdict) -> Verdict:
    """What holds in two rounds: the weaker of both."""
    if len(one.outs) != len(other.outs):
        return Verdict((), why="its results are not as many for all rows")
    outs = tuple(a if a == b else _weaker(a, b) for a, b in zip(one.outs, other.outs, strict=True))
    return Verdict(
        outs,
        one.is_random or other.is_random,
        one.starts and other.starts,
        one.returns_numbers or other.returns_numbers,
        "" if one.is_random or other.is_random else one.why or other.why,
        nest=one.nest,
    )


def _weaker(a: Out, b: Out) -> Out:
    if {a.kind, b.kind} == {"rows", "others"} and (a.group, a.dim) == (b.group, b.dim):
        return a if a.kind == "others" else b
    if "alike" in (a.kind, b.kind) and a.dim == b.dim == -1 and a.shape == b.shape:  # all numbers were equal by chance
        return a if b.kind == "alike" else b
    return a._replace(kind="other") if a.dim == b.dim else Out("other")


class _Filling(NamedTuple):
    """How a round fills tables: of fractions, of whole numbers, and whether a NaN or -100 is among them."""

    floats: str
    ints: str
    special: bool = False


_FILLINGS = (
    _Filling("normal", "two"),
    _Filling("between", "first"),
    _Filling("extreme", "large"),
    _Filling("signs", "two"),
    _Filling("normal", "two", True),
)

_LAST_FILLINGS = _Filling("normal", "zero"), _Filling("between", "zero")
"""Where whole numbers are numbers of rows of a table that has one."""


class _Round:
    """One round: tables of P rows, parts of them, and what the function gives for these."""

    def __init__(self, trial: _Trial, filling: _Filling, most: int | None = None) -> None:
        self.trial, self.filling, self.most = trial, filling, most
        self.generator = torch.Generator().manual_seed(1234567 + len(filling.floats) + 10 * filling.special)
        self.whole = {group: _SIZES[group][0] for group in range(trial.groups)}
        self.picked, self.rest = {}, {}
        for group in range(trial.groups):
            count, part = _SIZES[group]
            order = torch.randperm(count - 1, generator=self.generator) + 1  # the first row, an extreme one, is in the rest
            self.picked[group] = order[:part]
            self.rest[group] = torch.cat([order[part:], torch.zeros(1, dtype=torch.int64)])
        self.filled: dict[int, Tensor] = {}
        self._count = 0

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
            return whole.reshape(*shape[:dim], math.prod(shape[dim : dim + 3]), *shape[dim + 3 :]).clone()
        if isinstance(described, _Number):
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
            return {key: self._argument(item, part, rows) for (key, item), (_, part) in zip(value.items(), described[1:], strict=True)}
        if type(value) is slice:
            ends = (value.start, value.stop, value.step)
            return slice(*(self._argument(end, part, rows) for end, part in zip(ends, described[1:], strict=True)))
        if isinstance(value, Count):
            return int(value)
        if self.most is not None and type(value) is int and abs(value) > _SMALL:
            return self.most if value > 0 else -self.most
        return value

    def run(self, rows: dict[int, Tensor] | None, func: Callable[..., Any] | None = None, seed: int = 1) -> tuple[list[Any], Any]:
        """The function's results, flat, and what nest they come in.

        Raises:
            _Fails: it fails.
        """
        trial, self._count = self.trial, 0
        args = self._argument(trial.args, trial.described[0], rows)
        kwargs = self._argument(trial.kwargs, trial.described[1], rows)
        torch.manual_seed(seed)
        try:
            out = (func or trial.func)(*args, **kwargs)
        except Waits:
            raise
        except Exception as error:
            raise _Fails(f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}") from None
        if trial.writes:
            out = args[0] if args else next(iter(kwargs.values()))
        leaves: list[Any] = []
        return leaves, _flatten(out, leaves)

    # What its results say.

    def verdict(self) -> Verdict:
        """The round's verdict."""
        trial = self.trial
        whole, nest = self.run(None)
        part, nest_of_part = self.run(self.picked, seed=2)
        if nest != nest_of_part:
            return Verdict((), returns_numbers=True, why="it gives another number of results for another number of rows")
        outs, numbers = [], False
        for number, (a, b) in enumerate(zip(whole, part, strict=True)):
            if not isinstance(a, Tensor) or not isinstance(b, Tensor):
                told = isinstance(a, (bool, int, float, complex)) and bool(trial.tables)  # alike in a trial is not alike
                numbers = numbers or told or type(a) is not type(b) or not _same_value(a, b)
                continue
            outs.append(self._judge(number, a, b, whole))
        is_random = False
        if numbers or any(out.kind == "other" for out in outs):
            again, _ = self.run(None, seed=3)
            is_random = not all(is_close(a, b) if isinstance(a, Tensor) else _same_value(a, b) for a, b in zip(whole, again, strict=True))
            if not is_random and not numbers:
                why = self._check_rule(whole, outs)
                return Verdict(tuple(outs), why=why, nest=nest)
        starts = all(out.kind != "sum" or not bool(self._nothing()[k].count_nonzero()) for k, out in enumerate(outs))
        constant = not any(type(value) is tuple and value[:1] == ("tensor",) for value in _walk(trial.described))
        return Verdict(tuple(outs), is_random, starts and constant, numbers, nest=nest)

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
        except (_Fails, RuntimeError):
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
            return _same_value(a, b)
        if out.dim >= 0:
            a = out.rows_at(a, rows[out.group])
        return out.dim >= -1 and isinstance(b, Tensor) and is_close(a, b)

    def _judge(self, number: int, a: Tensor, b: Tensor, whole: list[Any]) -> Out:
        kind, (shape, dtype) = "other", (tuple(a.shape), a.dtype)
        if a.layout != torch.strided or a.dim() != b.dim():
            return Out("other")
        changed = [dim for dim in range(a.dim()) if a.shape[dim] != b.shape[dim]]
        if len(changed) == 1:
            (dim,) = changed
            sizes = (*shape[:dim], *shape[dim + 1 :])
            for group, (count, part) in enumerate(_SIZES[: self.trial.groups]):
                times = a.shape[dim] // count
                if times and a.shape[dim] == times * count and b.shape[dim] == times * part:
                    for before in (before for before in range(1, times + 1) if times % before == 0):
                        out = Out("rows", group, dim, times // before, sizes, dtype, before)
                        if is_close(out.rows_at(a, self.picked[group]), b):
                            return out
                    kind = "others" if self._has_all(number, dim, a, b) else "other"
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

    def _of(self, number: int, rows: dict[int, Tensor]) -> Tensor:
        leaves, _ = self.run(rows)
        out = leaves[number] if number < len(leaves) else None
        if not isinstance(out, Tensor):
            raise _Fails("another number of results")
        return out

    def _nothing(self) -> list[Any]:
        return self.run({group: rows[:0] for group, rows in self.picked.items()})[0]

    def _has_all(self, number: int, dim: int, a: Tensor, b: Tensor) -> bool:
        """Whether the rows of the whole result are those of the picked rows' and of the rest's, in any order."""
        try:
            rest = self._of(number, self.rest)
        except _Fails:
            return False
        if rest.dim() != a.dim() or rest.dtype != a.dtype or any(
            rest.shape[at] != a.shape[at] for at in range(a.dim()) if at != dim
        ):
            return False
        return a.shape[dim] == b.shape[dim] + rest.shape[dim] and is_close(
            _told_apart(a, dim), _told_apart(b, dim) + _told_apart(rest, dim)
        )

    def _is_alike(self, number: int, a: Tensor, b: Tensor) -> bool:
        if not is_close(a, b):
            return False
        for filling in (*_FILLINGS, _Filling("extreme", "first")):
            other = _Round(self.trial, filling, self.most)
            other.generator.manual_seed(99)
            try:
                if not is_close(a, other._of(number, other.rest)):
                    return False
            except _Fails:
                continue
        return True

    def _is_sum(self, number: int, a: Tensor, b: Tensor) -> bool:
        if a.dtype == torch.bool:
            return False
        try:
            rest, nothing = self._of(number, self.rest), self._nothing()[number]
        except _Fails:
            return False
        there = rest.shape == nothing.shape == a.shape and not bool(nothing.isnan().any())
        return there and is_close(a + nothing, b + rest)

    def _is_mean(self, number: int, a: Tensor, b: Tensor) -> bool:
        if not a.is_floating_point() or self.trial.groups != 1 or not self.trial.tables:
            return False
        try:
            rest = self._of(number, self.rest)
        except _Fails:
            return False
        count, part = _SIZES[0]
        return rest.shape == a.shape and is_close(a * count, b * part + rest * (count - part))


def _told_apart(rows: Tensor, dim: int) -> Tensor:
    """[8], a sum of a function of each row, which hardly any other rows have."""
    table = rows.movedim(dim, 0).flatten(1).double() if rows.dim() > 1 else rows[:, None].double()
    table = torch.nan_to_num(table, 3.25, 7.5, -5.5)
    directions = torch.randn(table.shape[1], 8, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    told = (table @ directions).cos().sum(0)
    return told.to(rows.dtype) if rows.is_floating_point() else told


def _walk(value: Any) -> Iterator[Any]:
    yield value
    if isinstance(value, tuple) and not isinstance(value, Table):
        for item in value:
            yield from _walk(item)


def _flatten(value: Any, leaves: list[Any]) -> Any:
    """Lists the tensors and numbers of a nest; what nest it is."""
    if isinstance(value, (tuple, list)):
        return type(value).__name__, *(_flatten(item, leaves) for item in value)
    if isinstance(value, dict):
        return "dict", *((key, _flatten(item, leaves)) for key, item in value.items())
    leaves.append(value)
    return "tensor" if isinstance(value, Tensor) else "value"


def _same_value(a: Any, b: Any) -> bool:
    try:
        return bool(a == b) or (a != a and b != b)
    except Exception:
        return a is b


def is_close(a: Tensor, b: Tensor) -> bool:
    """Whether they are equal but for rounding; what is no number is equal to itself."""
    if a.shape != b.shape or a.dtype != b.dtype or a.layout != b.layout:
        return False
    if a.layout != torch.strided:
        return is_close(a.to_dense(), b.to_dense())
    if not a.dtype.is_floating_point and not a.dtype.is_complex:
        return torch.equal(a, b)
    if not a.numel():
        return True
    tolerance = 1e-9 if a.dtype in (torch.float64, torch.complex128) else 3e-4 if a.dtype == torch.float32 else 5e-2
    finite = a.abs()[torch.isfinite(a)]
    scale = float(finite.max()) if finite.numel() else 0.0
    return torch.allclose(a, b, rtol=tolerance, atol=tolerance * scale, equal_nan=True)
