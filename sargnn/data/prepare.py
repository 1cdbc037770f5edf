"""From a dataset's configuration to its store: reused when the key matches, made otherwise."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from sargnn.config import RunConfig
from sargnn.data import READERS
from sargnn.data.dataset import Reader
from sargnn.resolve import resolve


def key_of(identity: dict[str, Any]) -> str:
    """12 hex digits of a JSON-able identity."""
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:12]


def prepare_dataset(config: RunConfig) -> Path:
    """The folder of the dataset's store, which is made if it does not exist."""
    reader: Reader = resolve("dataset", READERS, config.dataset.name)(config.dataset)
    identity = reader.identity()
    path = Path(config.store_dir) / "datasets" / f"{config.dataset.name}-{key_of(identity)}"
    if not path.exists():
        reader.write(path)
    return path
