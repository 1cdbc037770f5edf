"""Dataset stores used in place: those that other commands made, or that were copied from another machine."""

from __future__ import annotations

from pathlib import Path

from sargnn.errors import ConfigError, StoreError
from sargnn.graph.dataset import FORMAT_VERSION, open_dataset
from sargnn.graph.manifest import MANIFEST
from sargnn.graph.store import Store
from sargnn.sources.settings import StoredConfig


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
    """The folder of the store.

    Raises:
        StoreError: it holds no dataset store, or a damaged one.
        ConfigError: another one than was asked for.
    """
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
