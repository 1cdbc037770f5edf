"""What Python is given, as the words of a command line: settings, a class of modules, a graph that is an object."""

from __future__ import annotations

import dataclasses
import inspect
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sargnn.cli.command_line import words_of
from sargnn.errors import ConfigError

GRAPH = "the graph"
_ALLOWED = "a class that extends torch.nn.Module, or a function that returns one, in a file of its own"


def as_words(overrides: tuple[str, ...], settings: Mapping[str, Any]) -> list[str]:
    """The words that ``sargnn train`` would get. ``model`` may also be a class of modules, or a function that returns one.

    Raises ``ConfigError`` for an override that is no text, or a value that no setting can have.
    """
    for override in overrides:
        if not isinstance(override, str):
            hint = "graph=... takes a graph, world=... and the like are keywords"
            raise ConfigError("An override is a text.", given=f"{type(override).__name__}", allowed='"key=value"', hint=hint)
    module: list[str] = []
    if callable(settings.get("model")):
        settings = dict(settings)
        module = ["model=custom", *words_of("model.target", _place_of_module(settings.pop("model")))]
    return [*overrides, *module, *(word for key, value in settings.items() for word in words_of(key, value))]


def _place_of_module(model: Any) -> str:
    """``FILE.py:NAME`` of a class or a function that workers can find by it, else by its module's name; or ``ConfigError``."""
    if not inspect.isroutine(model) and not isinstance(model, type):
        kind = type(model).__name__
        raise ConfigError(
            "'model' is a module that is made already; the run makes its own.",
            given=f"a {kind}",
            allowed=_ALLOWED,
            hint=f'sargnn.train("model.args.NAME=VALUE", model={kind}, ...)',
        )
    name = getattr(model, "__qualname__", "")
    try:
        file = inspect.getsourcefile(model)
    except (TypeError, OSError):  # the latter of a class of a session that has no file
        file = None
    if file is not None:
        file = os.path.abspath(file) if os.path.isfile(file) else None
    if model.__module__ == "__main__":
        raise ConfigError(
            "The model is defined where it is trained, and workers would run all of that again.",
            given=f"{name} in {os.path.basename(file) if file else 'an interactive session'}",
            allowed=_ALLOWED,
            hint="put it into a file and import it from there; in a notebook a cell that begins with %%writefile makes one",
        )
    if not name.isidentifier():
        raise ConfigError("The model cannot be found by a name.", given=name, allowed=_ALLOWED)
    # A file with relative imports works as a part of its package only.
    if file is None or re.search(r"^\s*from\s+\.", Path(file).read_text(errors="replace"), flags=re.M):
        return f"{model.__module__}:{name}"
    return f"{file}:{name}"


def store_of_graph(graph: Any, words: Sequence[str], *, predicted_type: str | None = None) -> list[str]:
    """Make the store of a graph that is an object in this process, if it is not there, and name it in the words of a command.

    Args:
        words: overrides; those of ``dataset`` say how the graph is read.
        predicted_type: of a graph that is predicted on, the type whose nodes it is.

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
    of_stores = [word for word in words if word.startswith(("store_dir=", "prepare."))]
    config = build(PrepareConfig, compose_verb("prepare", [*own, *of_stores, "dataset=python", "dataset.target=null"]), "")
    assert isinstance(config.dataset, PythonConfig)
    settings = dataclasses.replace(config.dataset, predicted_type=predicted_type)
    reader = object_reader(graph, settings, "graph", GRAPH, None)
    path = make_store(reader, "graph", Path(config.store_dir) / "datasets", config.prepare.bytes)
    later = ("add_self_loops=", "loop_features=", "edge_weights=", "link_")  # of the store: links are drawn from it
    kept = [word for word in own if word.startswith(tuple(f"dataset.{setting}" for setting in later))]
    stored = as_words((), {"dataset": "stored", "dataset.root": path.resolve()})
    return [*(word for word in words if word not in own), *kept, *stored]
