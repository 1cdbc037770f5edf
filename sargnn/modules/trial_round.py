"""One round of a trial: tables with numbers, the function's results for all rows, for some and for the rest, and what they say.

Letters: P rows of a table.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from sargnn.modules.row_folds import Over, OverParts, Waits
from sargnn.modules.tag import Count
from sargnn.modules.verdict import ODD, PAIRS, Kind, Number, Out, Table, Verdict, walk

SIZES = ((13, 7), (17, 11), (23, 19), (31, 29), (41, 37), (53, 43), (61, 59), (71, 67))
"""Rows of the whole tables and of the picked ones, for each set of rows in a call: all proportions differ."""
_MOST_COPIED = 1 << 22
_SMALL = 6


class Fails(Exception):
    """A round of a trial that the function does not take."""


class Tried(Protocol):
    """What a round knows of a call.

    Attributes:
        func, args, kwargs: it.
        described: its arguments and keywords, as ``verdict.described`` gives them.
        writes: it writes to its first argument.
        rule: how it is computed over several workers; None: nobody knows.
        totals: counts of rows are numbers like others.
        tables: the arguments that have rows.
        groups: how many sets of rows there are.
    """

    func: Any
    args: Any
    kwargs: Any
    described: Any
    writes: bool
    rule: Any
    totals: bool
    tables: list[Table]
    groups: int


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

    def __init__(self, trial: Tried, filling: Filling, most: int | None = None) -> None:
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
            return operator.index(value)
        if self.most is not None and type(value) is int and abs(value) > _SMALL:
            return self.most if value > 0 else -self.most
        return value

    def run(
        self, rows: dict[int, Tensor] | None, func: Callable[..., Any] | None = None, seed: int = 1
    ) -> tuple[list[Any], Any]:
        """The function's results, flat, and what nest they come in.

        Raises:
            Fails: it fails.
        """
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
        return leaves, _flatten(out, leaves)

    # What its results say.

    def verdict(self) -> Verdict:
        """The round's verdict."""
        trial = self.trial
        whole, nest = self.run(None)
        writes = any(tensor._version for tensor in self._given)
        memory = {_memory(tensor) for tensor in self._given}
        views = any(isinstance(out, Tensor) and _memory(out) in memory for out in whole)
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
            is_random = not all(
                is_close(a, b) if isinstance(a, Tensor) else _same_value(a, b) for a, b in zip(whole, again, strict=True)
            )
            if not is_random and not numbers:
                why = self._check_rule(whole, outs)
                return Verdict(tuple(outs), why=why, nest=nest)
        starts = all(out.kind != "sum" or not bool(self._nothing()[k].count_nonzero()) for k, out in enumerate(outs))
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
            return _same_value(a, b)
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

    def _of(self, number: int, rows: dict[int, Tensor]) -> Tensor:
        leaves, _ = self.run(rows)
        out = leaves[number] if number < len(leaves) else None
        if not isinstance(out, Tensor):
            raise Fails("another number of results")
        return out

    def _nothing(self) -> list[Any]:
        return self.run({group: rows[:0] for group, rows in self.picked.items()})[0]

    def _has_all(self, number: int, dim: int, a: Tensor, b: Tensor) -> bool:
        """Whether the rows of the whole result are those of the picked rows' and of the rest's, in any order."""
        try:
            rest = self._of(number, self.rest)
        except Fails:
            return False
        if (
            rest.dim() != a.dim()
            or rest.dtype != a.dtype
            or any(rest.shape[at] != a.shape[at] for at in range(a.dim()) if at != dim)
        ):
            return False
        return a.shape[dim] == b.shape[dim] + rest.shape[dim] and is_close(
            _told_apart(a, dim), _told_apart(b, dim) + _told_apart(rest, dim)
        )

    def _is_alike(self, number: int, a: Tensor, b: Tensor) -> bool:
        if not is_close(a, b):
            return False
        for filling in (*FILLINGS, Filling("extreme", "first")):
            other = Round(self.trial, filling, self.most)
            other.generator.manual_seed(99)
            try:
                if not is_close(a, other._of(number, other.rest)):
                    return False
            except Fails:
                continue
        return True

    def _is_sum(self, number: int, a: Tensor, b: Tensor) -> bool:
        if a.dtype == torch.bool:
            return False
        try:
            rest, nothing = self._of(number, self.rest), self._nothing()[number]
        except Fails:
            return False
        there = rest.shape == nothing.shape == a.shape and not bool(nothing.isnan().any())
        return there and is_close(a + nothing, b + rest)

    def _is_mean(self, number: int, a: Tensor, b: Tensor) -> bool:
        if not a.is_floating_point() or self.trial.groups != 1 or not self.trial.tables:
            return False
        try:
            rest = self._of(number, self.rest)
        except Fails:
            return False
        count, part = SIZES[0]
        return rest.shape == a.shape and is_close(a * count, b * part + rest * (count - part))


def _memory(tensor: Tensor) -> Any:
    return tensor.untyped_storage()._cdata if tensor.layout == torch.strided else None


def _told_apart(rows: Tensor, dim: int) -> Tensor:
    """[8], a sum of a function of each row, which hardly any other rows have."""
    table = rows.movedim(dim, 0).flatten(1).double() if rows.dim() > 1 else rows[:, None].double()
    table = torch.nan_to_num(table, 3.25, 7.5, -5.5)
    directions = torch.randn(table.shape[1], 8, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    told = (table @ directions).cos().sum(0)
    return told.to(rows.dtype) if rows.is_floating_point() else told


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
