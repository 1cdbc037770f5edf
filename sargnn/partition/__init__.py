"""Partitioning: which worker owns which node, how good that is, and the store each worker opens."""

PARTITIONERS = {
    "metis": "sargnn.partition.metis:assign",
    "kaminpar": "sargnn.partition.kaminpar:assign",
    "stream": "sargnn.partition.stream:assign",
    "auto": "sargnn.partition.simple:assign_auto",
    "random": "sargnn.partition.simple:assign_random",
    "range": "sargnn.partition.simple:assign_range",
    "given": "sargnn.partition.simple:assign_given",
}
