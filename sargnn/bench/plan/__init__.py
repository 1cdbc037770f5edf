"""``sargnn bench plan``: what the planner says before a run beside what the run measures."""
