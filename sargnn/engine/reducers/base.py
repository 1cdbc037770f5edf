"""What a reducer is: pure mathematics on tensors, no communication, no knowledge of modes.

Letters: N input rows, M output rows, S source rows of a shard, F features.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from sargnn.kernels.base import Kernel
from sargnn.shards.plan import LayerPlan, Shard

Tensors = tuple[Tensor, ...]


@dataclass
class Saved:
    """What the backward pass gets to see.

    Attributes:
        sent, local, params: the call's tensors; empty where ``needs_src_in_backward`` is false, ``sent`` also where the mode
            has kept the rows in another form.
        out: the outputs; empty where ``needs_out_in_backward`` is false. ``backward_init`` may drop them, the largest that only
            it needs, which are then freed unless someone else keeps them.
        stats: what ``finish`` asked to keep.
    """

    sent: Tensors
    local: Tensors
    params: Tensors
    out: Tensors
    stats: Tensors


class Reducer(ABC):
    """Folds the messages of one shard after the other, in any order, into the output rows.

    Forward (paper, algorithm 1): ``state = init``; ``step`` for each shard; ``out, stats = finish``.
    Backward (algorithm 2): ``state = backward_init``; ``backward_step`` for each shard gives the errors of the shard's
    source rows; ``backward_finish`` gives those of ``local`` and ``params``.
    """

    name: str
    operation: str
    """The kernel operation that its steps need."""
    needs_src_in_backward: bool
    """The paper's case 2: errors depend on the source rows (attention, learned messages). False: case 1."""
    needs_out_in_backward: bool = False
    """Whether errors also depend on the output (attention's softmax)."""
    linear: bool = False
    """Whether it commutes with a linear map of the rows, so that a model may transform before it aggregates."""

    @abstractmethod
    def init(self, plan: LayerPlan, sent: Tensors, local: Tensors, params: Tensors) -> Any:
        """The empty accumulator. A reducer that says so may accumulate into a tensor of ``local`` and return it."""

    @abstractmethod
    def step(self, kernel: Kernel, shard: Shard, rows: Tensors, local: Tensors, params: Tensors, state: Any) -> None:
        """Fold one shard into ``state``, in place. ``rows``: [S, F_t] each, the shard's source rows."""

    @abstractmethod
    def finish(self, plan: LayerPlan, local: Tensors, params: Tensors, state: Any) -> tuple[Tensors, Tensors]:
        """The outputs [M, ...] and the statistics to keep for the backward pass."""

    @abstractmethod
    def backward_init(self, plan: LayerPlan, kernel: Kernel, saved: Saved, grads: Tensors) -> Any:
        """What ``backward_step`` starts from. ``grads``: the errors of the outputs; not to be written to."""

    @abstractmethod
    def backward_step(
        self, kernel: Kernel, shard: Shard, rows: Tensors | None, saved: Saved, state: Any, out: Tensors | None
    ) -> None:
        """Send errors back through one shard.

        Args:
            rows: the shard's source rows; None where ``needs_src_in_backward`` is false.
            out: [S, F_t] each, overwritten with the errors of the source rows; None if those are not wanted.
        """

    @abstractmethod
    def backward_finish(self, saved: Saved, state: Any) -> tuple[Tensors, Tensors]:
        """The errors of ``local`` and this worker's sums for ``params``."""

    @abstractmethod
    def autograd_forward(
        self, plan: LayerPlan, kernel: Kernel, shard: Shard, rows: Tensors, local: Tensors, params: Tensors
    ) -> Tensors:
        """The outputs from a merged shard in plain differentiable operators (``domain_parallel``, and the oracle)."""
