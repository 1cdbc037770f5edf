"""``init_from``: a new run whose parameters start from another run's.

Parameters and buffers, such as batch norm's running statistics, are taken from a checkpoint; the optimizer's state, the epochs
and the figures are not. Nothing of the graph, the schedule or the precision need be the same, as long as names and shapes fit.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from sargnn.config.run import RunConfig
from sargnn.errors import ConfigError
from sargnn.graph.manifest import MANIFEST
from sargnn.graph.schema import Schema
from sargnn.graph.store import Store
from sargnn.models.base import Model
from sargnn.tracking.files import START
from sargnn.training import checkpoint

_KINDS = ("param/", "buffer/")
_SHOWN = 5


def open_start(config: RunConfig) -> Store:
    """The checkpoint that the launching process has found, the run's own copy where there is one.

    Raises:
        ConfigError: it is gone, or has changed.
    """
    own = Path(config.run_dir) / START if config.run_dir is not None else None
    path = own if own is not None and own.is_dir() else Path(str(config.init_from))
    if not (path / MANIFEST).is_file():
        raise ConfigError("The checkpoint that the run starts from is gone.", given=str(path), hint="start a new run")
    store = checkpoint.open_checkpoint(path, verify=False)
    if digest_of(store) != config.init_digest:
        raise ConfigError(
            "The checkpoint that the run starts from has changed since the run was made.",
            given=str(path),
            hint="start a new run: it takes the parameters as they are now",
        )
    return store


def check_start(config: RunConfig, model: Model, schema: Schema) -> None:
    """The parameters to start from fit a model, as it is before it has read its part of a graph of this schema.

    Raises:
        ConfigError: other names or shapes, the first of them listed; or, of a typed graph, other node types or relations.
    """
    store = open_start(config)
    there = {name: entry.shape for name, entry in store.files.items() if name.startswith(_KINDS)}
    here = {f"param/{name}": tuple(parameter.shape) for name, parameter in model.named_parameters()}
    here |= {f"buffer/{name}": tuple(buffer.shape) for name, buffer in model.named_buffers()}
    here |= {f"param/inputs.{name}": shape for name, shape in model.inputs.whole_tables().items()}
    wrong = [
        f"{name.partition('/')[2]}: {_shown(there.get(name))} there, {_shown(here.get(name))} here"
        for name in [*here, *sorted(set(there) - set(here))]
        if there.get(name) != here.get(name)
    ]
    if wrong:
        more = [f"and {len(wrong) - _SHOWN} more"] if len(wrong) > _SHOWN else []
        lines = "".join(f"\n    {line}" for line in wrong[:_SHOWN] + more)
        raise ConfigError(
            f"The parameters to start from do not fit this run's model.{lines}",
            given=f"init_from={config.init_from}",
            hint="dataset and model are those of this command, and must have the widths, classes and settings of that run",
        )
    theirs = store.meta.get("schema")  # older checkpoints do not say
    if schema.typed and theirs is not None and _types(theirs) != _types(schema.to_json()):
        raise ConfigError(
            "The parameters to start from belong to other node types or relations, or to another order of them.",
            given=f"init_from={config.init_from}, with {_named(theirs)}",
            allowed=_named(schema.to_json()),
        )


def digest_of(store: Store) -> str:
    """16 hex digits over the checksums of parameters and buffers."""
    digest = hashlib.sha256()
    for name in sorted(store.files):
        if name.startswith(_KINDS):
            digest.update(f"{name}:{store.files[name].sha256};".encode())
    return digest.hexdigest()[:16]


def _shown(shape: tuple[int, ...] | None) -> str:
    return "none" if shape is None else str(list(shape))


def _types(schema: dict[str, Any]) -> tuple[Any, Any]:
    return schema["node_types"], schema["relations"]


def _named(schema: dict[str, Any]) -> str:
    names = [f"{relation[1]}" for relation in schema["relations"]]
    return f"node types {', '.join(schema['node_types'])}; relations {', '.join(names)}"
