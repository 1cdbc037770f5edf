"""A user's module calls PyTorch; what that means for rows that are spread over workers.

``StockCalls`` is entered around a module's forward and sees each call of a PyTorch function:

| call | becomes |
|---|---|
| dropout of rows | drawn by original id (``row_calls.py``) |
| batch norm in training | statistics over the rows of all workers (``row_operators.py``) |
| linear maps, ReLU, ELU, sums of tables | the engine's fused operators, outside of a baseline mode |
| any other | as a trial says (``judged_calls.py``) |
| writes to inputs | refused in one message with the user's line |

and notes on each result what its rows are (``call.py``). Code of this package that a module's forward calls runs
outside of it (``session.paused``). Nothing here knows a graph.
"""

from __future__ import annotations

import math
import types
import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch
import torch.overrides
from torch import Tensor

from sargnn.engine.aggregate import Engine
from sargnn.modules.call import Call, Groups, answer, carry, marked_in, of_last_layer
from sargnn.modules.edge_calls import Mailbox
from sargnn.modules.expressions import map_values
from sargnn.modules.functions import (
    Function,
    both_ways,
    check_recomputed,
    check_writes,
    has_gradient,
    known_function,
)
from sargnn.modules.judged_calls import READING, JudgedCalls, has_count, totals_in
from sargnn.modules.lazy import EdgeRows, Ends, Folded, Lazy, numbers
from sargnn.modules.lazy_calls import lazy_call
from sargnn.modules.lazy_made import made_of_edges
from sargnn.modules.row_calls import KEEPS_ROWS, RowCalls, RowDropout, is_temporary
from sargnn.modules.row_operators import RowOperators
from sargnn.modules.session import Places, Session
from sargnn.modules.tag import (
    FIRST_TOLD,
    Count,
    Mark,
    is_own_call,
    is_users_call,
    mark_of,
    set_mark,
    user_line,
)
from sargnn.modules.trial import verdict_of
from sargnn.rng import Draw

Observe = Callable[[str, str, Tensor, Mark | None, Sequence[Tensor]], None]
"""(function, the user's line, the result, where its rows are (None: it is the same on all workers), the arguments)."""


