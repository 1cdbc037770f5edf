"""A graph: its nodes and edges, what edges carry, and the stores that keep it."""
