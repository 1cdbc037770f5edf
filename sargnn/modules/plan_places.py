"""Whose rows a table's rows are, as the layer plans of a view have them."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from sargnn.comm.group import Group
from sargnn.modules.rows import Rows
from sargnn.shards.plan import LayerPlan


class PlanPlaces:
    """The rows of the layers of one view (``messages.places.Places``).

    Args:
        plans: one per layer.
    """

    def __init__(self, group: Group, plans: Sequence[LayerPlan]) -> None:
        self.group, self._plans = group, plans

    def node_ids(self, rows: Rows) -> Tensor:
        """int64 [N], the original ids of the rows that layer ``rows.level`` reads, or that the last one gives."""
        if rows.type < 0 and rows.level < len(self._plans):  # of all types, in one table
            return self._plans[rows.level].joined.node_ids
        if rows.level < len(self._plans):
            plan = self._plans[rows.level]
            return plan.node_ids[plan.row_bounds[rows.type] : plan.row_bounds[rows.type + 1]]
        plan = self._plans[-1]
        return plan.self_rows(plan.node_ids)[plan.out_bounds[rows.type] : plan.out_bounds[rows.type + 1]]

    def edge_ids(self, rows: Rows) -> tuple[Tensor, Tensor]:
        """int64 [E] each, the original ids of the edges' sources and destinations."""
        plan = self._plans[rows.level]
        if rows.type < 0:  # of all relations
            return plan.joined.edge_ends()
        return (plan if plan.relations is None else plan.relations[rows.type]).edge_ends()