class StockCalls(JudgedCalls):
    """Entered around one forward pass after the other of a user's module; see the module's text.

    Args:
        places: whose rows the module's tensors are.
        path: the user's file, for messages.
        observe: called with every result, for comparisons of worlds.

    Attributes:
        told: numbers of rows that libraries were told as plain numbers, ``int(edge_index.max()) + 1``, and what they are.
        sizes: those that the module was told.
        draws_parameters: the pass gives parameters their shapes, and draws them as the module's constructor goes on.
        narrows: whether rows of a layer beside rows of a later one are those that the latter are, as PyG's modules expect.
    """

    def __init__(self, engine: Engine, places: Places, *, path: str | None, observe: Observe | None = None) -> None:
        super().__init__()
        self.places = places
        self.session: weakref.ref[Session] | None = None
        self.told: dict[int, Count] = {}
        self.sizes: set[int] = set()
        self.draws_parameters = False
        self.narrows = False
        self.engine, self.group, self.path, self.observe = engine, places.group, path, observe
        operators = RowOperators(engine)
        self._rows = RowCalls(places, operators, RowDropout(engine, places, operators, path))
        self._trains = False
        self._outside: list[Tensor] = []
        self._passes: list[AbstractContextManager[None]] = []
        self._inside: list[Any] = []
        self._compares, self._compared = False, set[bool]()
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
            if isinstance(output, Tensor) and not isinstance(output, Lazy):
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
        self.sizes.clear()
        self._trains = torch.is_grad_enabled()
        self._compares = (
            self.group.world > 1 and self.observe is None and self._trains not in self._compared
        )  # else who observes does
        if self._compares:
            self._compared.add(self._trains)
        self._outside = self._outside or self.engine.place.random_states()
        self._passes.append(self.group.putting_away(self._leave))
        self._passes[-1].__enter__()
        if not self.draws_parameters:
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
            count = self.places.count(mark.rows, mark.number)
        else:
            total = int(self.group.sum_(torch.tensor(mark.number)))
            count = Count(mark.number, total, "nodes", None, (mark.set, 1, 0))
        sizes[mark.dim] = count if mark.is_single else count * (mark.parts * mark.before)
        return torch.Size(sizes)

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        known = known_function(func)
        if known.tells_size and (mark := mark_of(args[0] if args else kwargs["input"])) is not None:
            sizes = self._sizes(args[0] if args else kwargs["input"], mark)
            if known.name in ("numel", "nelement"):
                return math.prod(sizes)
            dim = args[1] if len(args) > 1 else kwargs.get("dim")
            return sizes if dim is None else sizes[dim]
        if known.is_arithmetic and Ends not in types and has_count(args, kwargs):
            args, kwargs, self.folds_rows = totals_in(args), totals_in(kwargs), True
        if known.differentiates and (self.group.world > 1 or kwargs.get("create_graph") or len(args) > 4):
            what = "of gradients" if kwargs.get("create_graph") or len(args) > 4 else "in a forward"
            raise self.refused(
                f"Gradients {what} are not computed over workers",
                f"'{known.name}'" + (" with create_graph=True" if what == "of gradients" else ""),
                "a loss without gradients of its own; world=1 with gradients of what forward makes",
            )
        if known.passes:
            if known.name in ("register_hook", "retain_grad"):
                args = (numbers(args[0]), *args[1:])
            if known.name == "register_hook" and self.group.world > 1 and mark_of(args[0]) is not None and is_users_call():
                self._check_hook(*args)
            if known.reads and self.group.world > 1 and _has_rows(known, args[0]) and is_users_call():
                raise self.refused(
                    f"'{known.name}' gives numbers of this worker's rows alone", f"{known.name} of rows", *READING
                )
            return func(*args, **kwargs)
        if self._trains:
            check_recomputed()
        if self._compares and is_users_call():
            self.compare_numbers(known.name, args, kwargs)
        if self.told:
            args, kwargs = map_values((args, kwargs), self._with_told)
        if Mailbox in types:
            return func(*args, **kwargs)
        if any(issubclass(kind, Lazy) for kind in types):
            return lazy_call(self, known, func, args, kwargs)
        if (
            known.name in ("ones", "zeros", "full", "expand", "new_zeros", "new_ones", "new_full")
            and (made := made_of_edges(known.name, args, kwargs, self.sizes)) is not NotImplemented
        ):
            return made
        temporary = known.name == "add" and is_temporary(args)
        if known.writes or (kwargs and ("inplace" in kwargs or "out" in kwargs)):
            check_writes(known.name, args, kwargs, self.path)
        marked = marked_in(args, kwargs)
        if not marked and not known.always and self.observe is None and not has_count(args, kwargs):
            out = func(*args, **kwargs)
            if self.group.world > 1:
                self._alike((args, kwargs), out)
            return out
        if self.narrows and len(marked) > 1:
            args, kwargs, marked = of_last_layer(args, kwargs, marked)
        call = Call(known.name, func, args, kwargs, marked, self.watched, temporary)
        out = NotImplemented
        if known.handler is not None and (marked or known.always):
            out = answer(known.handler, self._rows, call, args=args, kwargs=kwargs)
            self.folds_rows |= known.name in ("batch_norm", "instance_norm") and out is not NotImplemented
        if out is NotImplemented:
            out = self.judged(known, call)
        elif isinstance(out, Tensor) and mark_of(out) is None and marked:
            if known.name in KEEPS_ROWS:
                set_mark(out, mark_of(call.argument(0, "input")), shared=False)
            else:
                groups = Groups()
                verdict = verdict_of(func, args, kwargs, groups)
                if verdict.is_known and all(told.kind == "rows" for told in verdict.outs):
                    carry(call, out, verdict.outs, groups)
                else:
                    out = self.judged(known, call)
        if self.observe is not None and not is_own_call():
            self.seen(known.name, out, (*args, *kwargs.values()))
        return out

    def _with_told(self, value: Any) -> Any:
        """The number of rows in the place of what ``int(edge_index.max()) + 1`` gives."""
        if type(value) is not int or abs(value) < FIRST_TOLD:
            return value
        if value not in self.told:
            raise self.refused(
                "The largest number of a node is not known here", "a number made of edge_index.max()", "x.size(0)"
            )
        return self.told[value]

    def _check_hook(self, tensor: Tensor, hook: Callable[[Tensor], Any]) -> None:
        """Refuse a hook that changes gradients of rows otherwise than row by row: nobody watches it."""
        verdict = verdict_of(hook, (tensor,), {}, Groups(), keep=False)
        if verdict.is_random or any(told.kind != "rows" for told in verdict.outs):
            raise self.refused(
                "A hook on rows changes their gradients otherwise than row by row",
                "register_hook",
                "hooks of which row i of the result depends on row i of the gradient",
            )

    def custom_function(self, function: Any, apply: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        """``apply(*args)`` of an autograd function of the module's own: row by row, also backward, or refused."""
        args = map_values(args, numbers)
        if any(isinstance(arg, Lazy) for arg in args):
            raise self.refused("An autograd function reads the numbers of the edges' nodes", f"{function.__name__}.apply")
        marked = marked_in(args, {})
        if not marked:
            return apply(*args)
        groups = Groups()
        verdict = verdict_of(both_ways(function, apply), args, {}, groups)
        given = [arg for arg in args if has_gradient(arg)]
        results, grads = verdict.outs[: len(verdict.outs) - len(given)], verdict.outs[len(verdict.outs) - len(given) :]
        wrong = not verdict.is_known or any(told.kind != "rows" for told in results)
        for arg, told in zip(given, grads, strict=not wrong):
            wrong = wrong or told.kind not in (("rows", "alike") if mark_of(arg) is not None else ("sum", "alike"))
        if wrong and self.group.world > 1:
            raise self.refused(
                f"The autograd function '{function.__name__}' is not computed row by row, forward and backward",
                f"{function.__name__}.apply of rows",
                "functions whose row i, and its gradient, depends on row i alone; gradients of parameters are sums over rows",
                verdict.why or None,
            )
        call = Call(function.__name__, apply, args, {}, marked, self.watched)
        out = apply(*args)
        carry(call, out, results, groups)
        return out


def _has_rows(known: Function, value: Any) -> bool:
    """Whether a function that reads numbers would read those of this worker's rows alone."""
    return mark_of(value) is not None or (isinstance(value, (EdgeRows, Folded)) and known.name != "__len__")


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
