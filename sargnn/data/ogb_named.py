"""OGB's datasets by name: raw files are used where they lie, and fetched where they do not."""

from __future__ import annotations

from pathlib import Path

from sargnn.data.dataset import Reader
from sargnn.data.download import address_of, fetch, unpack
from sargnn.data.ogb import ogb_dir
from sargnn.errors import DataError
from sargnn.sources import OgbConfig

_VERSIONS = {"ogbn-mag": 2}
"""Releases that are read; 1 if not named."""


def ogb_named(config: OgbConfig) -> Reader:
    """The reader of the dataset's folder, which is fetched if it is missing.

    Raises:
        DataError: it is missing and cannot be fetched; or it is of another release.
    """
    base = Path(config.root).expanduser().resolve()
    folder = base / config.name.replace("-", "_")
    if (base / "raw").is_dir():
        folder = base
    if not (folder / "raw").is_dir():
        _fetch(config, folder)
    wanted = f"RELEASE_v{_VERSIONS.get(config.name, 1)}.txt"
    found = sorted(path.name for path in folder.glob("RELEASE_v*.txt"))
    if found and wanted not in found:
        raise DataError(f"'{folder}' holds another release of {config.name}.", given=", ".join(found), allowed=wanted)
    return ogb_dir(config, folder)


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
