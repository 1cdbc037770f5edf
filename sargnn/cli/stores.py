"""Verbs of stores: ``prepare``, ``partition`` and ``import-dgl`` make them, ``export-ogb`` writes one as raw files, ``info``
shows and ``clean`` removes them.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sargnn.cli.command_line import CommandLine
from sargnn.cli.compose import compose_verb, quoted
from sargnn.cli.verbs import STORE_DIR
from sargnn.config.fields import build
from sargnn.config.groups import BufferConfig
from sargnn.config.run import RunConfig, parse
from sargnn.config.verbs import ExportConfig, PartitionConfig, PrepareConfig
from sargnn.errors import ConfigError, StoreError
from sargnn.graph.claim import LOCK, claim, is_claimed, remove_claimed
from sargnn.graph.edge_columns import WEIGHT
from sargnn.partition import PARTITIONERS
from sargnn.steps import step
from sargnn.tracking.memory import human_bytes
from sargnn.tracking.progress import Steps, graph_lines, partition_lines, say
from sargnn.tracking.tables import show_table

if TYPE_CHECKING:
    import numpy as np

    from sargnn.sources.dgl_partition.reader import DglPartition

KINDS = ("datasets", "partitions", "assignments")
_SYMMETRIC = ("products_like", "proteins_like", "synthetic")
_NONE = ("compare=null", "compare=")


def prepare(line: CommandLine) -> int:
    config = build(PrepareConfig, compose_verb("prepare", line.overrides, folders=line.folders), "")
    from sargnn.graph.dataset import SPLITS, open_dataset
    from sargnn.sources.prepare import prepare_dataset

    with Steps():
        path = prepare_dataset(config.dataset, config.store_dir, config.prepare.bytes)
    dataset = open_dataset(path, verify=False)
    size = dataset.num_edges, dataset.schema, dataset.feature_widths, dataset.num_classes, dataset.task
    pairs = None if dataset.pairs is None else {split: dataset.pairs.count(split) for split in SPLITS}
    called = "labelled edges" if dataset.pairs is not None and dataset.pairs.labels is not None else "pairs"
    weighted, edge_width = WEIGHT in dataset.columns, dataset.columns.width
    lines = graph_lines(*size, weighted=weighted, edge_width=edge_width, pairs=pairs, pairs_called=called)
    say(f"{config.dataset.title_of(dataset.name)}: {lines[0]}")
    for text in lines[1:]:
        say(text)
    print(path)
    return 0


def partition(line: CommandLine) -> int:
    """With ``compare`` there is no partition store, but a table."""
    if any(override.lstrip("+").startswith("compare=") and override not in _NONE for override in line.overrides):
        return _compare_partitioners(line)
    config = build(PartitionConfig, compose_verb("partition", line.overrides, folders=line.folders), "")
    from sargnn.partition.prepare import prepare_partition
    from sargnn.sources.prepare import prepare_dataset

    with Steps():
        info = prepare_partition(config, prepare_dataset(config.dataset, config.store_dir, config.prepare.bytes))
    say(f"{config.dataset.title_of(info.dataset_name)} by {info.partitioner} into {config.world}")
    for text in partition_lines(vars(info.stats)):
        say(text)
    print(info.path)
    return 0


def _compare_partitioners(line: CommandLine) -> int:
    from sargnn.graph.dataset import open_dataset
    from sargnn.partition.balance import Room
    from sargnn.partition.memory import available_bytes, check
    from sargnn.partition.prepare import partition_path
    from sargnn.partition.trial import try_out
    from sargnn.report.partitions import TITLES, Compared, compared, rows_of, write_picture
    from sargnn.sources.prepare import prepare_dataset

    configs, out = _runs_to_compare(line)
    first = next(iter(configs.values()))
    if first.world < 2 or first.num_servers > 1:
        given = f"world={first.world} servers={first.num_servers}"
        raise ConfigError("Several parts are compared, of one server.", given=given, allowed="world=2 or more, servers=1")
    comparisons: list[Compared] = []
    room = Room(Path(first.store_dir) / "partitions", first.prepare.bytes)
    with Steps():
        path = prepare_dataset(first.dataset, first.store_dir, first.prepare.bytes)
        dataset = open_dataset(path, verify=True)
        partition_path(first, dataset, path.name)  # as many nodes as parts
        room.folder.mkdir(parents=True, exist_ok=True)
        for name, config in configs.items():
            step(f"cutting by {name}")
            try:
                check(dataset, name, "original", config.world, available_bytes(), config.partitioner.coarsen)
                trial = try_out(name, path, config.world, config.partitioner, room)
            except ConfigError as error:
                say(f"left out: {name}. {error}")
                continue
            step(f"counting messages of {name}")
            comparisons.append(compared(trial, dataset, config))
    if not comparisons:
        return 1
    say(f"{first.dataset.title_of(dataset.name)}, {dataset.num_nodes} nodes, {dataset.num_edges} edges, into {first.world}")
    show_table(TITLES, rows_of(comparisons), words=TITLES[:1])
    say("peak: memory of cutting. halo rows travel in one exchange; least: rows and sums with comm.aggregate=least.")
    words = [f"model={first.model.name}", f"mode={first.mode.name}", f"precision={first.precision}"]
    words += [f"comm.aggregate={first.comm.aggregate}"] if first.comm.aggregate else []
    say(f"epoch: what all workers send in one, full batch, with {' '.join(words)}. nodes, work: largest part / mean.")
    print(write_picture(comparisons, Path(out)))
    return 0


def _runs_to_compare(line: CommandLine) -> tuple[dict[str, RunConfig], str]:
    """By partitioner, with the settings that it has; and the folder of the picture."""
    folders = line.folders
    chosen = [override for override in line.overrides if not override.startswith("partitioner=")]
    own = [override for override in chosen if override.lstrip("+").startswith("partitioner.")]
    others = [override for override in chosen if override not in own]
    mapping = compose_verb("partition_compare", others, folders=folders)
    names, out = mapping.pop("compare"), mapping.pop("out")
    known = [partitioner for partitioner in PARTITIONERS if partitioner not in ("given", "auto")]
    if not isinstance(out, str) or not out:
        raise ConfigError("'out' must be a folder.", given=repr(out))
    configs: dict[str, RunConfig] = {}
    unused = dict.fromkeys(own)
    for name in dict.fromkeys(map(str, names) if isinstance(names, list) else [str(names)]):
        if name not in known:
            hint = "compare=metis,kaminpar,stream,random"
            raise ConfigError("There is no such partitioner to compare.", given=f"compare={name}", allowed=known, hint=hint)
        has = folders.settings_of("partitioner", name)
        its = [override for override in own if override.partition("=")[0].lstrip("+") in has]
        mapping = compose_verb("partition_compare", [*others, f"partitioner={name}", *its], folders=folders)
        del mapping["compare"], mapping["out"]
        configs[name] = parse(mapping)
        for override in its:
            unused.pop(override, None)
    if not configs:
        raise ConfigError("No partitioner is named.", given=f"compare={names}", hint="compare=metis,kaminpar,stream,random")
    for override in unused:
        raise ConfigError("None of the partitioners that are compared has this setting.", given=override, allowed=list(configs))
    return configs, out


def export_ogb(line: CommandLine) -> int:
    config = build(ExportConfig, compose_verb("export_ogb", line.overrides, folders=line.folders), "")
    from sargnn.graph.dataset import open_dataset
    from sargnn.sources.ogb.export import export
    from sargnn.sources.prepare import prepare_dataset

    out = Path(os.path.expanduser(config.out))
    if getattr(config.dataset, "add_inverse_edges", False):
        raise ConfigError(
            "Inverse edges would be there twice when they are read.",
            given="dataset.add_inverse_edges=true",
            allowed="dataset.add_inverse_edges=false",
        )
    with Steps():
        dataset = open_dataset(prepare_dataset(config.dataset, config.store_dir, config.prepare.bytes), verify=False)
        natural = "typed" if dataset.schema.typed else "binary" if "papers" in config.dataset.name else "csv"
        layout = natural if config.layout == "auto" else config.layout
        export(dataset, out, layout, symmetric=config.dataset.name in _SYMMETRIC)
    print(out)
    return 0


def import_dgl(line: CommandLine) -> int:
    """Make both stores; print their folders and what trains on them."""
    settings = {name: str(value) for name, value in line.settings.items()}
    if len(line.words) != 1:
        raise ConfigError(
            "One partition must be named.",
            given=" ".join(line.words) or "none",
            allowed="the NAME.json that dgl.distributed.partition_graph wrote",
        )
    from sargnn.partition.prepare import prepare_partition
    from sargnn.sources.dgl_partition.nodes import Names
    from sargnn.sources.dgl_partition.reader import dgl_partition
    from sargnn.sources.prepare import make_store

    if settings["name"] and not re.fullmatch(r"\w[\w.+-]{0,59}", settings["name"]):
        raise ConfigError(
            "'name' cannot be a part of a folder's name.", given=settings["name"], allowed="letters, digits, . _ + -"
        )
    buffer_bytes, store_dir = BufferConfig(settings["prepare.buffer"]).bytes, Path(settings["store_dir"])
    with Steps():
        partition = dgl_partition(
            Path(os.path.expanduser(line.words[0])),
            Names(*(settings[key] for key in ("feat", "label", "train", "val", "test", "orig"))),
            name=settings["name"],
            mapping=Path(os.path.expanduser(settings["mapping"])) if settings["mapping"] else None,
            inverse=bool(line.settings["inverse"]),
        )
        dataset = make_store(partition.reader, partition.name, store_dir / "datasets", buffer_bytes)
        file = store_dir / "assignments" / f"{dataset.name}-w{partition.parts.num_parts}.npy"
        _write(file, partition.nodes.assignment)
        # What a run with these stores asks for, so that it finds them.
        words = ["dataset=stored", "dataset.root=.", "partitioner=given", "partitioner.file=."]
        mapping = compose_verb("partition", words) | {"world": partition.parts.num_parts, "store_dir": str(store_dir)}
        mapping["dataset"]["root"], mapping["partitioner"]["file"] = str(dataset), str(file)
        info = prepare_partition(build(PartitionConfig, mapping, ""), dataset)
    size = info.num_edges, info.schema, info.feature_widths, info.num_classes
    for text in graph_lines(*size, weighted=info.weights is not None, pairs=info.pairs):
        say(text)
    say(_origin(partition))
    say(f"{info.dataset_name} by DGL into {info.world}")
    for text in partition_lines(vars(info.stats)):
        say(text)
    print(dataset)
    print(info.path)
    settings_of_run = {"dataset.root": str(dataset), "partitioner": "given", "partitioner.file": str(file)}
    if info.schema.typed:
        settings_of_run["model"] = "rgcn"
    if settings["store_dir"] != STORE_DIR.default:
        settings_of_run["store_dir"] = settings["store_dir"]
    plain = re.compile(r"[\w./+-]+")
    words = [f"{key}={text if plain.fullmatch(text) else quoted(text)}" for key, text in settings_of_run.items()]
    print(" ".join(["sargnn train dataset=stored", *map(shlex.quote, words), f"world={info.world}"]))
    return 0


def _write(file: Path, assignment: np.ndarray) -> None:
    """Under a temporary name first: the file is never half there."""
    import numpy as np

    temporary = file.with_name(f".{file.stem}.{os.getpid()}.npy")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        np.save(temporary, assignment)
        temporary.replace(file)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise StoreError(f"'{file}' cannot be written: {error.strerror}.", hint="store_dir=FOLDER elsewhere") from error


def _origin(partition: DglPartition) -> str:
    """Where the original ids come from."""
    sources = partition.nodes.known_from
    known = sorted({source for source in sources.values() if source})
    kept = [name for name, source in sources.items() if not source and partition.parts.counts[name]]
    if not kept:
        return f"original ids from {', '.join(known)}"
    which = "" if not known else f" of {', '.join(kept)}"
    return f"no original ids{which} are stored: the ids that DGL gave are kept (mapping=FILE restores them)"


def info(line: CommandLine) -> int:
    settings = line.settings
    import psutil
    import torch

    from sargnn.backends import DEVICES, KERNELS
    from sargnn.backends.choose import make_kernel
    from sargnn.backends.device import device_of
    from sargnn.native import describe
    from sargnn.tracking.mlflow.store import database_of, default_uri
    from sargnn.tracking.provenance import describe_bf16, versions

    memory = psutil.virtual_memory()
    rows = [("", f"{name} {version}") for name, version in versions().items() if name != "instructions"]
    rows += [
        ("compiled for", describe()),
        ("cores", f"{len(os.sched_getaffinity(0))} usable"),
        ("bf16", describe_bf16()),
        ("memory", f"{human_bytes(memory.total)}, {human_bytes(memory.available)} free"),
    ]
    devices = {name: device_of(name) for name in DEVICES}
    lines = [text for device in devices.values() for text in device.lines()]
    rows += zip(["devices", *[""] * (len(lines) - 1)], lines, strict=True)
    for name in KERNELS:
        kernel = make_kernel(name)
        reasons = {
            kind: [device.unavailable] if device.unavailable else kernel.unavailable_reasons(torch.device(kind), torch.float32)
            for kind, device in devices.items()
        }
        able = [kind for kind, why in reasons.items() if not why]
        why = "; ".join(dict.fromkeys(reason for why in reasons.values() for reason in why))
        rows.append((f"kernel {name}", f"can run on {' and '.join(able)}: {', '.join(kernel.operations)}" if able else why))
    uri = str(settings["tracking.uri"] or default_uri())
    database = database_of(uri)
    size = f", {human_bytes(database.stat().st_size)}" if database is not None and database.exists() else ""
    rows.append(("MLflow store", f"{uri}{size}" if size or database is None else "none yet in this folder"))
    folder = Path(str(settings["store_dir"]))
    store_sizes = stores(folder, KINDS)
    rows.append(("stores", f"{folder.resolve()}: {len(store_sizes)}, {human_bytes(sum(size for _, size in store_sizes))}"))
    rows += [("", f"{path.parent.name}/{path.name}: {human_bytes(size)}{_drawn_as(path)}") for path, size in store_sizes]
    show_table((), rows)
    return 0


def _drawn_as(path: Path) -> str:
    """Version, scale and seed of a graph that was drawn; empty for another store, or one that cannot be read."""
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


def clean(line: CommandLine) -> int:
    what, settings = str(line.settings["what"]), line.settings
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
