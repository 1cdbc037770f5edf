"""A user's module calls PyTorch; what that means for rows that are spread over workers.

``StockCalls`` is entered around ``module.forward(graph, x)`` and sees each call of a PyTorch function:

| call | becomes |
|---|---|
| dropout of rows | drawn by original id (``row_dropout.py``) |
| batch norm in training | statistics over the rows of all workers (``row_operators.py``) |
| linear maps, ReLU, ELU, sums of tables | the engine's fused operators, outside of a baseline mode |
| any, all, counts over rows | the same answer on all workers (``combined.py``) |
| writes to inputs, other random numbers for rows, picks of rows by number | refused (``refusals.py``) |
| any other | PyTorch's own |

and notes on each result what its rows are (``marks.py``). Code of this package that is called from a module's forward runs
outside of it (``paused``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.overrides
from torch import Tensor
from torch.overrides import TorchFunctionMode

from sargnn.engine.aggregate import Engine
from sargnn.modules import mark_rules
from sargnn.modules.edges import EdgeTensor, noted_call, values_of
from sargnn.modules.marks import Mark, Marked, mark_of, marked_in, set_mark
from sargnn.modules.places import Places
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
from sargnn.modules.row_calls import ALWAYS, HANDLERS, Handler, RowCalls
from sargnn.modules.row_dropout import RowDropout
from sargnn.modules.row_operators import RowOperators
from sargnn.modules.rows import is_own_call, is_shared, share, user_line
from sargnn.modules.temporaries import is_temporary
from sargnn.rng import Draw

Observe = Callable[[str, str, Tensor, Mark | None, Sequence[Tensor]], None]
"""(function, the user's line, the result, where its rows are (None: it is the same on all workers), the arguments)."""


@contextmanager
def paused() -> Iterator[None]:
    """Calls inside are PyTorch's own: for code of this package that a user's forward calls."""
    if not torch._C._len_torch_function_stack():
        yield
        return
    with torch.overrides._pop_mode_temporarily():
        yield


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
        if marked:
            if known.is_random:
                check_random(known.name, args, kwargs, self.path)
            if known.picks and self.group.world > 1:
                check_picks(known.name, args, kwargs, self.path)
        out = NotImplemented
        if known.handler is not None and (marked or known.always):
            self._rows.is_temporary = temporary
            out = known.handler(self._rows, known.name, func, args, kwargs)
        if out is NotImplemented:
            out = func(*args, **kwargs)
        if marked:
            self._carry(known, out, args, kwargs, marked)
        if self.observe is not None and not is_own_call():
            self.seen(known.name, out, (*args, *kwargs.values()))
        return out

    def _carry(self, known: _Function, out: Any, args: tuple[Any, ...], kwargs: dict[str, Any], marked: Marked) -> None:
        """Note on results what their rows are, and whether others read their memory."""
        shared = [tensor for tensor, _ in marked if is_shared(tensor)]
        for index, output in enumerate(out if isinstance(out, (tuple, list)) else (out,)):
            if not isinstance(output, Tensor) or any(output is tensor for tensor, _ in marked):
                continue
            mark = known.rule(known.name, output, index, args, kwargs, marked)
            if mark is not None:
                set_mark(output, mark)
            if shared and any(_have_one_memory(output, tensor) for tensor in shared):
                share(output)


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
        passes: nothing, ever. always: something also where no argument has a mark.
        writes, is_random, picks: as ``refusals`` has them.
        handler: what is done instead, if it applies. rule: which mark a result gets.
    """

    name: str
    passes: bool
    always: bool
    writes: bool
    is_random: bool
    picks: bool
    handler: Handler | None
    rule: mark_rules.Rule

    @classmethod
    def of(cls, func: Any) -> _Function:
        """Looked up once for each function."""
        name = getattr(func, "__name__", str(func))
        passes = name in _PASSING
        if name == "__get__":
            name = func.__self__.__name__
            passes = name not in _TENSOR_PROPERTIES
        is_random = name in RANDOM or name in RANDOM_IN_TRAINING
        rule = mark_rules.RULES.get(name, mark_rules.default)
        return cls(name, passes, name in ALWAYS, writes_to_first(name), is_random, name in PICKS, HANDLERS.get(name), rule)


_KNOWN: dict[Any, _Function] = {}
