"""Breaks one line of the package at a time, and says which test finds it.

    python scripts/mutants.py                    # all of them, each by its own tests: a quarter of an hour
    python scripts/mutants.py peer tag           # two of them
    python scripts/mutants.py --all-tests tag    # by whichever of all tests finds it first; an hour if none does

Prints a line for each; exits with 1 if a mutant survives. Files are put back whatever happens; one with changes that are not
committed is not touched. The lines and the tests are in ``mutants.txt``, what was found in ``tests/README.md``.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # this tree's package, not an installed one

from sargnn.native import build, chosen  # noqa: E402

LIMIT_S, LIMIT_OF_ALL_S = 300, 2 * 3600
EVERYTHING = ["tests", "--ignore=tests/test_mutants.py"]
"""Without the test that reads these files for the lines that are broken here."""

TABLE = Path(__file__).with_suffix(".txt")
"""Blocks of five lines: a name, a file, "- " and a text that stands once in it, "+ " and what takes its place, tests."""


class Mutant(NamedTuple):
    """One line that is broken.

    Attributes:
        name: what is broken.
        file: where the line is.
        old: what stands there.
        new: what takes its place.
        tests: arguments of pytest.
    """

    name: str
    file: Path
    old: str
    new: str
    tests: list[str]

    @property
    def broken(self) -> str:
        """The file's text with the mistake. Raises ``ValueError`` unless the old text stands there exactly once."""
        text = self.file.read_text()
        if text.count(self.old) != 1:
            raise ValueError(f"{self.name}: '{self.old}' stands {text.count(self.old)} times in {self.file}, not once")
        return text.replace(self.old, self.new)


def mutants() -> list[Mutant]:
    """All of the table."""
    blocks = (block.splitlines() for block in TABLE.read_text().strip().split("\n\n"))
    return [Mutant(name, ROOT / file, old[2:], new[2:], shlex.split(tests)) for name, file, old, new, tests in blocks]


@contextmanager
def broken(mutant: Mutant) -> Iterator[dict[str, str]]:
    """The package with the mistake, compiled with it where it is C++; gives the environment that tests run in."""
    text, stat = mutant.broken, mutant.file.stat()
    original = mutant.file.read_bytes()
    path = f"{ROOT}:{os.environ.get('PYTHONPATH', '')}"
    in_cpp = mutant.file.is_relative_to(build.SOURCES)
    try:
        mutant.file.write_text(text)
        if in_cpp:
            build.build([chosen()])
        yield os.environ | {"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
    finally:
        mutant.file.write_bytes(original)
        os.utime(mutant.file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
        if in_cpp:
            build.build([chosen()])


def run_tests(tests: list[str], environment: dict[str, str], limit_s: float) -> str | None:
    """The first test that fails; None if none does.

    Raises:
        RuntimeError: they took longer than ``limit_s``, or none was run.
    """
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
    settings: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "start_new_session": True}
    process = subprocess.Popen(command, cwd=ROOT, env=environment, **settings)
    try:
        said, _ = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired as error:
        raise RuntimeError(f"{' '.join(tests)} took more than {limit_s} s") from error
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if process.returncode not in (0, 1):
        raise RuntimeError(f"pytest ended with {process.returncode}:\n{said[-3000:]}")
    failed = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - |$)", said, flags=re.M)
    return None if process.returncode == 0 else failed[1] if failed else said[-300:]


def main() -> int:
    """Run the mutants that are named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="of mutants; all if none is given")
    parser.add_argument("--all-tests", action="store_true", help="run all tests, not only those that are named")
    given = parser.parse_args()
    known = {mutant.name: mutant for mutant in mutants()}
    if unknown := set(given.names) - set(known):
        parser.error(f"no such mutant: {', '.join(sorted(unknown))}; there are: {', '.join(known)}")
    chosen = [known[name] for name in given.names or known]
    for mutant in chosen:
        _ = mutant.broken  # raises before anything is changed
    files = [str(mutant.file) for mutant in chosen]
    changed = subprocess.run(["git", "status", "--porcelain", "--", *files], cwd=ROOT, capture_output=True, check=True).stdout
    if changed:
        parser.error(f"these files have changes that are not committed:\n{changed.decode()}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that files are put back
    survived = 0
    for mutant in chosen:
        started = time.perf_counter()
        with broken(mutant) as environment:
            tests, limit_s = (EVERYTHING, LIMIT_OF_ALL_S) if given.all_tests else (mutant.tests, LIMIT_S)
            try:
                found_by = run_tests(tests, environment, limit_s)
            except RuntimeError as error:
                found_by = None
                print(error, file=sys.stderr)
        survived += found_by is None
        print(f"{mutant.name:10} {time.perf_counter() - started:5.0f} s  {found_by or 'SURVIVES'}", flush=True)
    print(f"{len(chosen) - survived} of {len(chosen)} are found")
    return int(survived > 0)


if __name__ == "__main__":
    sys.exit(main())
