"""What several test files share lies in files of helpers, whose names do not begin with ``test_``."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent
FROM = re.compile(r"\bfrom\s+((?:tests\b|\.)[\w.]*)\s+import\s+(\([^)]*\)|[^\n;]*)")
WHOLE = re.compile(r"\bimport\s+(tests\.[^\n;]*)")


def imports_a_test_file(text: str) -> bool:
    """Whether a Python text does, also in code that it hands to another process."""
    imported = [f"{module} {names}" for module, names in FROM.findall(text)] + WHOLE.findall(text)
    return any(re.search(r"\btest_", words) for words in imported)


def test_no_test_file_is_imported() -> None:
    files = sorted(FOLDER.rglob("*.py"))
    assert len(files) > 200
    importing = [str(path.relative_to(FOLDER)) for path in files if imports_a_test_file(path.read_text())]
    assert not importing, f"{importing} import test files: move what they share into a helper beside them (CONTRIBUTING.md)"


@pytest.mark.parametrize(
    "words",
    [
        "from tests.parity.{} import check",
        "from tests.parity import cases, {}",
        "from tests.parity import (\n    cases,\n    {},\n)",
        "from .{} import check",
        "import sys; from tests.{} import check",
        "import tests.parity.{} as other",
    ],
)
def test_every_way_to_import_one_is_seen(words: str) -> None:
    assert imports_a_test_file(words.format("test_curves")) and not imports_a_test_file(words.format("latest_curves"))
