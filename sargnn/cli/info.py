"""``sargnn info`` and ``sargnn clean``: what is installed, what can run, where stores lie, and removing them."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from sargnn.cli.help import Help, help_text, wanted
from sargnn.errors import ConfigError

INFO = Help(
    usage="info [store_dir=FOLDER] [tracking.uri=URI]",
    text="Versions, cores, memory and devices, the kernels that can run here and why others cannot, the MLflow store, and the "
    "dataset and partition stores with their sizes.",
    examples=(("info", ""),),
)
CLEAN = Help(
    usage="clean [what=all|datasets|partitions] [store_dir=FOLDER] [yes=true]",
    text="Remove stores. Says what would go and asks first; yes=true does not ask. Runs and MLflow's store stay. What was "
    "removed is made again when a run needs it.",
    examples=(("clean what=partitions", ""),),
)
KINDS = ("datasets", "partitions")


def info(arguments: Sequence[str]) -> int:
    """Print what is here."""
    if wanted(arguments):
        print(help_text(INFO))
        return 0
    from sargnn.cli.settings import read_settings

    plain, settings = read_settings(arguments, {"store_dir": "stores", "tracking.uri": None})
    if plain:
        raise ConfigError("This verb takes no such word.", given=plain[0], allowed="store_dir=..., tracking.uri=...")
    import os

    import psutil
    import torch

    from sargnn.kernels import KERNELS
    from sargnn.resolve import resolve
    from sargnn.tracking.memory import human_bytes
    from sargnn.tracking.mlflow import database_of, default_uri
    from sargnn.tracking.provenance import versions
    from sargnn.tracking.tables import info_table

    memory = psutil.virtual_memory()
    rows = [("", f"{name} {version}") for name, version in versions().items()]
    rows += [
        ("cores", f"{len(os.sched_getaffinity(0))} usable"),
        ("memory", f"{human_bytes(memory.total)}, {human_bytes(memory.available)} free"),
        ("devices", ", ".join(["cpu", *(torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count()))])),
    ]
    for name in KERNELS:
        kernel = resolve("kernel", KERNELS, name)()
        reasons = kernel.unavailable_reasons(torch.device("cpu"), torch.float32)
        rows.append((f"kernel {name}", "; ".join(reasons) or f"can run: {', '.join(sorted(kernel.operations))}"))
    uri = str(settings["tracking.uri"] or default_uri())
    database = database_of(uri)
    size = f", {human_bytes(database.stat().st_size)}" if database is not None and database.exists() else ""
    rows.append(("MLflow store", f"{uri}{size}" if size or database is None else "none yet in this folder"))
    folder = Path(str(settings["store_dir"]))
    found = stores(folder, KINDS)
    rows.append(("stores", f"{folder.resolve()}: {len(found)}, {human_bytes(sum(size for _, size in found))}"))
    rows += [("", f"{path.parent.name}/{path.name}: {human_bytes(size)}") for path, size in found]
    info_table(rows)
    return 0


def clean(arguments: Sequence[str]) -> int:
    """Remove stores, after asking."""
    if wanted(arguments):
        print(help_text(CLEAN))
        return 0
    from sargnn.cli.settings import read_settings

    plain, settings = read_settings(arguments, {"what": "all", "store_dir": "stores", "yes": False})
    if plain:
        raise ConfigError("This verb takes no such word.", given=plain[0], allowed="what=..., store_dir=..., yes=true")
    what = str(settings["what"])
    if what not in ("all", *KINDS):
        raise ConfigError("'what' has a value that is not known.", given=what, allowed=["all", *KINDS])
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
            shutil.rmtree(path)
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


def stores(folder: Path, kinds: Sequence[str]) -> list[tuple[Path, int]]:
    """Stores and their bytes on disk; also what a broken-off writer left behind."""
    found = []
    for kind in kinds:
        for path in sorted((folder / kind).iterdir()) if (folder / kind).is_dir() else []:
            # Only what is a store, or what a broken-off writer left: the folder may hold someone's own things.
            if path.is_dir() and not path.is_symlink() and ((path / "manifest.json").is_file() or path.name.endswith(".tmp")):
                found.append((path, sum(file.stat().st_size for file in path.rglob("*") if file.is_file())))
    return found
