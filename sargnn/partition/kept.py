"""What an interrupted preparation leaves for the next: whose node is whose, in which order, which took longest to find."""

from __future__ import annotations

import uuid
import zipfile
from contextlib import suppress
from pathlib import Path

import numpy as np

_ENDING = ".order.npz"


def kept_beside(path: Path) -> Path:
    """The file for a partition store that is not there yet."""
    return path.with_name(f".{path.name}{_ENDING}")


def is_kept(path: Path) -> bool:
    """Whether it is such a file, or one that was never finished."""
    return path.name.startswith(".") and _ENDING in path.name


def keep(file: Path, offsets: np.ndarray, nodes: np.ndarray) -> None:
    """Write what ``order_nodes`` gives, whole or not at all."""
    temporary = file.with_name(f"{file.name}.{uuid.uuid4().hex[:8]}.tmp")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as out:
            np.savez(out, offsets=offsets, nodes=nodes)
        temporary.replace(file)
    except OSError:  # it only saves time
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def find_kept(file: Path, num_nodes: int, world: int) -> tuple[np.ndarray, np.ndarray] | None:
    """What was kept; None where nothing was, or something else."""
    try:
        with file.open("rb") as source, np.load(source) as found:
            offsets, nodes = found["offsets"], found["nodes"]
    except (OSError, EOFError, ValueError, KeyError, zipfile.BadZipFile):
        return None
    whole = len(offsets) == world + 1 and offsets[0] == 0 and offsets[-1] == num_nodes and (np.diff(offsets) >= 0).all()
    if not whole or len(nodes) != num_nodes:
        return None
    seen = np.zeros(num_nodes, bool)
    inside = (nodes >= 0) & (nodes < num_nodes)
    seen[nodes[inside]] = True
    return (offsets, nodes) if seen.all() else None
