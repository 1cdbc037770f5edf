"""Linear and node-wise operators between aggregations: one interface, a stock and a fused implementation."""
