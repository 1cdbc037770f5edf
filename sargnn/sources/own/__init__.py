"""A user's own graph: from a folder of arrays, from a function in Python, or given as an object."""
