"""Calls of PyTorch's functions on rows, once a trial has told what they do to them (``trial.py``).

| the trial says | what happens |
|---|---|
| row by row; some rows let through, tables joined | PyTorch's own |
| a sum or a mean over rows | that over all workers |
| random | drawn by original ids by a rule (``row_draws.py``), or what it calls, one by one, or refused |
| other | a rule's fold over all workers (``row_folds.py``), or what it calls, one by one, or refused |

Numbers that count this worker's rows, such as ``torch.arange(x.size(0))``, are marked and refused where they meet rows. Tensors
that no call has made are compared with those of the other workers.
"""

from __future__ import annotations

import contextlib
import types
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
import torch.overrides
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from sargnn.comm.group import Group
from sargnn.errors import ConfigError
from sargnn.modules.call import PAIRS, Call, Groups, Out, Verdict, carry, tensors_of
from sargnn.modules.expressions import flat, map_values
from sargnn.modules.functions import PAIRING, PICKS, Function, check_writes, unwrapped
from sargnn.modules.row_calls import RowCalls
from sargnn.modules.row_folds import OverWorkers, SumOverWorkers, mean_over_workers
from sargnn.modules.tag import Count, Mark, Rows, is_known, is_own_call, is_shared, mark_of, own_of, set_mark, user_line
from sargnn.modules.trial import verdict_of


