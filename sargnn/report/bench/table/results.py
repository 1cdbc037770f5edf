"""Measurements that are kept: a table that was interrupted goes on where it was."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sargnn.errors import ConfigError
from sargnn.report.bench.table.entries import Case, Entry
from sargnn.tracking.files import write_json

Figures = dict[str, Any]


@dataclass(frozen=True)
class Kept:
    """One round's place of one entry in ``bench_dir/runs/CASE``: ``NAME-ROUND.json``, and a run folder ``NAME-ROUND``."""

    bench_dir: Path
    case: Case
    entry: Entry
    round: int

    @property
    def run_dir(self) -> Path:
        """Of a run of this project, absolute."""
        return (self.bench_dir / "runs" / self.case.name / f"{self.entry.slug}-{self.round + 1}").resolve()

    @property
    def path(self) -> Path:
        """Of the figures."""
        return self.run_dir.with_name(f"{self.run_dir.name}.json")

    def read(self) -> Figures | None:
        """The figures; None where they are not there. Raises ``ConfigError`` for those of other settings, or damaged ones."""
        if not self.path.exists():
            return None
        hint = f"choose another bench_dir, or remove '{self.path}'"
        try:
            content = json.loads(self.path.read_text())
            settings, figures = content["settings"], content["figures"]
            keys = sorted({*settings, *self.entry.settings})
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ConfigError("A kept measurement cannot be read.", given=str(self.path), hint=hint) from error
        wanted = self.entry.settings
        other = [key for key in keys if settings.get(key) != wanted.get(key)]
        if other:
            changes = "; ".join(f"{key}: {settings.get(key)} instead of {wanted.get(key)}" for key in other)
            raise ConfigError("The folder holds this measurement with other settings.", given=changes, hint=hint)
        return dict(figures)

    def clear(self) -> None:
        """Remove what an interrupted run left."""
        shutil.rmtree(self.run_dir, ignore_errors=True)
        self.run_dir.parent.mkdir(parents=True, exist_ok=True)

    def write(self, figures: Figures) -> None:
        """Keep the figures."""
        write_json(self.path, {"settings": self.entry.settings, "figures": figures})
