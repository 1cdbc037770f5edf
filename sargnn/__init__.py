"""sargnn: exact, full-batch training of graph neural networks on graphs too large for one machine."""

from sargnn.interop import dgl_finder

__version__ = "0.1.0"

dgl_finder.install()
