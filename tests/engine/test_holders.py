"""PyTorch counts holders as the pool, gradients and the planner's record rely on; one that counts otherwise fails here."""

from __future__ import annotations

import torch

from sargnn.backends.memory import COUNTS, holders, is_held_once


def test_what_counts_as_a_holder_of_memory() -> None:
    assert COUNTS
    tensor = torch.zeros(3, 4)
    alone = holders(tensor)
    view = tensor[1:]
    assert holders(tensor) == holders(view) == alone + 1
    array = view.numpy()
    assert holders(tensor) == alone + 2  # an array holds the tensor that it was made of
    del view, array
    assert holders(tensor) == alone
    storage = tensor.untyped_storage()
    assert holders(tensor) == alone, "a bare storage does not count"
    del storage


def test_what_autograd_saves_holds_the_tensor() -> None:
    tensor, weight = torch.ones(3, 4), torch.ones(4, 2, requires_grad=True)
    assert is_held_once(tensor)
    out = tensor @ weight
    assert not is_held_once(tensor)
    del out
    assert is_held_once(tensor)


def test_who_holds_a_gradient() -> None:
    """In a backward function a gradient that nobody else has is held once; one that the caller kept is not."""
    seen = []

    class Asks(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: object, grad: torch.Tensor) -> torch.Tensor:
            seen.append((is_held_once(grad), holders(grad) == holders(torch.empty(1))))
            return grad * 2

    x = torch.ones(3, requires_grad=True)
    (Asks.apply(x) * 3).sum().backward()
    out = Asks.apply(x)
    kept = torch.ones(3)
    out.backward(kept)
    assert seen == [(True, True), (False, True)]
