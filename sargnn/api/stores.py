"""The store of a graph that is an object in this process."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sargnn.api.overrides import as_words
from sargnn.errors import ConfigError

GRAPH = "the graph"


def store_of_graph(graph: Any, words: Sequence[str]) -> list[str]:
    """Make the graph's store, if it is not there, and name it as the dataset in the words of a command.

    Args:
        words: overrides; those of ``dataset`` say how the graph is read.

    Raises:
        ConfigError: a dataset is named, too.
        DataError: what is wrong with the graph.
    """
    from sargnn.cli.compose import compose_verb, says_how_labels_are_read
    from sargnn.config.fields import build
    from sargnn.config.verbs import PrepareConfig
    from sargnn.sources.own.reader import object_reader
    from sargnn.sources.prepare import make_store
    from sargnn.sources.settings import PythonConfig

    if any(word.startswith("resume=") for word in words):
        raise ConfigError("A run that is gone on with has its graph.", given="graph= and resume=", hint="leave graph= out")
    named = [word for word in words if word.startswith(("dataset=", "dataset.root=", "dataset.target="))]
    if named:
        raise ConfigError("A graph is given, and a dataset is named, too.", given=named[0], hint="leave one out")
    own = [
        word
        for word in words
        if word.startswith("dataset.") or (word.startswith("task=") and says_how_labels_are_read(word.partition("=")[2]))
    ]
    mapping = compose_verb("prepare", [*own, *_of_stores(words), "dataset=python", "dataset.target=null"])
    config = build(PrepareConfig, mapping, "")
    assert isinstance(config.dataset, PythonConfig)
    reader = object_reader(graph, config.dataset, "graph", GRAPH, None)
    path = make_store(reader, "graph", Path(config.store_dir) / "datasets", config.prepare.bytes)
    kept = [word for word in own if word.startswith(("dataset.add_self_loops=", "dataset.edge_weights="))]
    stored = as_words((), {"dataset": "stored", "dataset.root": path.resolve()})
    return [*(word for word in words if word not in own), *kept, *stored]


def _of_stores(words: Sequence[str]) -> list[str]:
    return [word for word in words if word.startswith(("store_dir=", "prepare."))]
