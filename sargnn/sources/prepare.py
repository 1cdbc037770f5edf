"""From a dataset's configuration to its store: reused when the key matches, made otherwise."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sargnn.config.run import DatasetReader, DatasetSettings
from sargnn.errors import ConfigError
from sargnn.graph.dataset import FORMAT_VERSION, open_dataset
from sargnn.resolve import describe_source
from sargnn.steps import step


def key_of(identity: dict[str, Any]) -> str:
    """12 hex digits of a JSON-able identity."""
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:12]


def prepare_dataset(config: DatasetSettings, store_dir: str, buffer_bytes: int = 8 * 10**9) -> Path:
    """The folder of the dataset's store, which is made if it does not exist.

    Args:
        buffer_bytes: about how much memory making it may take, beside a few numbers per node.

    Raises:
        ConfigError: ``task=`` asks for another task than that of the dataset's labels.
    """
    path = _find_or_make(config, Path(store_dir) / "datasets", buffer_bytes)
    if config.task is not None and (task := open_dataset(path, verify=False).task) != config.task:
        raise ConfigError(
            f"The labels of '{config.name}' are of another task.",
            given=f"task={config.task}",
            allowed=f"task={task}",
            hint="leave task out: the labels' type says what it is",
        )
    return path


def dataset_path(config: DatasetSettings, store_dir: str) -> Path:
    """The folder of the dataset's store, which may not be there yet; nothing is made."""
    stores = Path(store_dir) / "datasets"
    return config.find_store(stores) or _path_of(config.reader(), config.name, stores, _more(config))


def _find_or_make(config: DatasetSettings, stores: Path, buffer_bytes: int) -> Path:
    if (path := config.find_store(stores)) is not None:
        return path
    return make_store(config.reader(), config.name, stores, buffer_bytes, _more(config))


def _more(config: DatasetSettings) -> dict[str, Any]:
    return {"target": describe_source(config.target)} if config.target is not None and not config.reads_target else {}


def _path_of(reader: DatasetReader, name: str, stores: Path, more: Mapping[str, Any] | None) -> Path:
    return stores / f"{name}-{key_of({'format': FORMAT_VERSION, **reader.identity(), **(more or {})})}"


def make_store(
    reader: DatasetReader, name: str, stores: Path, buffer_bytes: int, more: Mapping[str, Any] | None = None
) -> Path:
    """The folder below ``stores`` of what ``reader`` writes, which is made if it does not exist.

    Args:
        more: what else decides the content, JSON-able.
    """
    path = _path_of(reader, name, stores, more)
    if not path.exists():
        step(f"making the store of {name}")
        reader.write(path, buffer_bytes)
    return path
