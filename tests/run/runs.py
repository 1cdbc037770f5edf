"""A small run, and what a run leaves behind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

SMALL = ["dataset.num_nodes=600", "model.hidden=16", "epochs=4", "eval_every=2", "run_dir=run", "processes=null"]
"""Words with which a run takes a second or two. Each worker has a process."""


def summary_of(folder: Path) -> dict[str, Any]:
    """What a run folder's ``summary.json`` says."""
    content: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    return content
