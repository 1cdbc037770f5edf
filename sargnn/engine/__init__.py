"""The engine: one aggregation call that joins training modes, reducers and kernels."""
