"""What a partitioner may use."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Room:
    """Attributes: folder: for files that are gone afterwards. buffer_bytes: memory for what is read and sorted at once."""

    folder: Path = field(default_factory=lambda: Path(tempfile.gettempdir()))
    buffer_bytes: int = 1 << 30