class JudgedCalls(TorchFunctionMode):
    """What ``StockCalls`` does about a call that has no handler.

    Attributes:
        path: the user's file, for messages.
        folds_rows: whether something was folded over rows, so that an output depends on which rows are computed together.
    """

    group: Group
    path: str | None
    folds_rows: bool
    _rows: RowCalls
    _inside: list[Any]

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Calls inside are seen as the module's own, while one of the module's is under way."""
        torch.overrides._push_mode(self)
        try:
            yield
        finally:
            torch.overrides._pop_mode()

    def judged(self, known: Function, call: Call) -> Any:
        """What a call gives, once a trial has told what it does to rows."""
        func, args, kwargs = call.func, call.args, call.kwargs
        if kwargs.get("out", self) is None:  # Python's wrappers hand it on
            kwargs = call.kwargs = {key: value for key, value in kwargs.items() if key != "out"}
        if "out" in kwargs:
            return self._written_to_out(known, call)
        groups, writes = Groups(), known.writes or bool(kwargs.get("inplace"))
        verdict = verdict_of(func, args, kwargs, groups, writes=writes, rule=known.rule)
        if verdict.writes and not writes:  # as relu(x, True), which has no name that says so
            writes = True
            check_writes(known.name, args, {"inplace": True}, self.path)
        if self.group.world > 1:
            self._alike((args, kwargs))
        if not call.marked and not groups.numbers:
            return call.on_own_rows()
        if verdict.by_totals:
            args, kwargs = call.args, call.kwargs = totals_in(args), totals_in(kwargs)
        if verdict.is_random and not call.marked and all(out.dim == -1 for out in verdict.outs):  # of a fixed shape
            return func(*totals_in(args), **totals_in(kwargs))
        if verdict.is_random and not verdict.why:
            return self._drawn(known, call, verdict, groups)
        alone = self.group.world == 1
        if call.marked and not all(told.kind in ("rows", "others", "alike") for told in verdict.outs):
            self.folds_rows = True
        if not alone:
            self._check_numbered(call, verdict, groups)
        if not call.marked and all(out.kind == "other" for out in verdict.outs) and not verdict.returns_numbers:
            out = call.on_own_rows()
            return (
                set_mark(out, self._numbered(known.name, out, groups), shared=False)
                if isinstance(out, Tensor) and out.dim()
                else out
            )
        if alone or (verdict.is_known and all(out.kind in ("rows", "others", "alike") for out in verdict.outs)):
            out = self._rows_of(call, verdict) if not writes and _has_none(call.marked) else call.on_own_rows()
            if not alone and any(told.kind == "alike" for told in verdict.outs) and not known.makes:
                for tensor, told in zip(tensors_of(out), verdict.outs, strict=True):
                    if told.kind == "alike":  # as far as a trial can tell
                        self._compare(tensor)
            if known.gives_nothing:  # what was written to has the result's rows
                self._carry_write(call, verdict, groups)
            else:
                carry(call, out, _as_folds(verdict), groups)
            return out
        if is_own_call():  # of this worker's rows, and knows it
            return call.on_own_rows()
        if verdict.is_known or (known.rule is not None and not verdict.why):
            if writes:
                return self._folded_in_place(known, call, verdict, groups)
            return self._folded(known, call, verdict, groups)
        if (inner := self._made_of(func)) is not None:
            return self._again(call, inner, args, kwargs)
        raise self._why_not(known, call, verdict)

    def _rows_of(self, call: Call, verdict: Verdict) -> Any:
        """What a function gives where a worker has no rows. Some of PyTorch's fail then: they get one row, whose result is cut
        off, but for how it hangs together with what it was made of: other workers are in backward, too."""
        try:
            return call.on_own_rows()
        except (RuntimeError, ValueError):  # the second of PyTorch's own Python
            out = call.func(*_with_one_row(call.args), **_with_one_row(call.kwargs))
        outs = iter(verdict.outs)
        zero = sum((t.sum() * 0 for t, _ in call.marked if t.requires_grad), torch.zeros((), dtype=torch.float64))

        def cut(leaf: Any) -> Any:
            if not isinstance(leaf, Tensor):
                return leaf
            told = next(outs)
            leaf = leaf.narrow(told.dim, 0, 0) if told.dim >= 0 else leaf
            return leaf + zero.to(leaf.dtype) if leaf.is_floating_point() and zero.requires_grad else leaf

        return cut(out) if isinstance(out, Tensor) else map_values(out, cut)

    def _made_of(self, func: Any) -> Callable[..., Any] | None:
        """A function of PyTorch's in Python that shows what it calls; None where it is none, or is under way."""
        in_python = isinstance(func, types.FunctionType) and (func.__module__ or "").startswith("torch")
        return unwrapped(func) if in_python and func not in self._inside else None

    def _again(self, call: Call, inner: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        self._inside.append(call.func)
        try:
            return call.again(lambda: inner(*args, **kwargs))
        finally:
            self._inside.pop()

    def _folded(self, known: Function, call: Call, verdict: Verdict, groups: Groups) -> Any:
        func, args, kwargs = call.func, call.args, call.kwargs
        if any(out.kind == "other" for out in verdict.outs) or verdict.returns_numbers:
            mark = mark_of(call.argument(0, "input"))
            over = OverWorkers(self.group, None if mark is None else mark.dim)
            assert known.rule is not None
            args, kwargs = map_values((args, kwargs), own_of)
            out = known.rule(over, func, *args, **kwargs)
            if type(out) is tuple or isinstance(out, Tensor):
                carry(call, out, _as_folds(verdict), groups)
            elif isinstance(out, tuple):  # values and places, which nobody knows
                set_mark(out[0], None, shared=False)
            return out
        kinds = iter(verdict.outs)
        nothing = None if verdict.starts else func(*_without_rows(args), **_without_rows(kwargs))
        starts = iter(() if nothing is None else tensors_of(nothing))
        rows = max([mark.number for _, mark in call.marked], default=0)
        marked = [tensor for tensor, _ in call.marked]

        def over_workers(own: Any) -> Any:
            if not isinstance(own, Tensor):
                return own
            told, start = next(kinds), next(starts, None)
            if told.kind == "sum":
                own = SumOverWorkers.apply(self.group, own if start is None else own - start)
                own = own if start is None else own + start
            elif told.kind == "mean":
                own = mean_over_workers(self.group, own, rows, marked)
            return own

        out = call.on_own_rows()
        out = over_workers(out) if isinstance(out, Tensor) else map_values(out, over_workers)
        carry(call, out, verdict.outs, groups)
        return out

    def _folded_in_place(self, known: Function, call: Call, verdict: Verdict, groups: Groups) -> Any:
        target = call.argument(0, "input")
        copy = set_mark(target.clone(), mark_of(target), shared=False)
        func, gives_nothing = call.func, known.gives_nothing

        def functional(first: Tensor, *rest: Any, **named: Any) -> Tensor:
            first = first.clone()
            out = func(first, *rest, **named)
            return first if gives_nothing else out

        other = Call(call.name, functional, (copy, *call.args[1:]), call.kwargs, call.marked, call.watched)
        out = self._folded(known, other, verdict, groups)
        target.copy_(out)
        set_mark(target, mark_of(out), shared=False)
        return None if gives_nothing else target

    def _written_to_out(self, known: Function, call: Call) -> Any:
        """A call with ``out=``: what it gives without, copied there."""
        kwargs = dict(call.kwargs)
        target = kwargs.pop("out")
        result = call.again(lambda: call.func(*call.args, **kwargs))
        for to, value in zip(tensors_of(target), tensors_of(result), strict=True):
            if to.requires_grad or value.requires_grad:
                raise self.refused(f"'{known.name}' with out= has no gradient", known.name, f"{known.name} without out=")
            with torch.no_grad():
                to.resize_(value.shape).copy_(value)
            set_mark(to, mark_of(value), shared=False)
        return target

    def _carry_write(self, call: Call, verdict: Verdict, groups: Groups) -> None:
        target = call.args[0]
        if verdict.outs and not is_shared(target):
            carry(call, target, verdict.outs[:1], groups)

    def _drawn(self, known: Function, call: Call, verdict: Verdict, groups: Groups) -> Any:
        told = verdict.outs[0] if len(verdict.outs) == 1 else Out("other")
        without_limits = known.name == "random_" and len(call.args) < 2
        if known.draws is None or told.dim < 0 or without_limits:
            if (inner := self._made_of(call.func)) is not None:
                return self._again(call, inner, call.args, call.kwargs)
            raise self.refused(
                f"{known.name} draws numbers for the rows of this worker, which differ with the number of workers",
                f"{known.name} of rows of the graph",
                "dropout; rand, randn, bernoulli, normal, exponential and their kin, which are drawn by original id",
                "set this call's dropout to 0, or draw with one of these",
            )
        kwargs = {key: value for key, value in call.kwargs.items() if key != "inplace"}
        mark = mark_of_made(told, groups, call)
        shape = list(told.shape)
        shape.insert(told.dim, mark.number * told.parts * told.before)
        dtype = told.dtype if told.dtype.is_floating_point else torch.float64
        out = known.draws(self._rows.dropout.numbers(mark, shape, dtype), *call.args, **kwargs).to(told.dtype)
        target = call.argument(0, "input")
        if known.writes or call.kwargs.get("inplace"):
            out = target.copy_(out)
        elif kwargs.get("requires_grad"):
            out.requires_grad_()
        return set_mark(out, mark, shared=False)

    def _check_numbered(self, call: Call, verdict: Verdict, groups: Groups) -> None:
        """Refuse numbers of this worker's rows where they meet rows, or are folded."""
        numbered = [mark for _, mark in call.marked if mark.numbered]
        if numbered and (len(numbered) < len(call.marked) or any(out.kind not in ("rows", "others") for out in verdict.outs)):
            raise self.refused(
                f"{numbered[0].numbered}, which mean other rows on each worker",
                f"{call.name} of them",
                "what is made of the rows themselves; random numbers, torch.rand(x.size(0)), are drawn by original id",
            )

    def _numbered(self, name: str, out: Tensor, groups: Groups) -> Mark:
        key = next(iter(groups.numbers))
        return Mark(None, 0, len(out), "", 1, ("numbers", key), f"'{name}' counts this worker's rows")

    def _alike(self, given: Any, out: Any = None) -> None:
        """Compare tensors that no call has made with those of the other workers; results of the others are alike."""
        if (unseen := _unseen_in(given)) is not None:
            if is_own_call():  # which says itself what its results are
                return
            for tensor in unseen:
                self._compare(tensor)
        for tensor in tensors_of(out) if out is not None else ():
            if not is_known(tensor):
                set_mark(tensor, None, shared=False)

    def _differs(self, own: Tensor) -> bool:
        """Whether a worker has other numbers; all of them ask together."""
        return any(not torch.equal(own, other) for other in self.group.gather(own))

    def _compare(self, tensor: Tensor) -> None:
        values = tensor.detach().to_dense() if tensor.layout != torch.strided else tensor.detach()
        own = torch.tensor([zlib.crc32(repr((tuple(tensor.shape), tensor.dtype)).encode()), self.group.rank], dtype=torch.int64)
        with contextlib.suppress(RuntimeError):  # within torch.vmap and the like there are no numbers to compare
            flat = values.resolve_conj().contiguous().reshape(-1)
            own[1] = zlib.crc32(flat.view(torch.uint8).cpu().numpy().tobytes() if len(flat) else b"") + self.group.world
        if self._differs(own):
            raise self.refused(
                "A tensor that no function of PyTorch's has made here is not the same on all workers",
                f"shape {list(tensor.shape)}, {tensor.dtype}",
                "parameters, buffers and constants; what PyTorch's functions make of the rows that forward gets",
                "numpy, TorchScript, torch.vmap and extensions of C++ see this worker's rows alone",
            )
        set_mark(tensor, None, shared=is_shared(tensor))

    def compare_numbers(self, name: str, args: Any, kwargs: Any) -> None:
        """Refuse plain numbers in a call of the user's that are not those of the other workers, as ``random.random()``."""
        given = flat((args, kwargs))
        of_numpy = [v.item() for v in given if isinstance(v, np.generic) or (isinstance(v, np.ndarray) and not v.ndim)]
        numbers = [value for value in given if type(value) in (int, float, complex)] + of_numpy
        if not numbers:
            return
        own = torch.tensor([zlib.crc32(repr(numbers).encode())])
        if self._differs(own):
            raise self.refused(
                "A plain number is not the same on all workers",
                f"{name} with {', '.join(map(str, numbers))}",
                "x.size(0), len(x) and what is made of them; x.sum().item() and the like, of what is folded over all rows",
            )

    def refused(self, what: str, given: str, allowed: str | None = None, hint: str | None = None) -> ConfigError:
        return ConfigError(what, given=f"{user_line(self.path)}: {given}", allowed=allowed, hint=hint)

    def _why_not(self, known: Function, call: Call, verdict: Verdict) -> ConfigError:
        """The error about a call that is none of what is known; raises PyTorch's own where it fails by itself."""
        name = known.name.strip("_")
        if not verdict.outs and verdict.why:
            call.on_own_rows()
        if name in PAIRING or any(out.kind == "other" and out.dim == PAIRS for out in verdict.outs):
            return self.refused(
                f"'{known.name}' joins each row with all others, and a worker has some of them alone",
                f"{known.name} of rows with rows",
                "sums over rows, such as k.t() @ v; message passing over edges; attention among a row's own parts",
            )
        if name in PICKS:
            return self.refused(
                "Rows are picked by their number, which means other rows on each worker",
                f"{known.name} along the rows",
                "x[:n] with the graph's number of a layer's rows; rows where a condition holds; picks along other dimensions",
                "use a mask of rows, such as x[x[:, 0] > 0], or the graph's own functions",
            )
        if verdict.returns_numbers:
            return self.refused(f"'{known.name}' gives numbers of this worker's rows alone", f"{known.name} of rows", *READING)
        return self.refused(
            f"'{name}' over rows needs those of all workers in one place, or is not known to be computed row by row",
            f"{known.name} along the rows" + (f" ({verdict.why})" if verdict.why else ""),
            "sum, mean, std, norm, prod, max, min, softmax, logsumexp, losses, products over rows; any function of each row",
        )


READING = (
    "x.sum().item() and the like, of what is folded over all workers' rows",
    "x.size(0) is the number of all rows where one calculates with it",
)


def _as_folds(verdict: Verdict) -> list[Out]:
    """Where the rows are in results that a rule gives."""
    if verdict.why:
        return list(verdict.outs)
    return [told._replace(kind="rows" if told.dim >= 0 else "sum") if told.kind == "other" else told for told in verdict.outs]


def mark_of_made(told: Out, groups: Groups, call: Call) -> Mark:
    """The mark of random numbers."""
    source = groups.marks[told.group]
    if source is not None:
        return source._replace(dim=told.dim, parts=told.parts, before=told.before)
    key = next(key for key, number in groups.numbers.items() if number == told.group)
    size = next(v for v in flat((call.args, call.kwargs)) if isinstance(v, Count) and v.of is not None and v.of[0] == key)
    assert size.of is not None
    rows = key if isinstance(key, Rows) else None
    return Mark(rows, told.dim, (size.own - size.of[2]) // size.of[1], parts=told.parts, set=key, before=told.before)


def has_count(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    for arg in (*args, *kwargs.values()) if kwargs else args:
        if isinstance(arg, Count) or (isinstance(arg, (tuple, list)) and any(isinstance(item, Count) for item in arg)):
            return True
    return False


def totals_in(value: Any) -> Any:
    return map_values(value, lambda item: item.total if isinstance(item, Count) else item)


def _has_none(marked: Sequence[tuple[Tensor, Mark]]) -> bool:
    return any(not mark.number for _, mark in marked)


def _with_one_row(value: Any) -> Any:
    """The same arguments with one row of ones where there are none, and numbers of rows as they are then."""

    def filled(item: Any) -> Any:
        if isinstance(item, Count) and item.of is not None and item.own == item.of[2]:
            return sum(item.of[1:])
        mark = mark_of(item)
        if mark is None or mark.number:
            return own_of(item)
        sizes = [mark.parts * mark.before if dim == mark.dim else size for dim, size in enumerate(item.shape)]
        return item.new_ones(sizes)

    return map_values(value, filled)


def _without_rows(value: Any) -> Any:
    def empty(item: Any) -> Any:
        mark = mark_of(item)
        return own_of(item) if mark is None else item.narrow(mark.dim, 0, 0)

    return map_values(value, empty)


def _unseen_in(value: Any) -> list[Tensor] | None:
    """Tensors among arguments that nothing is known of."""
    unseen: list[Tensor] | None = None
    if isinstance(value, Tensor):
        return None if is_known(value) or isinstance(value, nn.Parameter) else [value]
    if isinstance(value, (tuple, list)):
        for item in value:
            if (more := _unseen_in(item)) is not None:
                unseen = [*(unseen or ()), *more]
    elif isinstance(value, dict):
        return _unseen_in(list(value.values()))
    return unseen
