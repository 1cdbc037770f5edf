"""What every benchmark says about itself, and where it says it."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil

from sargnn.errors import ConfigError
from sargnn.tracking.provenance import versions


def machine() -> dict[str, Any]:
    """Cores, memory and versions: a figure means nothing without them."""
    return {
        "cores": len(os.sched_getaffinity(0)),
        "memory_gb": round(psutil.virtual_memory().total / 1e9),
        "platform": f"{platform.system()} {platform.machine()}",
        "versions": versions(),
    }


def open_folder(folder: Path, names: Sequence[str]) -> None:
    """Make it and its files, before anything long is begun. Raises ``ConfigError`` where they cannot be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in names:
            (folder / name).open("a").close()
    except OSError as error:
        raise ConfigError(
            f"The folder cannot be written: {error.strerror}.", given=str(folder), hint="choose another bench_dir"
        ) from error
