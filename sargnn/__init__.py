"""sargnn: exact, full-batch training of graph neural networks on graphs too large for one machine.

    run = sargnn.train("model=gat", world=4, graph=g)

``docs/howto/from-python.md`` shows all of it. Nothing below is imported before it is used.
``from sargnn import dgl`` gives DGL, which by itself does not import beside a current PyTorch; after it ``import dgl`` works.
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

PUBLIC = {
    "train": "sargnn.api.run",
    "load": "sargnn.api.run",
    "compare": "sargnn.api.run",
    "Run": "sargnn.api.run",
    "shard": "sargnn.api.shard",
    "GraphShard": "sargnn.api.shard",
    "Callback": "sargnn.api.process",
    "SargnnError": "sargnn.errors",
}
"""Name -> module. ``__init__.pyi`` has their types."""


def __getattr__(name: str) -> Any:
    if name == "dgl":
        return import_module("sargnn.interop.dgl").import_dgl()
    if name not in PUBLIC:
        raise AttributeError(f"module 'sargnn' has no attribute '{name}'")
    return getattr(import_module(PUBLIC[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *PUBLIC})
