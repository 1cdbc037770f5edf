"""A user's module calls PyTorch; what that means for rows that are spread over workers.

``StockCalls`` is entered around ``module.forward(graph, x)`` and sees each call of a PyTorch function:

| call | becomes |
|---|---|
| dropout of rows | drawn by original id (``row_calls.py``) |
| batch norm in training | statistics over the rows of all workers (``row_operators.py``) |
| linear maps, ReLU, ELU, sums of tables | the engine's fused operators, outside of a baseline mode |
| any, all, counts over rows | the same answer on all workers (``row_calls.py``) |
| writes to inputs, other random numbers for rows, picks of rows by number | refused in one message with the user's line |
| any other | PyTorch's own |

and notes on each result what its rows are (``tag_rules.py``). Code of this package that is called from a module's forward runs
outside of it (``session.paused``). Nothing here knows a graph, or what a function's result is.
"""

from __future__ import annotations

import math
import os
import sys
import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from sargnn.engine.aggregate import Engine
from sargnn.errors import ConfigError
from sargnn.modules.edge_fields import EdgeTensor, noted_call, values_of
from sargnn.modules.lazy import Ends, Lazy
from sargnn.modules.lazy_calls import lazy_call, made_of_edges
from sargnn.modules.row_calls import ALWAYS, DRAWN, HANDLERS, Handler, RowCalls, RowDropout, is_temporary, rows_asked_for
from sargnn.modules.row_operators import RowOperators
from sargnn.modules.row_reductions import SumOverWorkers
from sargnn.modules.session import Places, Session
from sargnn.modules.tag import Count, Mark, Rows, is_library, is_own_call, is_shared, mark_of, set_mark, user_line
from sargnn.modules.tag_rules import (
    CONTRACTIONS,
    PAIRING,
    RULES,
    Call,
    Rule,
    counts_up,
    is_contracted,
    marked_in,
    of_last_layer,
    pairs_rows,
    row_by_row,
    row_index,
)
from sargnn.rng import Draw

Observe = Callable[[str, str, Tensor, Mark | None, Sequence[Tensor]], None]
"""(function, the user's line, the result, where its rows are (None: it is the same on all workers), the arguments)."""
RANDOM = frozenset(
    "bernoulli rand_like randn_like randint_like normal poisson multinomial binomial normal_ uniform_ bernoulli_ exponential_ "
    "random_ cauchy_ log_normal_ geometric_ gumbel_softmax native_dropout".split()
)
"""Functions that draw a number for each element of a tensor."""
_RANDOM_IN_TRAINING = frozenset(
    "alpha_dropout feature_alpha_dropout dropout1d dropout2d dropout3d feature_dropout rrelu rrelu_ lstm gru rnn_tanh rnn_relu "
    "multi_head_attention_forward scaled_dot_product_attention alpha_dropout_ feature_alpha_dropout_ feature_dropout_".split()
)
"""Functions that do so in training, or with a probability."""
_PICKS = frozenset("__getitem__ index_select flip flipud roll rot90".split())
"""Functions that pick or move rows by their number."""
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

    def _sizes(self, tensor: Tensor, mark: Mark, rows: Rows) -> torch.Size:
        """A tensor's shape, in which the number of rows is a count."""
        with torch._C.DisableTorchFunction():
            sizes = list(tensor.shape)
        if sizes[mark.dim] == mark.number:
            sizes[mark.dim] = self._places.count(rows, mark.number)
        return torch.Size(sizes)

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        known = _KNOWN.get(func)
        if known is None:
            known = _KNOWN[func] = _Function.of(func)
        if known.tells_size and (mark := mark_of(args[0])) is not None and mark.rows is not None:
            sizes = self._sizes(args[0], mark, mark.rows)
            if known.name in ("numel", "nelement"):
                return Count(math.prod(int(size) for size in sizes), math.prod(_totals(sizes)), None)
            dim = args[1] if len(args) > 1 else kwargs.get("dim")
            return sizes if dim is None else sizes[dim]
        if known.is_arithmetic and Ends not in types and any(isinstance(arg, Count) for arg in args):
            args = tuple(arg.total if isinstance(arg, Count) else arg for arg in args)
        if known.passes:
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
        if known.name == "rand" and len(args) == 1 and type(args[0]) is int:
            args = (self.told.get(args[0], args[0]),)
        temporary = known.name == "add" and is_temporary(args)
        if EdgeTensor in types and not known.always:
            if (noted := noted_call(func, args, kwargs)) is not NotImplemented:
                return noted
            args, kwargs = values_of((args, kwargs))
        if known.writes or (kwargs and ("inplace" in kwargs or "out" in kwargs)):
            _check_writes(known.name, args, kwargs, self.path)
        marked = marked_in(args, kwargs)
        if not marked and not known.always and self.observe is None:
            return func(*args, **kwargs)
        if self.narrows and len(marked) > 1:
            args, kwargs, marked = of_last_layer(args, kwargs, marked)
        call = Call(known.name, func, args, kwargs, marked, temporary)
        if known.name == "rand" and (drawn := known.handler(self._rows, call)) is not NotImplemented:  # type: ignore[misc]
            return drawn
        if known.is_random and (marked or rows_asked_for(call) is not None):
            _check_random(call, self.path)
        if marked and known.picks and self.group.world > 1:
            _check_picks(call, self.path)
        if marked and self.group.world > 1:
            if known.name in PAIRING and pairs_rows(call):
                raise ConfigError(
                    f"'{known.name}' joins each row with all others, and a worker has some of them alone",
                    given=f"{user_line(self.path)}: {known.name} of rows with rows",
                    allowed="sums over rows, such as k.t() @ v; message passing over edges; attention among a row's own parts",
                )
            if known.name in _WRITING_ROWS and mark_of(args[0]) is None and isinstance(args[0], Tensor) and args[0].dim():
                set_mark(args[0], Mark(None, 0, len(args[0]), "rows were written into a table"), shared=False)
        out = NotImplemented
        if known.handler is not None and (marked or known.always):
            out = known.handler(self._rows, call)
        if out is NotImplemented:
            out = func(*args, **kwargs)
            if marked and known.rule in CONTRACTIONS and self.group.world > 1 and is_contracted(call, out):
                out = SumOverWorkers.apply(self.group, out)
        if marked:
            _carry(known.rule, call, out)
        if self.observe is not None and not is_own_call():
            self.seen(known.name, out, (*args, *kwargs.values()))
        return out


