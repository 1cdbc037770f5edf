"""A user's module calls PyTorch; what that means for rows that are spread over workers.

``StockCalls`` is entered around a module's forward and sees each call of a PyTorch function:

| call | becomes |
|---|---|
| dropout of rows | drawn by original id (``row_calls.py``) |
| batch norm in training | statistics over the rows of all workers (``row_operators.py``) |
| linear maps, ReLU, ELU, sums of tables | the engine's fused operators, outside of a baseline mode |
| what a trial finds to be row by row (``trial.py``) | PyTorch's own |
| what a trial finds to be a sum or a mean over rows | that over all workers |
| another fold that a rule is known for (``row_folds.py``) | computed by the rule over all workers |
| a random function that a rule is known for (``row_draws.py``) | drawn by original ids |
| a function that PyTorch has in Python | what that calls, one by one |
| any other, and writes to inputs | refused in one message with the user's line |

and notes on each result what its rows are (``marked_call.py``). A tensor that no call has made and no worker has seen before is
compared with the other workers' before it meets rows. Code of this package that is called from a module's forward runs outside
of it (``session.paused``). Nothing here knows a graph.
"""

from __future__ import annotations

import contextlib
import inspect
import math
import os
import sys
import types
import weakref
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.overrides
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from sargnn.engine.aggregate import Engine
from sargnn.errors import ConfigError
from sargnn.modules.edge_fields import EdgeTensor, Mailbox, noted_call, values_of
from sargnn.modules.expressions import map_values
from sargnn.modules.lazy import Ends, Lazy
from sargnn.modules.lazy_calls import lazy_call, made_of_edges
from sargnn.modules.marked_call import Call, carry, marked_in, of_last_layer, tensors_of
from sargnn.modules.row_calls import ALWAYS, HANDLERS, KEEPS_ROWS, Handler, RowCalls, RowDropout, is_temporary
from sargnn.modules.row_draws import DRAWS, DrawRule
from sargnn.modules.row_folds import RULES, OverWorkers, Rule, SumOverWorkers, mean_over_workers
from sargnn.modules.row_operators import RowOperators
from sargnn.modules.session import Places, Session
from sargnn.modules.tag import FIRST_TOLD, Count, Mark, Rows, is_known, is_library, is_own_call, is_shared, is_users_call, mark_of, set_mark, user_line
from sargnn.modules.trial import PAIRS, Groups, Out, Verdict, verdict_of
from sargnn.rng import Draw

Observe = Callable[[str, str, Tensor, Mark | None, Sequence[Tensor]], None]
"""(function, the user's line, the result, where its rows are (None: it is the same on all workers), the arguments)."""
_CHECKPOINT = os.path.join(os.path.dirname(torch.__file__), "utils", "checkpoint.py")
_ONLY_NAMES = frozenset("rename_ share_memory_".split())
_NO_ASSIGNMENTS = frozenset("__invert__ __index__ __int__ __iter__ __init__".split())


