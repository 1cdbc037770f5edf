"""OGB's datasets: the reader of a folder; and by name: raw files are used where they lie, and fetched where they do not.

Archives are fetched from the addresses that OGB publishes: resumed where it broke off, checked, then unpacked. What is
published about an archive is its size, in the server's answer, and a checksum of every file in it, in the archive; both are
compared.
"""

from __future__ import annotations

import csv
import http.client
import importlib.util
import shutil
import threading
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable
from pathlib import Path
from queue import Empty, Queue
from typing import Any

from filelock import FileLock

from sargnn.errors import DataError, StoreError
from sargnn.graph.dataset import FORMAT_VERSION, Reader
from sargnn.graph.store import Store
from sargnn.sources.npz import ARCHIVE_ERRORS
from sargnn.sources.ogb.homogeneous import BinaryOgbDir, OgbDir
from sargnn.sources.ogb.layouts import (
    BINARY,
    CSV,
    LINKS,
    NAMED,
    TRIPLES,
    TYPED,
    TYPED_TRIPLES,
    folder_at,
    layout_at,
    named_folder,
)
from sargnn.sources.ogb.links import LinkOgbDir
from sargnn.sources.ogb.triples import TripleOgbDir
from sargnn.sources.ogb.typed import TypedOgbDir
from sargnn.sources.settings import OGB_NAMES, OgbConfig, OgbDirConfig
from sargnn.steps import step

_READERS: dict[str, Callable[[Any, Path], Reader]] = {CSV.title: OgbDir, BINARY.title: BinaryOgbDir, TYPED.title: TypedOgbDir}
_READERS |= {LINKS.title: LinkOgbDir, TRIPLES.title: TripleOgbDir, TYPED_TRIPLES.title: TripleOgbDir}
_RELEASES = {"ogbn-mag": 2}
"""Those that are read; of others the first."""
_TIMEOUT_S = 8.0
_CHUNK_BYTES = 1 << 20


def ogb_dir(config: OgbDirConfig) -> Reader:
    """The reader of the layout that the folder ``config.root`` has. Raises ``DataError`` with all files that are missing."""
    root = folder_at(config.root)
    return _READERS[layout_at(root).title](config, root)


def ogb_named(config: OgbConfig) -> Reader:
    """The reader of the dataset's folder, which is fetched if it is missing.

    Raises ``DataError``: it is missing and cannot be fetched; or it is another dataset, or of another release.
    """
    folder, layout = named_folder(config.name, config.root), NAMED[config.name]
    other = folder.name.replace("_", "-")
    if other in OGB_NAMES and other != config.name:
        raise DataError(f"'{folder}' is the folder of {other}.", given=f"dataset={config.name}", hint=f"dataset={other}")
    if not (folder / "raw").is_dir():
        _fetch(config, folder)
    wanted = f"RELEASE_v{_RELEASES.get(config.name, 1)}.txt"
    releases = sorted(path.name for path in folder.glob("RELEASE_v*.txt"))
    if releases and wanted not in releases:
        raise DataError(f"'{folder}' holds another release of {config.name}.", given=", ".join(releases), allowed=wanted)
    return _READERS[layout.title](config, folder)


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
        same &= made_by.get("link_messages", config.link_messages) == config.link_messages
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


def address_of(name: str) -> str:
    """Where OGB publishes a dataset's archive, from the table in OGB's own package, which is not imported."""
    spec = importlib.util.find_spec("ogb")
    places = list(spec.submodule_search_locations or ()) if spec else []
    for place in places:
        table = Path(place) / ("linkproppred" if name.startswith("ogbl") else "nodeproppred") / "master.csv"
        if table.is_file():
            with table.open() as file:
                rows = {row[0]: row[1:] for row in csv.reader(file)}
            return rows["url"][rows[""].index(name)]
    raise DataError("OGB's package, which knows the addresses, is not installed.", hint="pip install ogb")


