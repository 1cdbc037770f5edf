"""Reducers: the mathematics of folding one shard's messages into an accumulator, and back."""

REDUCERS = {
    "sum": "sargnn.engine.reducers.sum:Sum",
    "mean": "sargnn.engine.reducers.mean:Mean",
    "max": "sargnn.engine.reducers.max:Max",
    "gat": "sargnn.engine.reducers.gat:Gat",
    "gatv2": "sargnn.engine.reducers.gat:GatV2",
}
