"""sargnn from Python: train, load and compare runs; a shard of a graph for an own loop."""
