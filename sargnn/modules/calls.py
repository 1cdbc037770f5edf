"""A user's module calls PyTorch; what that means for rows that are spread over workers.

``StockCalls`` is entered around ``module.forward(graph, x)`` and sees each call of a PyTorch function:

| call | becomes |
|---|---|
| dropout of rows | drawn by original id (``row_dropout.py``) |
| batch norm in training | statistics over the rows of all workers (``row_operators.py``) |
| linear maps, ReLU, ELU, sums of tables | the engine's fused operators, outside of a baseline mode |
| any, all, counts over rows | the same answer on all workers (``row_calls.py``) |
| writes to inputs, other random numbers for rows, picks of rows by number | refused (``refusals.py``) |
| any other | PyTorch's own |

and notes on each result what its rows are (``tag_rules.py``). Code of this package that is called from a module's forward runs
outside of it (``session.paused``). Nothing here knows a graph, or what a function's result is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from sargnn.engine.aggregate import Engine
from sargnn.modules.edge_fields import EdgeTensor, noted_call, values_of
from sargnn.modules.refusals import (
    PICKS,
    RANDOM,
    RANDOM_IN_TRAINING,
    check_picks,
    check_random,
    check_recomputed,
    check_writes,
    writes_to_first,
)
from sargnn.modules.row_calls import ALWAYS, HANDLERS, Handler, RowCalls, is_temporary
from sargnn.modules.row_dropout import RowDropout
from sargnn.modules.row_operators import RowOperators
from sargnn.modules.session import Places
from sargnn.modules.tag import Mark, is_own_call, is_shared, mark_of, set_mark, user_line
from sargnn.modules.tag_rules import Call, Rule, marked_in, rule_of
from sargnn.rng import Draw

Observe = Callable[[str, str, Tensor, Mark | None, Sequence[Tensor]], None]
"""(function, the user's line, the result, where its rows are (None: it is the same on all workers), the arguments)."""


class StockCalls(TorchFunctionMode):
    """Entered around one forward pass after the other of a user's module; see the module's text.

    Args:
        engine: whose operators, seed and epoch are used.
        places: whose rows the module's tensors are.
        path: the user's file, for messages.
        observe: called with every result, for comparisons of worlds.
    """

    def __init__(self, engine: Engine, places: Places, *, path: str | None, observe: Observe | None = None) -> None:
        super().__init__()
        self.engine, self.group, self.path, self.observe = engine, places.group, path, observe
        operators = RowOperators(engine)
        self._rows = RowCalls(places.group, operators, RowDropout(engine, places, operators, path))
        self._trains = False
        self._outside: list[Tensor] = []
        self._passes: list[AbstractContextManager[None]] = []

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

    def begin(self) -> None:
        """A forward pass begins: number its calls anew, and seed PyTorch's generator from the run's seed and the epoch.

        PyTorch has one generator for a process: another rank of this process finds it where it was.
        """
        self._rows.dropout.begin()
        self._trains = torch.is_grad_enabled()
        self._outside = self._outside or self._states()
        self._passes.append(self.group.putting_away(self._leave))
        self._passes[-1].__enter__()
        torch.manual_seed(int(np.random.SeedSequence((self.engine.seed, self.engine.epoch)).generate_state(1)[0]))

    def end(self) -> None:
        """The generator goes on where it was."""
        self._passes.pop().__exit__(None, None, None)
        if self._outside:
            self._set(self._outside)
        self._outside = []

    def _states(self) -> list[Tensor]:
        """Of PyTorch's generators."""
        on_device = self.engine.device.type == "cuda"
        return [torch.get_rng_state(), *([torch.cuda.get_rng_state(self.engine.device)] if on_device else [])]

    def _set(self, states: list[Tensor]) -> None:
        torch.set_rng_state(states[0])
        if len(states) > 1:
            torch.cuda.set_rng_state(states[1], self.engine.device)

    def _leave(self) -> Callable[[], None]:
        states = self._states()
        self._set(self._outside)
        return lambda: self._set(states)

    def __enter__(self) -> StockCalls:
        self.begin()
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self.end()

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        known = _KNOWN.get(func)
        if known is None:
            known = _KNOWN[func] = _Function.of(func)
        if known.passes:
            return func(*args, **kwargs)
        if self._trains:
            check_recomputed()
        temporary = known.name == "add" and is_temporary(args)
        if EdgeTensor in types and not known.always:
            if (noted := noted_call(func, args, kwargs)) is not NotImplemented:
                return noted
            args, kwargs = values_of((args, kwargs))
        if known.writes or (kwargs and ("inplace" in kwargs or "out" in kwargs)):
            check_writes(known.name, args, kwargs, self.path)
        marked = marked_in(args, kwargs)
        if not marked and not known.always and self.observe is None:
            return func(*args, **kwargs)
        call = Call(known.name, func, args, kwargs, marked, temporary)
        if marked:
            if known.is_random:
                check_random(call, self.path)
            if known.picks and self.group.world > 1:
                check_picks(call, self.path)
        out = NotImplemented
        if known.handler is not None and (marked or known.always):
            out = known.handler(self._rows, call)
        if out is NotImplemented:
            out = func(*args, **kwargs)
        if marked:
            _carry(known.rule, call, out)
        if self.observe is not None and not is_own_call():
            self.seen(known.name, out, (*args, *kwargs.values()))
        return out


def _carry(rule: Rule, call: Call, out: Any) -> None:
    """Note on results what their rows are, and whether others read their memory."""
    shared = [tensor for tensor, _ in call.marked if is_shared(tensor)]
    for index, output in enumerate(out if isinstance(out, (tuple, list)) else (out,)):
        if not isinstance(output, Tensor) or any(output is tensor for tensor, _ in call.marked):
            continue
        mark, is_view = rule(call, output, index), any(_have_one_memory(output, tensor) for tensor in shared)
        if mark is not None or is_view:
            set_mark(output, mark or mark_of(output), shared=is_view)


def _have_one_memory(tensor: Tensor, other: Tensor) -> bool:
    return tensor.layout == other.layout == torch.strided and tensor.untyped_storage()._cdata == other.untyped_storage()._cdata


_PASSING = frozenset(
    "size dim ndimension numel nelement stride element_size is_contiguous is_floating_point is_complex get_device __len__ item "
    "tolist __bool__ __float__ __int__ __index__ __repr__ __format__ __hash__ numpy backward register_hook retain_grad "
    "data_ptr _set_grad_enabled is_same_size storage_offset untyped_storage new_tensor __contains__".split()
)
_TENSOR_PROPERTIES = frozenset("T mT H mH data real imag".split())


@dataclass(frozen=True)
class _Function:
    """What is to be done about a function of PyTorch, told by its name.

    Attributes:
        name: as PyTorch calls it; a property's own.
        passes: nothing, ever.
        always: something also where no argument has a mark.
        writes, is_random, picks: as ``refusals`` has them.
        handler: what is done instead, if it applies.
        rule: which mark a result gets.
    """

    name: str
    passes: bool
    always: bool
    writes: bool
    is_random: bool
    picks: bool
    handler: Handler | None
    rule: Rule

    @classmethod
    def of(cls, func: Any) -> _Function:
        """Looked up once for each function."""
        name = getattr(func, "__name__", str(func))
        passes = name in _PASSING
        if name == "__get__":
            name = func.__self__.__name__
            passes = name not in _TENSOR_PROPERTIES
        is_random = name in RANDOM or name in RANDOM_IN_TRAINING
        handler, rule = HANDLERS.get(name), rule_of(name)
        return cls(name, passes, name in ALWAYS, writes_to_first(name), is_random, name in PICKS, handler, rule)


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
