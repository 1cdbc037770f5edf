"""A benchmark's command: a verb of ``sargnn.cli`` whose primary file lies here."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from sargnn.cli.main import answer, run_verb
from sargnn.cli.verb import Verb

HERE = Path(__file__).parent


def call(verb: Verb, words: Sequence[str]) -> int:
    """The exit code of a benchmark with the words of its command line."""
    return answer(lambda: run_verb(verb, ["--config-dir", str(HERE), *words]))
