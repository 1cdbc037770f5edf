"""What `make check` asks of the package beside lint and types: names that say something, no exceptions from the formatter.

python scripts/check_names.py sargnn
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

SAYS_NOTHING = {"one", "found"}
"""Not to be bound: what is it one of, what was found?"""
EXCEPTION = "fmt: " + "skip"


def bound_names(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and name of every variable and parameter."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg


def faults(path: Path) -> Iterator[str]:
    """A line for each."""
    text = path.read_text()
    for line, name in bound_names(ast.parse(text)):
        if name in SAYS_NOTHING:
            yield f"{path}:{line}: '{name}' says nothing"
    for number, line_text in enumerate(text.splitlines(), 1):
        if EXCEPTION in line_text:
            yield f"{path}:{number}: the formatter decides"


if __name__ == "__main__":
    lines = [fault for folder in sys.argv[1:] for path in sorted(Path(folder).rglob("*.py")) for fault in faults(path)]
    if lines:
        print(*lines, sep="\n")
    sys.exit(bool(lines))
