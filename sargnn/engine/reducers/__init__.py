"""Reducers: the mathematics of folding one shard's messages into an accumulator, and back."""

REDUCERS = {
    "sum": "sargnn.engine.reducers.sum:Sum",
    "mean": "sargnn.engine.reducers.sum:Mean",
    "max": "sargnn.engine.reducers.max:Max",
    "lstm": "sargnn.engine.reducers.lstm:Lstm",
    "gat": "sargnn.engine.reducers.gat:Gat",
    "rgcn": "sargnn.engine.reducers.rgcn:Rgcn",
    "relation_sum": "sargnn.engine.reducers.rgcn:RelationSum",
    "gatv2": "sargnn.engine.reducers.gat:GatV2",
}
