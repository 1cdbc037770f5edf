"""Calling a user's message or reduce function: what it reads, what it has captured, and its random draws."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from sargnn.engine.reducers.generic import EdgeRun
from sargnn.modules.expressions import draw_mask, map_values
from sargnn.modules.refusals import check_recomputed
from sargnn.rng import Draw

_RANDOM = frozenset(
    """rand rand_like randn randn_like randint randint_like randperm bernoulli bernoulli_ multinomial normal normal_ uniform_
    random_ exponential_ geometric_ log_normal_ cauchy_ poisson alpha_dropout feature_alpha_dropout feature_dropout dropout1d
    dropout2d dropout3d rrelu""".split()
)


class Reads(Mapping[str, Tensor]):
    """Fields by name, made when they are read.

    Args:
        make: the field's rows. frame: whose names there are.
    """

    def __init__(self, make: Callable[[str], Tensor], frame: Mapping[str, Any]) -> None:
        self._make, self._frame = make, frame

    def __getitem__(self, name: str) -> Tensor:
        return self._make(name)

    def __contains__(self, name: object) -> bool:
        return name in self._frame

    def __iter__(self) -> Iterator[str]:
        return iter(self._frame)

    def __len__(self) -> int:
        return len(self._frame)


class EdgeCalls(TorchFunctionMode):
    """What a user's function of edges may not do by itself: draw random numbers, or take statistics.

    Args:
        draw: the draw of the function's k-th dropout with a probability. run: the edges; None for made-up ones.
        wrong: makes the error.
    """

    def __init__(self, draw: Callable[[int, float], Draw], run: EdgeRun | None, wrong: Callable[..., Exception]) -> None:
        super().__init__()
        self._draw, self._run, self._wrong = draw, run, wrong
        self._drops = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name == "dropout" or name == "dropout_":
            return self._dropped(*args, **kwargs)
        if name in _RANDOM:
            raise self._wrong(
                f"A function of edges calls '{name}', and random numbers would differ between workers.",
                hint="F.dropout and nn.Dropout are drawn by the edges' original ids",
            )
        if name == "batch_norm" and (kwargs.get("training") or (len(args) > 5 and args[5])):
            raise self._wrong(
                "A function of edges normalises over edges, and it is called with some of them at a time.",
                hint="normalise an edge field: graph.apply_edges(...), then graph.edata['e'] = self.norm(graph.edata['e'])",
            )
        return func(*args, **kwargs)

    def _dropped(self, values: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
        if not training or p == 0:
            return values
        check_recomputed()
        draw = self._draw(self._drops, p)
        self._drops += 1
        dropped = values * draw.scale if self._run is None else draw_mask(self._run, values, draw)
        return values.copy_(dropped) if inplace else dropped


class _Captures(TorchFunctionMode):
    """Notes tensors with gradients that were there before the calls."""

    def __init__(self, known: Iterable[Tensor]) -> None:
        super().__init__()
        self._known = {id(tensor): tensor for tensor in known}
        self.found: dict[int, Tensor] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        map_values((args, kwargs or {}), self._see)
        result = func(*args, **(kwargs or {}))
        map_values(result, self._made)
        return result

    def _see(self, value: Any) -> None:
        if isinstance(value, Tensor) and value.requires_grad and id(value) not in self._known:
            self.found[id(value)] = value

    def _made(self, value: Any) -> None:
        if isinstance(value, Tensor):
            self._known[id(value)] = value  # held, so that its id stays its own


def captured_tensors(
    call: Callable[[], Any], fields: Iterable[Tensor], calls: TorchFunctionMode
) -> tuple[Any, tuple[Tensor, ...]]:
    """What ``call()`` gives, and the tensors with gradients that it reads beside ``fields``.

    Args:
        fields: leaves, made while it runs. calls: entered around it.
    """
    captures = _Captures(())
    with captures, calls:
        returned = call()
    mine = {id(tensor) for tensor in fields}
    params = [tensor for tensor in captures.found.values() if id(tensor) not in mine]
    if not torch.is_grad_enabled():
        return returned, ()
    # Nodes are held: one that is not may be given the id of another.
    ends = [tensor.grad_fn for tensor in params if tensor.grad_fn is not None]
    seen = {id(end): end for end in ends}
    known = mine | {id(tensor) for tensor in params}
    todo: list[Any] = [tensor.grad_fn for tensor in _tensors(returned) if tensor.grad_fn is not None]
    while todo:
        node = todo.pop()
        if node is None or id(node) in seen:
            continue
        seen[id(node)] = node
        leaf = getattr(node, "variable", None)
        if leaf is not None and id(leaf) not in known:
            known.add(id(leaf))
            params.append(leaf)
        todo += [before for before, _ in node.next_functions]
    return returned, tuple(params)


def _tensors(values: Any) -> list[Tensor]:
    tensors: list[Tensor] = []
    map_values(values, lambda value: tensors.append(value) if isinstance(value, Tensor) else None)
    return tensors