class StockCalls(TorchFunctionMode):
    """Entered around one forward pass after the other of a user's module; see the module's text.

    Args:
        engine: whose operators, seed and epoch are used.
        places: whose rows the module's tensors are.
        path: the user's file, for messages.
        observe: called with every result, for comparisons of worlds.

    Attributes:
        session: of the pass.
        told: numbers of rows that were told as plain numbers, ``int(edge_index.max()) + 1``, and what they are.
        folds_rows: whether something was folded over rows, so that an output depends on which rows are computed together.
        narrows: whether rows of a layer beside rows of a later one are those that the latter are, as PyG's modules expect.
    """

    def __init__(self, engine: Engine, places: Places, *, path: str | None, observe: Observe | None = None) -> None:
        super().__init__()
        self._places = places
        self.session: weakref.ref[Session] | None = None
        self.told: dict[int, Count] = {}
        self.narrows = False
        self.engine, self.group, self.path, self.observe = engine, places.group, path, observe
        operators = RowOperators(engine)
        self._rows = RowCalls(places.group, operators, RowDropout(engine, places, operators, path))
        self._trains = False
        self._outside: list[Tensor] = []
        self._passes: list[AbstractContextManager[None]] = []
        self._inside: list[Any] = []
        self.folds_rows = False
        see_custom_functions()

    def edge_draw(self, p: float) -> Draw:
        """The draw of this forward pass's next dropout of edges, for one that calls do not arrive of."""
        return self._rows.dropout.draw(p, of_edges=True)

    def seen(self, name: str, out: Any, args: Sequence[Any] = ()) -> None:
        """Show results to who compares worlds; of a graph's functions, too, which are none of PyTorch."""
        if self.observe is None:
            return
        nested = (argument if isinstance(argument, (tuple, list)) else (argument,) for argument in args)
        inputs = [tensor for several in nested for tensor in several if isinstance(tensor, Tensor)]
        for output in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(output, Tensor):
                self.observe(name, user_line(self.path), output, mark_of(output), inputs)

    def _leave(self) -> Callable[[], None]:
        place = self.engine.place
        states = place.random_states()
        place.set_random_states(self._outside)
        return lambda: place.set_random_states(states)

    def __enter__(self) -> StockCalls:
        """A forward pass begins: number its calls anew, and seed PyTorch's generator from the run's seed and the epoch.

        PyTorch has one generator for a process: another rank of this process finds it where it was.
        """
        self._rows.dropout.begin()
        self.told.clear()
        self._trains = torch.is_grad_enabled()
        self._outside = self._outside or self.engine.place.random_states()
        self._passes.append(self.group.putting_away(self._leave))
        self._passes[-1].__enter__()
        torch.manual_seed(int(np.random.SeedSequence((self.engine.seed, self.engine.epoch)).generate_state(1)[0]))
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        """The generator goes on where it was, and what was made of edges for this pass alone goes."""
        session = None if self.session is None else self.session()
        if session is not None:
            session.passing.clear()
        super().__exit__(*error)
        self._passes.pop().__exit__(None, None, None)
        if self._outside:
            self.engine.place.set_random_states(self._outside)
        self._outside = []

    def _sizes(self, tensor: Tensor, mark: Mark) -> torch.Size:
        """A tensor's shape, in which the number of rows is a count."""
        with torch._C.DisableTorchFunction():
            sizes = list(tensor.shape)
        if mark.rows is not None:
            count = self._places.count(mark.rows, mark.number)
        else:
            count = Count(mark.number, lambda: int(self.group.sum_(torch.tensor(mark.number))), "nodes", None, (mark.set, 1, 0))
        sizes[mark.dim] = count if mark.is_single else count * (mark.parts * mark.before)
        return torch.Size(sizes)

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Calls inside are seen as the module's own, while one of the module's is under way."""
        torch.overrides._push_mode(self)
        try:
            yield
        finally:
            torch.overrides._pop_mode()

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        known = _KNOWN.get(func)
        if known is None:
            known = _KNOWN[func] = _Function.of(func)
        if known.tells_size and (mark := mark_of(args[0] if args else kwargs["input"])) is not None:
            sizes = self._sizes(args[0] if args else kwargs["input"], mark)
            if known.name in ("numel", "nelement"):
                return math.prod(sizes)
            dim = args[1] if len(args) > 1 else kwargs.get("dim")
            return sizes if dim is None else sizes[dim]
        if known.is_arithmetic and Ends not in types and any(isinstance(arg, Count) for arg in args):
            args = tuple(arg.total if isinstance(arg, Count) else arg for arg in args)
        if known.passes:
            if known.name == "register_hook" and self.group.world > 1 and mark_of(args[0]) is not None and is_users_call():
                self._check_hook(*args)
            if known.reads and self.group.world > 1 and mark_of(args[0]) is not None and is_users_call():
                raise self.refused(f"'{known.name}' gives numbers of this worker's rows alone", f"{known.name} of rows", *_READING)
            return func(*args, **kwargs)
        if self._trains:
            check_recomputed()
        if any(issubclass(kind, Lazy) for kind in types):
            return lazy_call(self, known.name, func, args, kwargs)
        if (
            known.name in ("ones", "zeros", "full", "expand")
            and (made := made_of_edges(known.name, args, kwargs)) is not NotImplemented
        ):
            return made
        if self.told:
            args, kwargs = map_values((args, kwargs), self._with_told)
        if Mailbox in types:
            return func(*args, **kwargs)
        temporary = known.name == "add" and is_temporary(args)
        if EdgeTensor in types and not known.always:
            if (noted := noted_call(func, args, kwargs)) is not NotImplemented:
                return noted
            args, kwargs = values_of((args, kwargs))
        if known.writes or (kwargs and ("inplace" in kwargs or "out" in kwargs)):
            _check_writes(known.name, args, kwargs, self.path)
        marked = marked_in(args, kwargs)
        if not marked and not known.always and self.observe is None and not _has_count(args, kwargs):
            out = func(*args, **kwargs)
            if self.group.world > 1:
                self._alike((args, kwargs), out)
            return out
        if self.narrows and len(marked) > 1:
            args, kwargs, marked = of_last_layer(args, kwargs, marked)
        call = Call(known.name, func, args, kwargs, marked, self.watched, temporary)
        out = NotImplemented
        if known.handler is not None and (marked or known.always):
            out = known.handler(self._rows, call)
        if out is NotImplemented:
            out = self._judged(known, call)
        elif isinstance(out, Tensor) and mark_of(out) is None and marked:
            if known.name in KEEPS_ROWS:
                set_mark(out, mark_of(call.argument(0, "input")), shared=False)
            else:
                groups = Groups()
                verdict = verdict_of(func, args, kwargs, groups)
                if verdict.is_known and all(told.kind == "rows" for told in verdict.outs):
                    carry(call, out, verdict.outs, groups)
                else:
                    out = self._judged(known, call)
        if self.observe is not None and not is_own_call():
            self.seen(known.name, out, (*args, *kwargs.values()))
        return out

    def _judged(self, known: _Function, call: Call) -> Any:
        """What a call gives, once a trial has told what it does to rows."""
        func, args, kwargs = call.func, call.args, call.kwargs
        if kwargs.get("out", self) is None:  # Python's wrappers hand it on
            kwargs = call.kwargs = {key: value for key, value in kwargs.items() if key != "out"}
        if "out" in kwargs:
            return self._written_to_out(known, call)
        groups, writes = Groups(), known.writes or bool(kwargs.get("inplace"))
        verdict = verdict_of(func, args, kwargs, groups, writes=writes, rule=known.rule)
        if self.group.world > 1:
            self._alike((args, kwargs))
        if not call.marked and not groups.numbers:
            return func(*args, **kwargs)
        if verdict.by_totals:
            args, kwargs = call.args, call.kwargs = _totals_in(args), _totals_in(kwargs)
        if verdict.is_random and not call.marked and all(out.dim == -1 for out in verdict.outs):  # of a fixed shape
            return func(*_totals_in(args), **_totals_in(kwargs))
        if verdict.is_random and not verdict.why:
            return self._drawn(known, call, verdict, groups)
        alone = self.group.world == 1
        if call.marked and not all(told.kind in ("rows", "others", "alike") for told in verdict.outs):
            self.folds_rows = True
        if not alone:
            self._check_numbered(call, verdict, groups)
        if not call.marked and all(out.kind == "other" for out in verdict.outs) and not verdict.returns_numbers:
            out = func(*args, **kwargs)
            return set_mark(out, self._numbered(known.name, out, groups), shared=False) if isinstance(out, Tensor) and out.dim() else out
        if alone or (verdict.is_known and all(out.kind in ("rows", "others", "alike") for out in verdict.outs)):
            out = self._rows_of(call, verdict) if not writes and _has_none(call.marked) else func(*args, **kwargs)
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
            return func(*args, **kwargs)
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
            return call.func(*call.args, **call.kwargs)
        except RuntimeError:
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
        return _unwrapped(func) if in_python and func not in self._inside else None

    def _again(self, call: Call, inner: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        self._inside.append(call.func)
        try:
            return call.again(lambda: inner(*args, **kwargs))
        finally:
            self._inside.pop()

    def _folded(self, known: _Function, call: Call, verdict: Verdict, groups: Groups) -> Any:
        """A fold over the rows of all workers, in the place of one over this worker's."""
        func, args, kwargs = call.func, call.args, call.kwargs
        if any(out.kind == "other" for out in verdict.outs) or verdict.returns_numbers:
            mark = mark_of(call.argument(0, "input"))
            over = OverWorkers(self.group, None if mark is None else mark.dim)
            assert known.rule is not None
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

        out = func(*args, **kwargs)
        out = over_workers(out) if isinstance(out, Tensor) else map_values(out, over_workers)
        carry(call, out, verdict.outs, groups)
        return out

    def _folded_in_place(self, known: _Function, call: Call, verdict: Verdict, groups: Groups) -> Any:
        """The same of a function that writes to its first argument."""
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

    def _written_to_out(self, known: _Function, call: Call) -> Any:
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

    def _drawn(self, known: _Function, call: Call, verdict: Verdict, groups: Groups) -> Any:
        """Random numbers for rows, by original ids."""
        told = verdict.outs[0] if len(verdict.outs) == 1 else Out("other")
        without_limits = known.name == "random_" and len(call.args) < 2
        if known.draws is None or told.dim < 0 or without_limits:
            if (inner := self._made_of(call.func)) is not None:
                return self._again(call, inner, call.args, call.kwargs)
            raise self.refused(
                f"{known.name} draws numbers for the rows of this worker, which differ with the number of workers",
                f"{known.name} of rows of the graph",
                "dropout; rand, randn, bernoulli, normal, exponential and their kin, in place or not, which are drawn by original id",
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

    def _compare(self, tensor: Tensor) -> None:
        values = tensor.detach().to_dense() if tensor.layout != torch.strided else tensor.detach()
        own = torch.tensor([zlib.crc32(repr((tuple(tensor.shape), tensor.dtype)).encode()), self.group.rank], dtype=torch.int64)
        with contextlib.suppress(RuntimeError):  # within torch.vmap and the like there are no numbers to compare
            raw = values.resolve_conj().contiguous().reshape(-1).view(torch.uint8).cpu().numpy() if values.numel() else b""
            own[1] = zlib.crc32(raw) + self.group.world
        if any(not torch.equal(own, other) for other in self.group.gather(own)):
            raise self.refused(
                "A tensor that is not the same on all workers, and that no function of PyTorch's has made here, meets rows or others",
                f"shape {list(tensor.shape)}, {tensor.dtype}",
                "parameters, buffers and constants; what PyTorch's functions make of the rows that forward gets",
                "numpy, TorchScript, torch.vmap and extensions of C++ see this worker's rows alone",
            )
        set_mark(tensor, None, shared=is_shared(tensor))

    def _with_told(self, value: Any) -> Any:
        """The number of rows in the place of what ``int(edge_index.max()) + 1`` gives."""
        if type(value) is not int or abs(value) < FIRST_TOLD:
            return value
        if value not in self.told:
            raise self.refused("The largest number of a node is not known here", f"a number made of edge_index.max()", "x.size(0)")
        return self.told[value]

    def _check_hook(self, tensor: Tensor, hook: Callable[[Tensor], Any]) -> None:
        """Refuse a hook that changes gradients of rows otherwise than row by row: nobody watches it."""
        verdict = verdict_of(hook, (tensor,), {}, Groups(), keep=False)
        if verdict.why or verdict.is_random or any(told.kind != "rows" for told in verdict.outs):
            raise self.refused(
                "A hook on rows changes their gradients otherwise than row by row",
                "register_hook",
                "hooks of which row i of the result depends on row i of the gradient",
            )

    def custom_function(self, function: Any, apply: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        """``apply(*args)`` of an autograd function of the module's own: row by row, also backward, or refused."""
        marked = marked_in(args, {})
        if not marked:
            return apply(*args)
        groups = Groups()
        verdict = verdict_of(_both_ways(function, apply), args, {}, groups)
        backward = iter(verdict.outs[len(verdict.outs) - sum(_has_gradient(arg) for arg in args) :])
        wrong = not verdict.is_known or any(out.kind != "rows" for out in verdict.outs[: verdict.outs and 1])
        for arg in args:
            if not wrong and _has_gradient(arg):
                told = next(backward)
                wrong = told.kind not in (("rows", "alike") if mark_of(arg) is not None else ("sum", "alike"))
        if wrong and self.group.world > 1:
            raise self.refused(
                f"The autograd function '{function.__name__}' is not computed row by row, forward and backward",
                f"{function.__name__}.apply of rows",
                "functions whose row i, and its gradient, depends on row i alone; gradients of parameters are sums over rows",
                verdict.why or None,
            )
        call = Call(function.__name__, apply, args, {}, marked, self.watched)
        out = apply(*args)
        carry(call, out, verdict.outs, groups)
        return out

    def refused(self, what: str, given: str, allowed: str | None = None, hint: str | None = None) -> ConfigError:
        """The error about a call, with the user's line."""
        return ConfigError(what, given=f"{user_line(self.path)}: {given}", allowed=allowed, hint=hint)

    def _why_not(self, known: _Function, call: Call, verdict: Verdict) -> ConfigError:
        name = known.name.strip("_")
        if any(out.kind == "other" and out.dim == PAIRS for out in verdict.outs):
            return self.refused(
                f"'{known.name}' joins each row with all others, and a worker has some of them alone",
                f"{known.name} of rows with rows",
                "sums over rows, such as k.t() @ v; message passing over edges; attention among a row's own parts",
            )
        if name in _PICKS:
            return self.refused(
                "Rows are picked by their number, which means other rows on each worker",
                f"{known.name} along the rows",
                "x[:n] with the graph's own number of a layer's rows; rows where a condition on rows holds; picks along other dimensions",
                "use a mask of rows, such as x[x[:, 0] > 0], or the graph's own functions",
            )
        if verdict.returns_numbers:
            return self.refused(f"'{known.name}' gives numbers of this worker's rows alone", f"{known.name} of rows", *_READING)
        return self.refused(
            f"'{name}' over node rows needs the rows of all workers in one place, or is not known to be computed row by row",
            f"{known.name} along the rows" + (f" ({verdict.why})" if verdict.why else ""),
            "sum, mean, std, var, norm, prod, max, min, softmax, logsumexp, losses and products over rows; any function of each row by "
            "itself",
        )


_READING = (
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
    size = next(size for size in _counts_in((call.args, call.kwargs)) if size.of is not None and size.of[0] == key)
    assert size.of is not None
    rows = key if isinstance(key, Rows) else None
    return Mark(rows, told.dim, (int(size) - size.of[2]) // size.of[1], parts=told.parts, set=key, before=told.before)


def _counts_in(value: Any) -> list[Count]:
    found: list[Count] = []
    map_values(value, lambda item: found.append(item) if isinstance(item, Count) else None)
    return found


def _has_count(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    for arg in (*args, *kwargs.values()) if kwargs else args:
        if isinstance(arg, Count) or (isinstance(arg, (tuple, list)) and any(isinstance(item, Count) for item in arg)):
            return True
    return False


def _totals_in(value: Any) -> Any:
    return map_values(value, lambda item: item.total if isinstance(item, Count) else item)


def _has_none(marked: Sequence[tuple[Tensor, Mark]]) -> bool:
    return any(not mark.number for _, mark in marked)


def _with_one_row(value: Any) -> Any:
    """The same arguments with one row of ones where there are none."""

    def filled(item: Any) -> Any:
        mark = mark_of(item)
        if mark is None or mark.number:
            return item
        sizes = [mark.parts * mark.before if dim == mark.dim else size for dim, size in enumerate(item.shape)]
        return item.new_ones(sizes)

    return map_values(value, filled)


def _without_rows(value: Any) -> Any:
    """The same arguments with none of their rows."""

    def empty(item: Any) -> Any:
        mark = mark_of(item)
        return item if mark is None else item.narrow(mark.dim, 0, 0)

    return map_values(value, empty)


def _unseen_in(value: Any) -> list[Tensor] | None:
    """Tensors among arguments that nothing is known of."""
    found: list[Tensor] | None = None
    if isinstance(value, Tensor):
        return None if is_known(value) or isinstance(value, nn.Parameter) else [value]
    if isinstance(value, (tuple, list)):
        for item in value:
            if (unseen := _unseen_in(item)) is not None:
                found = [*(found or ()), *unseen]
    elif isinstance(value, dict):
        return _unseen_in(list(value.values()))
    return found


_UNWRAPPED: dict[Any, Callable[..., Any]] = {}


def _unwrapped(func: types.FunctionType) -> Callable[..., Any]:
    """A function of PyTorch's in Python that calls what it is made of, instead of asking who else would compute it."""
    if func not in _UNWRAPPED:
        asks = dict.fromkeys(("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic"), lambda *_: False)
        made = types.FunctionType(func.__code__, func.__globals__ | asks, func.__name__, func.__defaults__, func.__closure__)
        made.__kwdefaults__ = func.__kwdefaults__
        _UNWRAPPED[func] = made
    return _UNWRAPPED[func]


def _has_gradient(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


_BOTH_WAYS: dict[Any, Callable[..., Any]] = {}


def _both_ways(function: Any, apply: Callable[..., Any]) -> Callable[..., Any]:
    """A function's results and its gradients for each argument, of a loss that is a sum over rows."""
    if function not in _BOTH_WAYS:

        def both(*args: Any) -> Any:
            with torch.enable_grad():
                leaves = [arg.detach().requires_grad_() if _has_gradient(arg) else arg for arg in args]
                out = apply(*leaves)
                results = tensors_of(out)
                loss = sum(result.cos().sum() for result in results if result.requires_grad)
                wanted = [leaf for leaf in leaves if _has_gradient(leaf)]
                grads = torch.autograd.grad(loss, wanted, allow_unused=True)
            zeros = (torch.zeros_like(leaf) if grad is None else grad for leaf, grad in zip(wanted, grads, strict=True))
            return (*[result.detach() for result in results], *zeros)

        _BOTH_WAYS[function] = both
    return _BOTH_WAYS[function]


def see_custom_functions() -> None:
    """Let ``StockCalls`` see what PyTorch shows to no mode: ``apply`` of autograd functions. Once is enough."""
    if getattr(torch.autograd.Function.apply, "is_seen", False):
        return
    stock = torch.autograd.Function.__dict__["apply"].__func__

    def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
        mode = torch.overrides._get_current_function_mode() if torch._C._len_torch_function_stack() else None
        if isinstance(mode, StockCalls) and not kwargs and not cls.__module__.startswith(("sargnn.", "torch.")):
            with torch.overrides._pop_mode_temporarily():
                return mode.custom_function(cls, types.MethodType(stock, cls), args)
        return stock(cls, *args, **kwargs)

    apply.is_seen = True  # type: ignore[attr-defined]
    torch.autograd.Function.apply = classmethod(apply)  # type: ignore[assignment, method-assign]


def length(value: Any) -> Any:
    """``len(value)``; of rows in a module's forward a ``Count``, which Python's own gives to nobody."""
    if isinstance(value, (Lazy, EdgeTensor)) or mark_of(value) is not None:
        return value.shape[0]
    return len(value)


def count_lengths(module: nn.Module) -> None:
    """Let ``len(x)`` be the number of all workers' rows in the files of the user's that a module's classes stand in."""
    for part in {type(part) for part in module.modules()}:
        for kind in part.__mro__:
            for function in vars(kind).values():
                names = getattr(inspect.unwrap(function) if callable(function) else None, "__globals__", None)
                if names is not None and not is_library(str(names.get("__file__", "<"))):
                    names.setdefault("len", length)


def _writes_to_first(name: str) -> bool:
    """Whether a function of this name writes to its first argument."""
    if name.startswith("__"):
        return name in ("__setitem__", "__set__") or (name.startswith("__i") and name not in _NO_ASSIGNMENTS)
    return name.endswith("_") and name not in _ONLY_NAMES


def _check_writes(name: str, args: tuple[Any, ...], kwargs: dict[str, Any], path: str | None) -> None:
    """Refuse to write to an input of the module or a field of the graph, which others read.

    Args:
        name: of the function.
        args, kwargs: of the call.
        path: the user's file.
    """
    written: tuple[Any, ...] = ()
    if _writes_to_first(name) or kwargs.get("inplace"):
        written = args[:1] or tuple(kwargs.values())[:1]
    if "out" in kwargs:
        out = kwargs["out"]
        written = (*written, *(out if isinstance(out, (list, tuple)) else (out,)))
    if any(is_shared(tensor) for tensor in written):
        raise ConfigError(
            "A module may not write to its input or to a field of the graph: others read the same memory",
            given=f"{user_line(path)}: {name}" + (" with inplace=True" if kwargs.get("inplace") else ""),
            allowed="operations that give a new tensor",
            hint="use the operation that is not in place, or write to x.clone()",
        )


def check_recomputed() -> None:
    """Refuse calls below ``torch.utils.checkpoint``, which makes them again in backward, where nobody watches them.

    Masks would be drawn by row number there, and statistics taken over a worker's rows.
    """
    frame, inside = sys._getframe(1), False
    while frame is not None:
        name = frame.f_code.co_filename
        if not inside:
            inside = name == _CHECKPOINT
        elif name != _CHECKPOINT and not is_library(name):
            raise ConfigError(
                "torch.utils.checkpoint calls a module again in backward, where dropout and batch norm are no longer those of "
                "all workers",
                given=f"{name} line {frame.f_lineno}: checkpoint",
                allowed="the call without it",
                hint="mode=sar keeps no rows of other workers for backward; more workers hold fewer rows each",
            )
        frame = frame.f_back  # type: ignore[assignment]


_READS = frozenset("item tolist __bool__ __float__ __int__ __index__ __complex__ numpy __array__ __contains__ __len__".split())
"""Functions that tell numbers of a tensor, not only about it."""
_PASSING = _READS | frozenset(
    "size dim ndimension numel nelement stride element_size is_contiguous is_floating_point is_complex is_signed get_device "
    "__repr__ __format__ __hash__ backward retain_grad data_ptr _set_grad_enabled is_same_size storage_offset untyped_storage "
    "requires_grad_ register_hook".split()
)
_PICKS = frozenset(
    "getitem index_select flip flipud roll rot90 narrow select split chunk tensor_split unbind gather take take_along_dim".split()
)
"""What is said to pick rows by their number, where it is refused."""
_ARITHMETIC = frozenset(
    "add sub rsub mul div true_divide divide multiply subtract pow radd rmul rtruediv truediv rpow tensor as_tensor floordiv rfloordiv "
    "floor_divide mod rmod remainder fmod eq ne lt le gt ge".split()
)
_TENSOR_PROPERTIES = frozenset("T mT H mH data real imag".split())


@dataclass(frozen=True)
class _Function:
    """What is to be done about a function of PyTorch, told by its name.

    Attributes:
        name: as PyTorch calls it; a property's own.
        passes: nothing, ever.
        tells_size: it tells the shape.
        is_arithmetic: a number of rows among its arguments is one to calculate with: that of all workers.
        always: something also where no argument has a mark.
        writes: to its first argument.
        reads: it passes, but tells numbers of a tensor.
        makes: it makes a tensor of a size that is given, and reads no numbers of its argument.
        gives_nothing: it writes to its first argument and returns nothing.
        handler: what is done instead, if it applies.
        rule: how it is computed over all workers where it is a fold.
        draws: how its random numbers are drawn.
    """

    name: str
    passes: bool
    tells_size: bool
    is_arithmetic: bool
    always: bool
    writes: bool
    reads: bool
    makes: bool
    gives_nothing: bool
    handler: Handler | None
    rule: Rule | None
    draws: DrawRule | None

    @classmethod
    def of(cls, func: Any) -> _Function:
        """Looked up once for each function."""
        name = getattr(func, "__name__", str(func))
        passes = name in _PASSING
        if name == "__get__":
            name = func.__self__.__name__
            passes = name not in _TENSOR_PROPERTIES
        return cls(
            name,
            passes,
            name in ("size", "shape", "numel", "nelement"),
            name.strip("_") in _ARITHMETIC,
            name in ALWAYS,
            _writes_to_first(name),
            name in _READS,
            name.startswith("new_"),
            name in ("__setitem__", "__set__"),
            HANDLERS.get(name),
            RULES.get(name),
            DRAWS.get(name),
        )


_KNOWN: dict[Any, _Function] = {}


def describe_replaced(module: nn.Module) -> list[str]:
    """What of a user's module is computed otherwise than by itself, for the log: its dropouts and its batch norms, by name."""

    def named(kinds: Any) -> list[tuple[str, Any]]:
        return [(name or type(part).__name__, part) for name, part in module.named_modules() if isinstance(part, kinds)]

    dropouts = [f"{name} (p = {part.p:g})" for name, part in named(nn.Dropout) if type(part) is nn.Dropout]
    norms = [name for name, _ in named((nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d))]
    lines = []
    if dropouts:
        lines.append(f"nn.Dropout {', '.join(dropouts)}: masks are drawn by original id")
    if norms:
        lines.append(f"nn.BatchNorm {', '.join(norms)}: statistics are over the rows of all workers")
    return lines
