"""OGB's datasets by name: raw files are used where they lie, and fetched where they do not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from filelock import FileLock

from sargnn.errors import DataError, StoreError
from sargnn.graph.dataset import FORMAT_VERSION, Reader
from sargnn.graph.store import Store
from sargnn.sources.ogb.binary import BinaryOgbDir
from sargnn.sources.ogb.csv_tables import OgbDir
from sargnn.sources.ogb.download import address_of, fetch, unpack
from sargnn.sources.ogb.layouts import named_folder
from sargnn.sources.ogb.typed import TypedOgbDir
from sargnn.sources.settings import OGB_NAMES, OgbConfig
from sargnn.steps import step


class _Layout(NamedTuple):
    """Which reader, and the release that is read."""

    reader: Callable[[OgbConfig, Path], Reader]
    release: int


_LAYOUTS = {
    "ogbn-products": _Layout(OgbDir, 1),
    "ogbn-arxiv": _Layout(OgbDir, 1),
    "ogbn-papers100M": _Layout(BinaryOgbDir, 1),
    "ogbn-mag": _Layout(TypedOgbDir, 2),
}


def ogb_named(config: OgbConfig) -> Reader:
    """The reader of the dataset's folder, which is fetched if it is missing.

    Raises:
        DataError: it is missing and cannot be fetched; or it is another dataset, or of another release.
    """
    folder, layout = named_folder(config.name, config.root), _LAYOUTS[config.name]
    other = folder.name.replace("_", "-")
    if other in OGB_NAMES and other != config.name:
        raise DataError(f"'{folder}' is the folder of {other}.", given=f"dataset={config.name}", hint=f"dataset={other}")
    if not (folder / "raw").is_dir():
        _fetch(config, folder)
    wanted = f"RELEASE_v{layout.release}.txt"
    releases = sorted(path.name for path in folder.glob("RELEASE_v*.txt"))
    if releases and wanted not in releases:
        raise DataError(f"'{folder}' holds another release of {config.name}.", given=", ".join(releases), allowed=wanted)
    return layout.reader(config, folder)


def made_before(config: OgbConfig, stores: Path) -> Path | None:
    """The newest store that was made from this very folder with the same settings, if its raw files are gone; else None."""
    folder = named_folder(config.name, config.root)
    if (folder / "raw").is_dir():
        return None
    wanted = {"add_inverse_edges": config.add_inverse_edges, "normalize_features": config.normalize_features}
    candidates: list[tuple[float, Path]] = []
    for path in stores.glob(f"{config.name}-*"):
        try:
            made_by = Store(path, "dataset", FORMAT_VERSION).meta["made_by"]
            same = all(made_by[key] == value for key, value in wanted.items())
            here = all(Path(file).is_relative_to(folder) for file in made_by["files"])
        except (StoreError, KeyError, TypeError, AttributeError):
            continue
        same &= made_by.get("homogenize", False) == config.homogenize and made_by.get("task") == config.task
        if same and here:
            candidates.append((path.stat().st_mtime, path))
    if not candidates:
        return None
    step(f"the raw files of {config.name} are gone: using the store that was made from them")
    return max(candidates)[1]


def _fetch(config: OgbConfig, folder: Path) -> None:
    address = address_of(config.name)
    archive = folder.parent / Path(address).name
    by_hand = f"fetch {address} where there is a network, and put it at {archive}, or its content at {folder}"
    if folder.exists():
        raise DataError(f"'{folder}' holds no raw files.", hint=f"remove it to have it fetched; or {by_hand}")
    if not archive.exists() and not config.download:
        raise DataError(
            f"The raw files of {config.name} are not there.", given=str(folder), hint=f"dataset.download=true; or {by_hand}"
        )
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder.with_name(f".{folder.name}.lock")).acquire()  # one process fetches, others wait
    except (OSError, NotImplementedError) as error:
        raise DataError(f"'{folder.parent}' cannot be written or locked: {error}", hint=by_hand) from error
    with lock:
        if (folder / "raw").is_dir():
            return  # another process was faster
        given = archive.exists()
        if not given:
            fetch(address, archive, by_hand)
        unpack(archive, folder)
        if not given:
            archive.unlink()
