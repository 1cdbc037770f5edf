"""``sargnn bench table``: models, modes and worlds beside stock DGL in one process, from one run."""
