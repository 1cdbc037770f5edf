"""Partitioning: which worker owns which node, how good that is, and the store each worker opens."""

PARTITIONERS = {
    "metis": "sargnn.partition.metis:assign",
    "random": "sargnn.partition.simple:assign_random",
    "range": "sargnn.partition.simple:assign_range",
    "given": "sargnn.partition.given:assign_given",
}
