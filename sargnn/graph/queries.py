"""What is asked of a model whose rows depend on it: (head, relation, ?), as NBFNet and ULTRA read it.

Letters: N rows, Q queries, D numbers of a vector.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Queries:
    """The queries of one forward pass: which nodes does a relation lead to from each query's head?

    A query for heads, (?, relation, tail), is one of the inverse relation from the tail.

    Attributes:
        relations: int64 [Q], numbers of relations as ``edge_type`` has them; the same on all workers.
        is_head: [N, Q], 1 where a row is a query's head, else 0.
    """

    relations: Tensor
    is_head: Tensor

    @classmethod
    def of(cls, heads: Tensor, relations: Tensor, num_nodes: int, dtype: torch.dtype = torch.float32) -> Queries:
        """Those of a whole graph of N nodes in one process.

        Args:
            heads: int64 [Q], numbers of nodes.
            relations: int64 [Q].
        """
        is_head = torch.zeros(num_nodes, len(heads), dtype=dtype, device=heads.device)
        is_head[heads, torch.arange(len(heads), device=heads.device)] = 1
        return cls(relations, is_head)

    def __len__(self) -> int:
        """Q."""
        return len(self.relations)

    def at_heads(self, vectors: Tensor) -> Tensor:
        """[N, Q, D] of vectors [Q, D]: h_vq = x_q where v is the head of q, else 0."""
        return self.is_head.unsqueeze(2) * vectors
