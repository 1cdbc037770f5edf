"""Datasets outside the package: their settings say how they are made."""

from __future__ import annotations

from typing import Any

from sargnn.config.fields import as_mapping
from sargnn.graph.dataset import Dataset, InMemoryReader
from sargnn.sources.settings import InMemoryDataset


class SettingsReader(InMemoryReader):
    """Calls ``read`` of the settings. All settings decide the content; the target's file is added to every store's key."""

    def __init__(self, settings: InMemoryDataset) -> None:
        self.settings = settings

    def identity(self) -> dict[str, Any]:
        settings = as_mapping(self.settings)
        return {
            key: value
            for key, value in settings.items()
            if key not in ("target", "add_self_loops", "edge_weights") and (key, value) != ("task", None)
        }

    def read(self) -> Dataset:
        return self.settings.read()