def fetch(address: str, archive: Path, by_hand: str) -> None:
    """Fetch a file, or the rest of it where a part is there already. Tries again as long as each try brings more of it.

    Args:
        archive: where it goes; its beginning is kept as ``archive.part`` until it is whole.
        by_hand: what a person without a network can do, for the error.

    Raises ``DataError``: no network, an answer other than the file, or fewer bytes than promised.
    """
    part = archive.with_name(f"{archive.name}.part")
    archive.parent.mkdir(parents=True, exist_ok=True)
    while True:
        have = part.stat().st_size if part.exists() else 0
        try:
            total = _fetch_more(address, part, have, archive)
            reason = f"it broke off after {part.stat().st_size} of {total} bytes"
            if part.stat().st_size == total:
                break
        except (OSError, ValueError, http.client.HTTPException) as error:
            reason = str(getattr(error, "reason", error)) or type(error).__name__
            if isinstance(error, urllib.error.HTTPError):
                reason = f"the server answers {error.code} {error.reason}"
        if not part.exists() or part.stat().st_size <= have:
            kept = f"; {part.stat().st_size} bytes are there, started again it goes on" if part.exists() else ""
            raise DataError(f"'{address}' could not be fetched.", given=f"{reason}{kept}", hint=by_hand)
    part.replace(archive)


def _fetch_more(address: str, part: Path, have: int, archive: Path) -> int:
    """Append what comes; how many bytes the whole file has."""
    request = urllib.request.Request(address, headers={"Range": f"bytes={have}-"} if have else {})
    try:
        answer = _ask(request)
    except urllib.error.HTTPError as error:
        error.close()
        size = (error.headers.get("Content-Range") or "").removeprefix("bytes */")
        if error.code == 416 and size.isdecimal() and int(size) == have:
            return have  # it had all come
        if error.code == 416:
            part.unlink()  # the part is no part of what is published now
        raise
    with answer:
        resumed = answer.status == 206
        length = answer.headers.get("Content-Length")
        if length is None:
            raise ValueError("the server does not say how large it is")
        total = int(length) + (have if resumed else 0)
        free = shutil.disk_usage(archive.parent).free
        if free < int(length):
            raise DataError(
                f"The disk has too little room for '{archive}'.",
                given=f"{free / 1e9:.1f} GB free",
                allowed=f"{int(length) / 1e9:.1f} GB, and more to unpack it",
            )
        with part.open("ab" if resumed else "wb") as file:
            while chunk := answer.read(_CHUNK_BYTES):
                file.write(chunk)
                step(f"fetching {archive.name}", file.tell(), total)
    return total


def _ask(request: urllib.request.Request) -> Any:
    """A thread waits for the answer: looking up a name takes no time limit, and may take minutes."""
    answers: Queue[Any] = Queue()

    def ask() -> None:
        try:
            answers.put(urllib.request.urlopen(request, timeout=_TIMEOUT_S))
        except Exception as error:
            answers.put(error)

    threading.Thread(target=ask, name="fetch", daemon=True).start()
    try:
        answer = answers.get(timeout=_TIMEOUT_S + 0.5)
    except Empty:
        raise TimeoutError(f"no answer within {_TIMEOUT_S:g} s") from None
    if isinstance(answer, Exception):
        raise answer
    return answer


def unpack(archive: Path, folder: Path) -> None:
    """The one folder of an archive as ``folder``; checksums are compared, and nothing half-unpacked keeps the name.

    Raises ``DataError``: a damaged archive; or one that holds something else, or names files outside itself.
    """
    temporary = folder.with_name(f".{folder.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        with zipfile.ZipFile(archive) as content:
            names = content.namelist()
            tops = {Path(name).parts[0] for name in names if Path(name).parts}
            if len(tops) != 1 or any(".." in Path(name).parts or Path(name).is_absolute() for name in names):
                raise DataError(
                    f"'{archive}' is not an archive of OGB's: it must hold one folder.", given=", ".join(sorted(tops))
                )
            needed, free = sum(member.file_size for member in content.infolist()), shutil.disk_usage(folder.parent).free
            if free < needed:
                raise DataError(
                    f"The disk has too little room to unpack '{archive}'.",
                    given=f"{free / 1e9:.1f} GB free",
                    allowed=f"{needed / 1e9:.1f} GB",
                )
            for number, name in enumerate(names):
                step(f"unpacking {archive.name}", number, len(names))
                content.extract(name, temporary)
        (temporary / tops.pop()).replace(folder)
    except ARCHIVE_ERRORS as error:
        raise DataError(f"'{archive}' is damaged: {error}", hint=f"remove it to have it fetched again: rm {archive}") from error
    except OSError as error:
        raise DataError(f"'{archive}' could not be unpacked: {error}", hint=f"if it is damaged: rm {archive}") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
