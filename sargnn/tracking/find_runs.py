"""What a person calls a run: its folder, its name in ``runs/``, a sweep, a pattern; and what a sweep calls its points, in the
``sweep.json`` of the folder that holds a folder per point.
"""

from __future__ import annotations

import glob
import json
import os
from collections.abc import Sequence
from pathlib import Path

from sargnn.errors import ConfigError, nearest
from sargnn.tracking.files import CONFIG

SWEEP = "sweep.json"
RUNS, SWEEPS = Path("runs"), Path("sweeps")


def is_run(folder: Path) -> bool:
    return (folder / CONFIG).is_file()


def runs_in(folder: Path) -> list[Path]:
    """Those right below a folder, by name."""
    try:
        return sorted(path for path in folder.iterdir() if is_run(path))
    except OSError:
        return []


def find_runs(word: str) -> list[Path]:
    """The runs that a word names: a run folder, a folder of runs such as a sweep's, the name of either, or a pattern of these.

    A name without a folder is looked for here, then in ``runs/``, then in ``sweeps/``; so is a pattern (``*``, ``?``, ``[]``).
    Raises ``ConfigError``: there is none; the message has the names that are most like the word.
    """
    given = os.path.expanduser(word)
    for start in (Path(), RUNS, SWEEPS):
        named = start / given
        if is_run(named):
            runs = [named]
        elif glob.has_magic(given):
            matched = [Path(path) for path in sorted(glob.glob(str(named)))]
            runs = [run for path in matched for run in ([path] if is_run(path) else runs_in(path))]
        else:
            runs = runs_in(named)
        if runs:
            return runs
    hint = None
    if Path(given).is_dir() and word not in ("", "."):
        hint = "a run folder holds config.yaml"
    names = run_names()
    raise ConfigError(
        "There is no such run.",
        given=word or "nothing",
        allowed=nearest(word, names),
        hint=hint or (None if names else "sargnn train makes one in runs/"),
    )


def find_run(word: str) -> Path:
    """The one run that a word names. Raises ``ConfigError`` where there is none, or the word names several."""
    runs = find_runs(word)
    if len(runs) > 1:
        raise ConfigError("One run must be named; these are several.", given=word, allowed=map(str, runs))
    return runs[0]


def sweeps_here() -> list[Path]:
    try:
        return [path for path in sorted(SWEEPS.iterdir()) if runs_in(path)]
    except OSError:
        return []


def run_names() -> list[str]:
    """What runs can be called here: the names of those in ``runs/``, newest first, then the points of sweeps."""
    own = sorted(runs_in(RUNS), key=lambda path: (path / CONFIG).stat().st_mtime, reverse=True)
    return [path.name for path in own] + [f"{sweep.name}/{path.name}" for sweep in sweeps_here() for path in runs_in(sweep)]


def write_points(folder: Path, labels: Sequence[str], points: Sequence[Sequence[str]] | None = None) -> None:
    """Write ``sweep.json``. Raises ``OSError``.

    Args:
        labels: of each point the words in which it differs from others.
        points: of each point all its words.
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
