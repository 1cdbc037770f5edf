"""Settings that are sizes of memory."""

from __future__ import annotations

import re
from dataclasses import dataclass

from sargnn.errors import ConfigError

AUTO = "auto"


@dataclass(frozen=True)
class BufferConfig:
    """How stores are made. ``buffer``: memory for what is read, sorted and cut at once, such as ``8GB``."""

    buffer: str = "8GB"

    @property
    def bytes(self) -> int:
        """Raises ``ConfigError`` for a text that is no size of at least 256 MB."""
        return read_size("prepare.buffer", self.buffer, "8GB")


@dataclass(frozen=True)
class MemoryConfig:
    """What a worker's whole resident memory may be.

    Attributes:
        size: such as ``6GB``; ``auto``: what is free on the machine, or left in its control group, over the workers there,
            settled when a run is launched; null: no limit.
        enforce: refuse what does not fit before it is launched, and train so that it does; else the size is only compared.
    """

    size: str | None = None
    enforce: bool = True

    @property
    def bytes(self) -> int | None:
        """None where there is no limit, or none yet. Raises ``ConfigError`` for a text that is no size."""
        return None if self.size is None or self.is_auto else read_size("memory_budget", self.size, "6GB")

    @property
    def is_auto(self) -> bool:
        """It is not settled yet."""
        return self.size == AUTO

    @property
    def limits(self) -> bool:
        """A run keeps to it, also where its size is not settled yet."""
        return self.enforce and self.size is not None


def read_size(key: str, text: str, example: str) -> int:
    """Bytes of a text such as ``500MB``. Raises ``ConfigError`` for what is no size of at least 256 MB."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)i?B?", text.strip(), flags=re.IGNORECASE)
    size = float(match.group(1)) * 1000 ** " KMGT".index(match.group(2).upper() or " ") if match else 0.0
    if size < 256e6:
        raise ConfigError(f"'{key}' is no size.", given=text, allowed=f"at least 256MB, such as 500MB or {example}")
    return int(size)
