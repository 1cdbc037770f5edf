"""Functions of PyTorch: what is to be done about each; and what PyTorch shows to nobody.

Most functions need nothing here: a trial says what they do to rows (``trial.py``). Told by the name are those that ask about a
tensor, that write to it, and those that there is a handler or a rule for.
"""

from __future__ import annotations

import inspect
import os
import sys
import types
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from sargnn.errors import ConfigError
from sargnn.modules.call import tensors_of
from sargnn.modules.lazy import Lazy
from sargnn.modules.row_calls import ALWAYS, Handler, handler_of
from sargnn.modules.row_draws import DRAWS, DrawRule
from sargnn.modules.row_folds import RULES, Rule
from sargnn.modules.tag import is_library, is_shared, mark_of, user_line

_CHECKPOINT = os.path.join(os.path.dirname(torch.__file__), "utils", "checkpoint.py")
_ONLY_NAMES = frozenset("rename_ share_memory_".split())
_NO_ASSIGNMENTS = frozenset("__invert__ __index__ __int__ __iter__ __init__".split())

_UNWRAPPED: dict[Any, Callable[..., Any]] = {}


def unwrapped(func: types.FunctionType) -> Callable[..., Any]:
    """A function of PyTorch's in Python that calls what it is made of, instead of asking who else would compute it."""
    if func not in _UNWRAPPED:
        asks = dict.fromkeys(
            ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic"), lambda *_: False
        )
        made = types.FunctionType(func.__code__, func.__globals__ | asks, func.__name__, func.__defaults__, func.__closure__)
        made.__kwdefaults__ = func.__kwdefaults__
        _UNWRAPPED[func] = made
    return _UNWRAPPED[func]


def has_gradient(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


_BOTH_WAYS: dict[Any, Callable[..., Any]] = {}


def both_ways(function: Any, apply: Callable[..., Any]) -> Callable[..., Any]:
    """A function's results and its gradients for each argument, of a loss that is a sum over rows."""
    if function not in _BOTH_WAYS:

        def both(*args: Any) -> Any:
            with torch.enable_grad():
                leaves = [arg.detach().requires_grad_() if has_gradient(arg) else arg for arg in args]
                out = apply(*leaves)
                results = tensors_of(out)
                losses = [result.cos().sum() for result in results if result.requires_grad]
                wanted = [leaf for leaf in leaves if has_gradient(leaf)]
                grads = torch.autograd.grad(losses, wanted, allow_unused=True)
            zeros = (torch.zeros_like(leaf) if grad is None else grad for leaf, grad in zip(wanted, grads, strict=True))
            return (*[result.detach() for result in results], *zeros)

        _BOTH_WAYS[function] = both
    return _BOTH_WAYS[function]


def length(value: Any) -> Any:
    """``len(value)``; of rows in a module's forward a ``Count``, which Python's own gives to nobody."""
    if isinstance(value, Lazy) or mark_of(value) is not None:
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
    if name.startswith("__"):
        return name in ("__setitem__", "__set__") or (name.startswith("__i") and name not in _NO_ASSIGNMENTS)
    return name.endswith("_") and name not in _ONLY_NAMES


def check_writes(name: str, args: tuple[Any, ...], kwargs: dict[str, Any], path: str | None) -> None:
    """Refuse to write to an input of the module or a field of the graph, which others read."""
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
    """Refuse calls below ``torch.utils.checkpoint``, which makes them again in backward, where nobody watches them: masks would
    be drawn by row number, and statistics taken over a worker's rows."""
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
    "is_conj is_neg is_inference is_distributed dense_dim sparse_dim const_data_ptr "
    "__repr__ __format__ __hash__ backward retain_grad data_ptr _set_grad_enabled is_same_size storage_offset untyped_storage "
    "requires_grad_ register_hook".split()
)
PAIRING = frozenset("cdist scaled_dot_product_attention multi_head_attention_forward".split())
"""What is said to join each row with all others, where it is refused."""
PICKS = frozenset(
    "getitem index_select flip flipud roll rot90 narrow select split chunk tensor_split unbind gather take "
    "take_along_dim".split()
)
"""What is said to pick rows by their number, where it is refused."""
_ARITHMETIC = frozenset(
    "add sub rsub mul div true_divide divide multiply subtract pow radd rmul rtruediv truediv rpow tensor as_tensor new_tensor "
    "floordiv rfloordiv "
    "floor_divide mod rmod remainder fmod eq ne lt le gt ge".split()
)
_TENSOR_PROPERTIES = frozenset("T mT H mH data real imag".split())


class Function:
    """What is to be done about a function of PyTorch, told by its name.

    Attributes:
        name: as PyTorch calls it; a property's own.
        passes: nothing, ever.
        differentiates: it asks for gradients.
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

    def __init__(self, func: Any) -> None:
        name = getattr(func, "__name__", str(func))
        self.passes = name in _PASSING
        if name == "__get__":
            name = func.__self__.__name__
            self.passes = name not in _TENSOR_PROPERTIES
        self.name = str(name)
        self.differentiates = func in (torch.autograd.grad, Tensor.backward)
        self.tells_size = name in ("size", "shape", "numel", "nelement")
        self.is_arithmetic = name.strip("_") in _ARITHMETIC
        self.always = name in ALWAYS
        self.writes = _writes_to_first(name)
        self.reads = name in _READS
        self.makes = name.startswith("new_")
        self.gives_nothing = name in ("__setitem__", "__set__")
        self.handler: Handler | None = handler_of(func, name)
        self.rule: Rule | None = RULES.get(name)
        self.draws: DrawRule | None = DRAWS.get(name)


known_function = cache(Function)
"""What there is to be done about a function; looked up once for each."""


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
