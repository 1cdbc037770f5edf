"""From a part to layer plans: message flows, samples, partial results, copies, groups of targets."""

GROUPINGS = {
    "star": "sargnn.plan.target_groups:group_by_star",
    "reg": "sargnn.plan.target_groups:group_by_reg",
    "metis": "sargnn.plan.target_groups:group_by_whole",
    "random": "sargnn.plan.target_groups:group_at_random",
    "range": "sargnn.plan.target_groups:group_in_order",
}
"""Name -> function like ``group_at_random``. All but ``random`` and ``range`` look at edges."""
