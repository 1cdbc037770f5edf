"""From a dataset's configuration to its store: reused when the key matches or where it lies, made otherwise."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from sargnn.config.choices import DatasetReader, DatasetSettings, Task
from sargnn.config.fields import as_mapping
from sargnn.errors import ConfigError, StoreError
from sargnn.graph.dataset import FORMAT_VERSION, Dataset, InMemoryReader, open_dataset
from sargnn.graph.manifest import MANIFEST
from sargnn.graph.schema import task_of
from sargnn.graph.store import Store
from sargnn.resolve import describe_source
from sargnn.sources.links import LinkSplit
from sargnn.sources.settings import InMemoryDataset, StoredConfig
from sargnn.steps import step


def key_of(identity: dict[str, Any]) -> str:
    """12 hex digits of a JSON-able identity."""
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:12]


def prepare_dataset(config: DatasetSettings, store_dir: str, buffer_bytes: int = 8 * 10**9) -> Path:
    """The folder of the dataset's store, which is made if it does not exist.

    Args:
        store_dir: the folder of all stores.
        buffer_bytes: about how much memory making it may take, beside a few numbers per node.

    Raises:
        ConfigError: ``task=`` asks for another task than that of the dataset's labels; links cannot be drawn as configured.
    """
    config.check_links()
    stores = Path(store_dir) / "datasets"
    path = config.find_store(stores) or make_store(config.reader(), config.name, stores, buffer_bytes, _more(config))
    if config.link_split is not None:
        path = make_store(_links(config, path), config.name, stores, buffer_bytes)
    if config.task is not None and (task := _task_of(open_dataset(path, verify=False))) != config.task:
        raise ConfigError(
            f"The labels of '{config.name}' are of another task.",
            given=f"task={config.task}",
            allowed=f"task={task}",
            hint="leave task out: the labels' type says what it is",
        )
    return path


def _task_of(dataset: Dataset) -> Task:
    """What the labels of its edges are, or of its nodes."""
    pairs = dataset.pairs
    return dataset.task if pairs is None or pairs.labels is None else task_of(pairs.labels)


def dataset_path(config: DatasetSettings, store_dir: str) -> Path:
    """The folder of the dataset's store, which may not be there yet; nothing is made."""
    stores = Path(store_dir) / "datasets"
    path = config.find_store(stores) or _path_of(config.reader(), config.name, stores, _more(config))
    return path if config.link_split is None else _path_of(_links(config, path), config.name, stores)


def _links(config: DatasetSettings, base: Path) -> LinkSplit:
    """What draws the links of a dataset, whose store need not be there yet."""
    source = content_of(base) if isinstance(config, StoredConfig) else base.name
    return LinkSplit(base, source or base.name, config)


def _more(config: DatasetSettings) -> dict[str, Any]:
    return {"target": describe_source(config.target)} if config.target is not None and not config.reads_target else {}


def _path_of(reader: DatasetReader, name: str, stores: Path, more: Mapping[str, Any] = MappingProxyType({})) -> Path:
    return stores / f"{name}-{key_of({'format': FORMAT_VERSION, **reader.identity(), **more})}"


def make_store(
    reader: DatasetReader, name: str, stores: Path, buffer_bytes: int, more: Mapping[str, Any] = MappingProxyType({})
) -> Path:
    """The folder below ``stores`` of what ``reader`` writes, made if it does not exist. ``more``: JSON-able, decides it too."""
    path = _path_of(reader, name, stores, more)
    if not path.exists():
        step(f"making the store of {name}")
        reader.write(path, buffer_bytes)
    return path


def content_of(path: Path) -> str | None:
    """The content hash of a dataset store; None where there is none that can be opened."""
    try:
        return Store(path, "dataset", FORMAT_VERSION).content_hash
    except StoreError:
        return None


def name_of(path: Path) -> str | None:
    """The dataset's own name; None where there is no store that can be opened."""
    try:
        return open_dataset(path, verify=False).name
    except StoreError:
        return None


def find_stored(config: StoredConfig) -> Path:
    """The folder of the store. Raises ``StoreError``: it is none, or damaged; ``ConfigError``: not the one that was asked
    for."""
    path = Path(config.root)
    if not (path / MANIFEST).is_file():
        raise StoreError(
            f"'{path}' holds no dataset store.",
            given="no such folder" if not path.is_dir() else f"no {MANIFEST} in it",
            hint="dataset.root=FOLDER, which sargnn prepare, import-dgl or info names",
        )
    try:
        content = open_dataset(path, verify=False).content_hash
    except StoreError as error:  # nobody knows how it was made, so removing it is no help
        what = "\n".join(line for line in str(error).splitlines() if not line.startswith("  next:"))
        raise StoreError(what, hint=f"copy or make the store anew, or choose another than dataset.root={path}") from error
    if config.content is not None and content != config.content:
        raise ConfigError(
            f"The store '{path}' holds another dataset than the run is of.",
            given=f"content {content}",
            allowed=f"content {config.content}",
            hint="dataset.content=null takes what is there, in a run of its own",
        )
    return path


class SettingsReader(InMemoryReader):
    """For datasets outside the package: calls ``read`` of the settings, which all decide the content."""

    def __init__(self, settings: InMemoryDataset) -> None:
        self.settings = settings

    def identity(self) -> dict[str, Any]:
        settings = as_mapping(self.settings)
        return {
            key: value
            for key, value in settings.items()
            if key not in ("target", "add_self_loops", "loop_features", "edge_weights") and (key, value) != ("task", None)
        }

    def read(self) -> Dataset:
        return self.settings.read()
