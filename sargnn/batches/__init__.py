"""Which training nodes are computed together: the groups of a worker's targets that are its micro-batches.

A group costs what it reaches. Rows that several groups reach are computed in each of them, so targets with common neighbours
belong together (Yang et al., "Betty", ASPLOS 2023).
"""

GROUPINGS = {
    "star": "sargnn.batches.star:group_by_star",
    "reg": "sargnn.batches.reg:group_by_reg",
    "metis": "sargnn.batches.whole:group_by_whole",
    "random": "sargnn.batches.simple:group_at_random",
    "range": "sargnn.batches.simple:group_in_order",
}
"""Name -> function like ``sargnn.batches.simple.group_at_random``. All but ``random`` and ``range`` look at edges."""
