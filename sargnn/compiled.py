"""Where code that is compiled on this machine, and what is measured on it once, are kept."""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
from functools import cache
from pathlib import Path

from platformdirs import user_cache_path


def compiled_sources() -> list[Path]:
    """The files that machine code is made from: those that use Numba, and all of the fused kernel, which such may call."""
    package = Path(__file__).parent
    uses_numba = re.compile(rb"^\s*(import|from) numba", flags=re.M)
    fused = package / "backends" / "cpu"
    return [
        path for path in sorted(package.rglob("*.py")) if path.is_relative_to(fused) or uses_numba.search(path.read_bytes())
    ]


@cache
def _cache_name() -> str:
    """Read from the files once: a process runs what they held when it was started."""
    digest = hashlib.sha256(str(Path(__file__).parent).encode())
    for path in compiled_sources():
        digest.update(path.read_bytes())
    return f"numba-{digest.hexdigest()[:12]}"


def numba_cache_dir() -> Path:
    """A writable place for compiled kernels, one per user, path of this package and content of the files they are made of.

    Numba itself only watches the file that a function stands in, not those of the functions that it calls; and it knows a file
    by its path, so that another checkout needs kernels of its own. A folder given as NUMBA_CACHE_DIR gets one for this, too.
    """
    name = _cache_name()
    if given := os.environ.get("NUMBA_CACHE_DIR"):
        return Path(given) if Path(given).name == name else Path(given) / name
    for candidate in (user_cache_path("sargnn") / name, Path(tempfile.gettempdir()) / f"sargnn-{name}-{os.getuid()}"):
        try:
            candidate.mkdir(parents=True, exist_ok=True)
        except OSError:
            continue
        if os.access(candidate, os.W_OK):
            return candidate
    return Path(tempfile.mkdtemp(prefix="sargnn-numba-"))
