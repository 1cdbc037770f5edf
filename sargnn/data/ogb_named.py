"""OGB's datasets by name: raw files are used where they lie, and fetched where they do not."""

from __future__ import annotations

from pathlib import Path

from sargnn.data.dataset import FORMAT_VERSION, Reader
from sargnn.data.download import address_of, fetch, unpack
from sargnn.data.ogb import ogb_dir
from sargnn.data.store import Store
from sargnn.errors import DataError, StoreError
from sargnn.sources import OgbConfig

_VERSIONS = {"ogbn-mag": 2}
"""Releases that are read; 1 if not named."""


def ogb_named(config: OgbConfig) -> Reader:
    """The reader of the dataset's folder, which is fetched if it is missing.

    Raises:
        DataError: it is missing and cannot be fetched; or it is of another release.
    """
    folder = folder_of(config)
    if not (folder / "raw").is_dir():
        _fetch(config, folder)
    wanted = f"RELEASE_v{_VERSIONS.get(config.name, 1)}.txt"
    found = sorted(path.name for path in folder.glob("RELEASE_v*.txt"))
    if found and wanted not in found:
        raise DataError(f"'{folder}' holds another release of {config.name}.", given=", ".join(found), allowed=wanted)
    return ogb_dir(config, folder)


def folder_of(config: OgbConfig) -> Path:
    """Where the dataset's raw files lie, or would."""
    base = Path(config.root).expanduser().resolve()
    return base if (base / "raw").is_dir() else base / config.name.replace("-", "_")


def made_before(config: OgbConfig, stores: Path) -> Path | None:
    """The newest store of the dataset made with the same settings, for one whose raw files are gone; else None."""
    if (folder_of(config) / "raw").is_dir():
        return None
    wanted = {"add_inverse_edges": config.add_inverse_edges, "normalize_features": config.normalize_features}
    found: list[tuple[float, Path]] = []
    for path in stores.glob(f"{config.name}-*"):
        try:
            made_by = Store(path, "dataset", FORMAT_VERSION).meta["made_by"]
        except (StoreError, KeyError):
            continue
        if all(made_by.get(key) == value for key, value in wanted.items()) and (
            made_by.get("homogenize", False) == config.homogenize
        ):
            found.append((path.stat().st_mtime, path))
    return max(found)[1] if found else None


def _fetch(config: OgbConfig, folder: Path) -> None:
    address = address_of(config.name)
    archive = folder.parent / Path(address).name
    by_hand = f"fetch {address} where there is a network, and put it at {archive}, or its content at {folder}"
    if not archive.exists():
        if not config.download:
            raise DataError(
                f"The raw files of {config.name} are not there.", given=str(folder), hint=f"dataset.download=true; or {by_hand}"
            )
        fetch(address, archive, by_hand)
    unpack(archive, folder)
