"""``sargnn clean``: removing stores, after asking."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from sargnn.cli.command_line import CommandLine
from sargnn.cli.info import KINDS, stores
from sargnn.errors import ConfigError
from sargnn.graph.claim import LOCK, claim, is_claimed, remove_claimed


def main(line: CommandLine) -> int:
    """Remove stores, after asking."""
    what, settings = str(line.settings["what"]), line.settings
    from sargnn.tracking.memory import human_bytes
    from sargnn.tracking.progress import say

    store_sizes = stores(Path(str(settings["store_dir"])), KINDS if what == "all" else (what,))
    if not store_sizes:
        say("There is no store to remove.")
        return 0
    busy = {path for path, _ in store_sizes if is_claimed(path)}
    for path, size in store_sizes:
        print(f"{path}  {human_bytes(size)}{'  stays: it is being written' if path in busy else ''}")
    store_sizes = [(path, size) for path, size in store_sizes if path not in busy]
    if not store_sizes:
        say("There is no store to remove.")
        return 0
    if not settings["yes"]:
        if not sys.stdin.isatty():
            raise ConfigError("Nobody is there to be asked.", hint="add yes=true to remove these stores")
        answer = ask(f"Remove {len(store_sizes)} stores, {human_bytes(sum(size for _, size in store_sizes))}? [y/N] ")
        if answer.strip().lower() not in ("y", "yes"):
            say("Nothing was removed.")
            return 1
    removed = 0
    for path, _ in store_sizes:
        try:
            removed += _remove(path)
        except OSError as error:
            raise ConfigError(f"A store cannot be removed: {error.strerror or error}.", given=str(path)) from error
    say(f"removed {removed} stores")
    return 0


def _remove(path: Path) -> bool:
    """Remove a store, or what is left of one unless a process has begun to go on with it; whether it is gone."""
    if path.is_file():
        path.unlink()
    elif not (path / LOCK).is_file():
        shutil.rmtree(path)
    elif (held := claim(path)) is None:
        return False
    else:
        remove_claimed(path)
        held.release()
    return True


def ask(question: str) -> str:
    """A person's answer; nothing where the input ends."""
    try:
        return input(question)
    except EOFError:
        print()
        return "no"
