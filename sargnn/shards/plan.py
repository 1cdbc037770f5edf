"""The layer plan: everything about the graph that one layer needs on one worker.

Letters: N input rows, M output rows, H halo rows, S source rows of a shard.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from sargnn.comm.exchange import HaloLists, Piece
from sargnn.kernels.block import EdgeBlock


@dataclass(frozen=True)
class Shard:
    """The edges from (a piece of) one partition's rows to the own rows.

    Attributes:
        peer: the source partition; the own rank for the local shard; -1 for the merged shard of all partitions.
        block: the edges. Its source rows are the piece's rows, for the local shard all own rows, for the merged one
            the own rows followed by all halo rows in rank order.
    """

    peer: int
    block: EdgeBlock


@dataclass(frozen=True)
class LayerPlan:
    """One layer's view of the graph on one worker. Passed with every call, so that layers may differ.

    Attributes:
        rank, world: this worker and the number of workers.
        num_rows: N. num_out: M, the rows that the layer computes.
        out_rows: int64 [M], which input row each output row is; None if they are the same.
        node_ids: int64 [N], original ids of the input rows.
        in_degrees: int64 [M], edges into each output row in the whole graph, as trained on (with the self-loop, if added).
        out_degrees: int64 [N], edges out of each input row in the whole graph, likewise.
        lists: which rows travel.
        shards: the own one, then one for each round of the exchange in its order, also where a round brings no rows; None for
            modes that work on one merged graph.
        merged: for modes that work on one merged graph; else None.
    """

    rank: int
    world: int
    num_rows: int
    num_out: int
    out_rows: Tensor | None
    node_ids: Tensor
    in_degrees: Tensor
    out_degrees: Tensor
    lists: HaloLists
    shards: dict[Piece, Shard] | None
    merged: Shard | None

    def self_rows(self, h: Tensor) -> Tensor:
        """The rows of ``h`` [N, F] that the output rows are: [M, F]."""
        return h if self.out_rows is None else h.index_select(0, self.out_rows)

    @property
    def halo_rows(self) -> int:
        """H."""
        return self.lists.halo_rows
