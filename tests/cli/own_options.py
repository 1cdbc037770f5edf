"""Files of options of a user's own."""

from __future__ import annotations

from pathlib import Path


def write(folder: Path, **texts: str) -> Path:
    """``group__name=text`` becomes ``folder/group/name.yaml``."""
    for name, text in texts.items():
        path = folder / f"{name.replace('__', '/')}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder
