"""What a module may not do with rows that are spread over workers: one message with the user's file and line."""

from __future__ import annotations

import os
import sys
from typing import Any

import torch

from sargnn.errors import ConfigError
from sargnn.modules.tag import is_library, is_shared, mark_of, user_line
from sargnn.modules.tag_rules import Call, counts_up, row_index

RANDOM = frozenset(
    "bernoulli rand_like randn_like randint_like normal poisson multinomial binomial normal_ uniform_ bernoulli_ exponential_ "
    "random_ cauchy_ log_normal_ geometric_ gumbel_softmax native_dropout".split()
)
"""Functions that draw a number for each element of a tensor."""
RANDOM_IN_TRAINING = frozenset(
    "alpha_dropout feature_alpha_dropout dropout1d dropout2d dropout3d feature_dropout rrelu rrelu_ lstm gru rnn_tanh rnn_relu "
    "multi_head_attention_forward scaled_dot_product_attention alpha_dropout_ feature_alpha_dropout_ feature_dropout_".split()
)
"""Functions that do so in training, or with a probability."""
PICKS = frozenset("__getitem__ index_select flip flipud roll rot90".split())
"""Functions that pick or move rows by their number."""
_CHECKPOINT = os.path.join(os.path.dirname(torch.__file__), "utils", "checkpoint.py")
_ONLY_NAMES = frozenset("rename_ share_memory_".split())
_NO_ASSIGNMENTS = frozenset("__invert__ __index__ __int__ __iter__ __init__".split())


def writes_to_first(name: str) -> bool:
    """Whether a function of this name writes to its first argument."""
    if name.startswith("__"):
        return name in ("__setitem__", "__set__") or (name.startswith("__i") and name not in _NO_ASSIGNMENTS)
    return name.endswith("_") and name not in _ONLY_NAMES


def check_writes(name: str, args: tuple[Any, ...], kwargs: dict[str, Any], path: str | None) -> None:
    """Refuse to write to an input of the module or a field of the graph, which others read.

    Args:
        name: of the function.
        args, kwargs: of the call.
        path: the user's file.
    """
    written: tuple[Any, ...] = ()
    if writes_to_first(name) or kwargs.get("inplace"):
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


def check_random(call: Call, path: str | None) -> None:
    """Refuse random numbers for rows that are not drawn by original id."""
    name = call.name
    if name in RANDOM_IN_TRAINING and not _draws(call):
        return
    raise ConfigError(
        f"{name} draws numbers for the rows of this worker, which differ with the number of workers",
        given=f"{user_line(path)}: {name} of rows of the graph",
        allowed="F.dropout and nn.Dropout, whose masks are drawn by original id; random numbers of a fixed shape",
        hint="use nn.Dropout" + (", or set this call's dropout to 0" if name in RANDOM_IN_TRAINING else ""),
    )


def _draws(call: Call) -> bool:
    """Whether a call of ``RANDOM_IN_TRAINING`` is random with its arguments."""
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


def check_picks(call: Call, path: str | None) -> None:
    """Refuse to pick or to move rows by their number, which means other rows on each of several workers."""
    mark = mark_of(call.args[0]) if call.args else None
    if mark is None:
        return
    if call.name in ("__getitem__", "index_select"):
        item, _ = row_index(call, mark)
        numbered = isinstance(item, int) or _numbers_rows(item)
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


def _numbers_rows(item: Any) -> bool:
    """Whether an index is made of row numbers that are not the first ones in their order."""
    if isinstance(item, (slice, type(None))) or mark_of(item) is not None:
        return False
    return torch.as_tensor(item).dtype != torch.bool and not counts_up(item)
