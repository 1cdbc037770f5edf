"""What is measured once on a machine: kept by key, in files beside the compiled kernels."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from sargnn.tracking import files


def read_kept(file: Path) -> dict[str, Any]:
    """All that a file holds; nothing where it is missing or damaged."""
    try:
        content = json.loads(file.read_text())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def keep(file: Path, key: str, value: Any) -> None:
    """Add one to what the file holds by now."""
    files.write_json(file, read_kept(file) | {key: value})


def environment_of_trials() -> dict[str, str]:
    """For programs that measure: they are no part of the SLURM job that they may run in."""
    return {key: value for key, value in os.environ.items() if key != "SLURM_JOB_ID"}
