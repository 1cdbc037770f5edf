"""``sargnn import-dgl``: a partition that DGL wrote, as stores."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from sargnn.cli.command_line import CommandLine
from sargnn.cli.verbs import STORE_DIR
from sargnn.errors import ConfigError, StoreError

if TYPE_CHECKING:
    import numpy as np

    from sargnn.config.verbs import PartitionConfig
    from sargnn.data.dgl_partition.reader import DglPartition


def main(line: CommandLine) -> int:
    """Make both stores; prints their folders and what trains on them."""
    settings = {name: str(value) for name, value in line.settings.items()}
    if len(line.words) != 1:
        raise ConfigError(
            "One partition must be named.",
            given=" ".join(line.words) or "none",
            allowed="the NAME.json that dgl.distributed.partition_graph wrote",
        )
    from sargnn.config.memory import BufferConfig
    from sargnn.data.dgl_partition.nodes import Names
    from sargnn.data.dgl_partition.reader import dgl_partition
    from sargnn.data.prepare import make_store
    from sargnn.partition.prepare import prepare_partition
    from sargnn.tracking.progress import Steps, graph_lines, partition_lines, say

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
        info = prepare_partition(_partition(dataset, file, partition.parts.num_parts, store_dir), dataset)
    size = info.num_edges, info.schema, info.feature_widths, info.num_classes
    for text in graph_lines(*size, weighted=info.weights is not None):
        say(text)
    say(_origin(partition))
    say(f"{info.dataset_name} by DGL into {info.world}")
    for text in partition_lines(vars(info.stats)):
        say(text)
    print(dataset)
    print(info.path)
    print(_command(dataset, file, info.world, settings["store_dir"], typed=info.schema.typed))
    return 0


def _partition(dataset: Path, file: Path, world: int, store_dir: Path) -> PartitionConfig:
    """What a run with these stores asks for, so that it finds them."""
    from sargnn.cli.compose import compose_verb
    from sargnn.config.verbs import parse_partition

    mapping = compose_verb("partition", ["dataset=stored", "dataset.root=.", "partitioner=given", "partitioner.file=."])
    mapping["dataset"]["root"], mapping["partitioner"]["file"] = str(dataset), str(file)
    return parse_partition(mapping | {"world": world, "store_dir": str(store_dir)})


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
    """Where the ids come from."""
    sources = partition.nodes.known_from
    known = sorted({source for source in sources.values() if source})
    kept = [name for name, source in sources.items() if not source and partition.parts.counts[name]]
    if not kept:
        return f"original ids from {', '.join(known)}"
    which = "" if not known else f" of {', '.join(kept)}"
    return f"no original ids{which} are stored: the ids that DGL gave are kept (mapping=FILE restores them)"


def _command(dataset: Path, file: Path, world: int, store_dir: str, *, typed: bool) -> str:
    words = [f"dataset.root={_quote(str(dataset))}", "partitioner=given", f"partitioner.file={_quote(str(file))}"]
    if typed:
        words.append("model=rgcn")
    if store_dir != STORE_DIR.default:
        words.append(f"store_dir={_quote(store_dir)}")
    return " ".join(["sargnn train dataset=stored", *map(shlex.quote, words), f"world={world}"])


def _quote(path: str) -> str:
    """As an override's value."""
    return path if re.fullmatch(r"[\w./+-]+", path) else "'" + path.replace("\\", "\\\\").replace("'", "\\'") + "'"
