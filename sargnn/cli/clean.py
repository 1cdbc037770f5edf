"""``sargnn clean``: removing stores, after asking."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from sargnn.cli.command_line import CommandLine
from sargnn.cli.info import KINDS, stores
from sargnn.errors import ConfigError


def main(line: CommandLine) -> int:
    """Remove stores, after asking."""
    what, settings = str(line.settings["what"]), line.settings
    from sargnn.tracking.memory import human_bytes
    from sargnn.tracking.progress import say

    found = stores(Path(str(settings["store_dir"])), KINDS if what == "all" else (what,))
    if not found:
        say("There is no store to remove.")
        return 0
    for path, size in found:
        print(f"{path}  {human_bytes(size)}")
    if not settings["yes"]:
        if not sys.stdin.isatty():
            raise ConfigError("Nobody is there to be asked.", hint="add yes=true to remove these stores")
        answer = ask(f"Remove {len(found)} stores, {human_bytes(sum(size for _, size in found))}? [y/N] ")
        if answer.strip().lower() not in ("y", "yes"):
            say("Nothing was removed.")
            return 1
    for path, _ in found:
        try:
            path.unlink() if path.is_file() else shutil.rmtree(path)
        except OSError as error:
            raise ConfigError(f"A store cannot be removed: {error.strerror or error}.", given=str(path)) from error
    say(f"removed {len(found)} stores")
    return 0


def ask(question: str) -> str:
    """A person's answer; nothing where the input ends."""
    try:
        return input(question)
    except EOFError:
        print()
        return "no"
