"""A user's module: any that was written for DGL, on a graph that is spread over workers."""
