"""``sargnn info``: what is installed, what can run, where stores lie."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from sargnn.cli.command_line import CommandLine

KINDS = ("datasets", "partitions", "assignments")


def main(line: CommandLine) -> int:
    """Print what is here."""
    settings = line.settings
    import os

    import psutil
    import torch

    from sargnn.backends import KERNELS
    from sargnn.cpu import describe_bf16
    from sargnn.resolve import resolve
    from sargnn.tracking.memory import human_bytes
    from sargnn.tracking.mlflow.store import database_of, default_uri
    from sargnn.tracking.provenance import versions
    from sargnn.tracking.tables import info_table

    memory = psutil.virtual_memory()
    rows = [("", f"{name} {version}") for name, version in versions().items()]
    rows += [
        ("cores", f"{len(os.sched_getaffinity(0))} usable"),
        ("bf16", describe_bf16()),
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
    store_sizes = stores(folder, KINDS)
    rows.append(("stores", f"{folder.resolve()}: {len(store_sizes)}, {human_bytes(sum(size for _, size in store_sizes))}"))
    rows += [("", f"{path.parent.name}/{path.name}: {human_bytes(size)}{_drawn_as(path)}") for path, size in store_sizes]
    info_table(rows)
    return 0


def _drawn_as(path: Path) -> str:
    """Version, scale and seed of a graph that was drawn; empty for another store, or one that cannot be read."""
    import json

    try:
        made_by = json.loads((path / "manifest.json").read_text())["meta"]["made_by"]
        known = {key: made_by[key] for key in ("version", "scale", "seed") if key in made_by} if "generator" in made_by else {}
    except (OSError, ValueError, KeyError, TypeError):
        return ""
    return "".join(f", {key} {value}" for key, value in known.items())


def _size(file: Path) -> int:
    """Of a file; 0 of what is none, or was removed meanwhile."""
    try:
        return file.stat().st_size if file.is_file() else 0
    except OSError:
        return 0


def stores(folder: Path, kinds: Sequence[str]) -> list[tuple[Path, int]]:
    """Stores and their bytes on disk; also what a broken-off writer left behind."""
    store_sizes = []
    for kind in kinds:
        for path in sorted((folder / kind).iterdir()) if (folder / kind).is_dir() else []:
            # Only what is a store, or what a broken-off writer left: the folder may hold someone's own things.
            if path.is_dir() and not path.is_symlink() and ((path / "manifest.json").is_file() or path.name.endswith(".tmp")):
                store_sizes.append((path, sum(map(_size, path.rglob("*")))))
            elif path.is_file() and kind == "assignments" and path.suffix == ".npy":
                store_sizes.append((path, path.stat().st_size))
    return store_sizes
