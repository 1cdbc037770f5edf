"""``sweep.json``: the points of a sweep and what each of them is called, in the folder that holds a folder per point."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

SWEEP = "sweep.json"


def write_points(folder: Path, labels: Sequence[str], points: Sequence[Sequence[str]] | None = None) -> None:
    """Write it. Raises ``OSError``.

    Args:
        folder: the sweep's.
        labels: of each point the words in which it differs from others. points: all its words.
    """
    folder.mkdir(parents=True, exist_ok=True)
    content = {"labels": labels} | ({} if points is None else {"points": points})
    (folder / SWEEP).write_text(json.dumps(content, indent=1) + "\n")


def label_of(run_dir: Path) -> str | None:
    """What a sweep calls a point of its, ``003`` or, of a later try, ``003-2``; None for a run of no sweep."""
    try:
        labels = json.loads((run_dir.parent / SWEEP).read_text())["labels"]
        number = int(run_dir.name.partition("-")[0])
        return str(labels[number]) if number >= 0 else None
    except (OSError, ValueError, KeyError, IndexError, TypeError, RecursionError):
        return None
