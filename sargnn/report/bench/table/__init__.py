"""``sargnn bench table``: models, modes and worlds beside stock DGL and PyG in one process, from one run."""
