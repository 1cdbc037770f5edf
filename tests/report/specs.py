"""The file of a small figure."""

from __future__ import annotations

from pathlib import Path

from sargnn.report.study import FigureSpec, read_spec

SMALL = """
paper: none
title: A title
shows: Something.
needs: nothing else
minutes: 1
kind: bars
world: 4
settings: [model=sage, model.hidden=8]
groups: {one: [], two: [model.num_layers=2]}
series: {a: [mode=sar], b: [mode=no_remat]}
x: {name: workers, worlds: [0.25, 0.5, 1], paper: [p, q, r]}
panels: [{value: epoch_time, published: {values: {one: {a: [1, null, 3]}}}}]
differs: nothing.
"""


def written(folder: Path, *changes: tuple[str, str]) -> Path:
    """The file of ``SMALL`` with texts of it replaced."""
    text = SMALL
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    (folder / "own.yaml").write_text(text)
    return folder / "own.yaml"


def spec_of(folder: Path, *changes: tuple[str, str]) -> FigureSpec:
    """The figure of that file."""
    return read_spec(written(folder, *changes), FigureSpec)
