"""sargnn: exact, full-batch training of graph neural networks on graphs too large for one machine."""

__version__ = "0.1.0"
