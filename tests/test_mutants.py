"""``scripts/mutants.py``: the lines that it breaks, and the tests that find them, are there."""

from __future__ import annotations

import runpy
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_every_line_stands_once_in_its_file() -> None:
    mutants = runpy.run_path(str(ROOT / "scripts" / "mutants.py"))["mutants"]()
    assert len({mutant.name for mutant in mutants}) == len(mutants) >= 80
    for mutant in mutants:
        assert mutant.broken != mutant.file.read_text(), mutant.name  # raises where the line is not there
        file, _, test = mutant.tests[0].partition("::")
        assert f"def {test}" in (ROOT / file).read_text(), mutant.name