def _carry(rule: Rule, call: Call, out: Any) -> None:
    """Note on results what their rows are, and whether others read their memory."""
    shared = [t.untyped_storage()._cdata for t, _ in call.marked if is_shared(t) and t.layout == torch.strided]
    for index, output in enumerate(out if isinstance(out, (tuple, list)) else (out,)):
        if not isinstance(output, Tensor) or any(output is tensor for tensor, _ in call.marked):
            continue
        mark = rule(call, output, index)
        is_view = bool(shared) and output.layout == torch.strided and output.untyped_storage()._cdata in shared
        if mark is not None or is_view:
            set_mark(output, mark or mark_of(output), shared=is_view)


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


def _check_random(call: Call, path: str | None) -> None:
    """Refuse random numbers for rows that are not drawn by original id."""
    name = call.name
    if name in _RANDOM_IN_TRAINING and not _draws(call):
        return
    raise ConfigError(
        f"{name} draws numbers for the rows of this worker, which differ with the number of workers",
        given=f"{user_line(path)}: {name} of rows of the graph",
        allowed="F.dropout and nn.Dropout, whose masks are drawn by original id; random numbers of a fixed shape",
        hint="use nn.Dropout" + (", or set this call's dropout to 0" if name in _RANDOM_IN_TRAINING else ""),
    )


def _draws(call: Call) -> bool:
    """Whether a call of ``_RANDOM_IN_TRAINING`` is random with its arguments."""
    name, args = call.name, call.args
    if name in ("lstm", "gru", "rnn_tanh", "rnn_relu"):  # (..., has_biases, layers, dropout, train, bidirectional, ...)
        at = next((k for k, arg in enumerate(args) if isinstance(arg, float)), None)
        return at is not None and bool(args[at]) and bool(args[at + 1]) and args[at - 1] > 1
    if name == "scaled_dot_product_attention":
        return bool(call.argument(4, "dropout_p", default=0))
    if name == "multi_head_attention_forward":
        return bool(args[10] if len(args) > 10 else call.kwargs.get("dropout_p")) and call.kwargs.get("training", True)
    if name.startswith("rrelu"):
        return bool(call.argument(3, "training", default=False))
    return bool(call.argument(1, "p", default=0.5)) and bool(call.argument(2, "training", "train", default=True))


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


def _check_picks(call: Call, path: str | None) -> None:
    """Refuse to pick or to move rows by their number, which means other rows on each of several workers."""
    mark = mark_of(call.args[0]) if call.args else None
    if mark is None:
        return
    if call.name in ("__getitem__", "index_select"):
        item, _ = row_index(call, mark)
        numbered = isinstance(item, int)
        if not isinstance(item, (int, slice, type(None))) and mark_of(item) is None:  # else the first rows in their order
            numbered = torch.as_tensor(item).dtype != torch.bool and not counts_up(item)
    else:
        given = 0 if call.name == "flipud" else call.kwargs.get("dims", call.args[-1] if len(call.args) > 1 else None)
        ndim = call.args[0].dim()
        dims = range(ndim) if given is None else [given] if isinstance(given, int) else given
        numbered = mark.dim in [dim % ndim for dim in dims]
    if numbered:
        raise ConfigError(
            "Rows are picked by their number, which means other rows on each worker",
            given=f"{user_line(path)}: {call.name} along the rows",
            allowed="the first rows, x[:n]; rows where a condition on rows holds; picks along other dimensions",
            hint="use a mask of rows, such as x[x[:, 0] > 0], or the graph's own functions",
        )


_PASSING = frozenset(
    "size dim ndimension numel nelement stride element_size is_contiguous is_floating_point is_complex get_device __len__ item "
    "tolist __bool__ __float__ __int__ __index__ __repr__ __format__ __hash__ numpy backward register_hook retain_grad "
    "data_ptr _set_grad_enabled is_same_size storage_offset untyped_storage new_tensor __contains__".split()
)


def _totals(sizes: Sequence[int]) -> list[int]:
    return [size.total if isinstance(size, Count) else size for size in sizes]


_WRITING_ROWS = frozenset("__setitem__ index_copy_ index_put_ copy_ scatter_".split())
_ARITHMETIC = frozenset(
    "add sub rsub mul div true_divide divide multiply subtract pow radd rmul rtruediv truediv rpow tensor as_tensor".split()
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
        is_random: it draws a number for each element of a tensor, perhaps in training only.
        picks: rows by their number, or moves them.
        handler: what is done instead, if it applies.
        rule: which mark a result gets.
    """

    name: str
    passes: bool
    tells_size: bool
    is_arithmetic: bool
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
        is_random = name in RANDOM or name in _RANDOM_IN_TRAINING or name in DRAWN
        handler, rule = HANDLERS.get(name), RULES.get(name, row_by_row)
        tells_size = name in ("size", "shape", "numel", "nelement")
        return cls(
            name,
            passes,
            tells_size,
            name.strip("_") in _ARITHMETIC,
            name in ALWAYS,
            _writes_to_first(name),
            is_random,
            name in _PICKS,
            handler,
            rule,
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
