"""``dataset=python``: a function of the user's that returns a graph.

It is called whenever a run needs the dataset, and the store's key covers what it returns: whatever it reads, a store that holds
something else is never used.
"""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sargnn.config.run import DatasetSettings
from sargnn.errors import DataError, SargnnError
from sargnn.graph.dataset import Reader
from sargnn.resolve import resolve
from sargnn.sources.own.graph import OwnGraph
from sargnn.sources.own.objects import graph_of
from sargnn.sources.own.reader import blame, own_reader
from sargnn.steps import step

if TYPE_CHECKING:
    from sargnn.sources.settings import OwnGraphConfig, PythonConfig


def function_reader(config: PythonConfig) -> Reader:
    """The reader of what the function returns.

    Raises:
        ConfigError: there is no such function.
        DataError: it cannot be called so, fails, or returns something else than a graph; its file and line are named.
    """
    assert config.target is not None
    function = resolve("dataset", {}, config.name, config.target)
    place, name = config.target.rpartition(":")[0], config.title
    if isinstance(function, type) and issubclass(function, DatasetSettings):
        hint = "a class of settings is an option of its own: a file in conf/dataset with target: (docs/EXTENDING.md)"
        raise DataError("'dataset.target' names a class of settings, not a function.", given=config.target, hint=hint)
    if not callable(function):
        kind = type(function).__name__
        raise DataError(
            "'dataset.target' names something that cannot be called.", given=f"{config.target}, a {kind}", allowed="a function"
        )
    origin = _place_of(function, place, name)
    step(f"calling {name}")
    value = _call(function, name, config.args, place, origin)
    return object_reader(value, config, name, f"what '{name}' returns", origin)


def object_reader(value: Any, config: OwnGraphConfig, name: str, whole: str, origin: str | None) -> Reader:
    """The reader of a graph that is an object in memory. Arguments as ``graph_of``'s and ``own_reader``'s."""
    with blame(origin):
        graph: OwnGraph = graph_of(name, whole, value)
    return own_reader(graph, config, graph.digest(), origin)


def _place_of(function: Any, place: str, name: str) -> str:
    """Where a function stands, for messages."""
    try:
        line = inspect.getsourcelines(inspect.unwrap(function))[1]
        place = inspect.getsourcefile(inspect.unwrap(function)) or place
    except (OSError, TypeError):
        return f"{place}, {name}"
    return f"{place} line {line}, {name}"


def _call(function: Callable[..., Any], name: str, arguments: dict[str, Any], place: str, origin: str) -> Any:
    try:
        inspect.signature(function).bind(**arguments)
    except TypeError as error:
        given = ", ".join(f"{key}={value!r}" for key, value in arguments.items()) or "no arguments"
        raise DataError(
            f"'{name}' cannot be called so: {error}.",
            given=f"{given}; {origin}",
            allowed=f"{name}{inspect.signature(function)}",
            hint="dataset.args.KEY=VALUE gives an argument",
        ) from error
    except ValueError:  # a function of C without a signature
        pass
    try:
        return function(**arguments)
    except SargnnError:
        raise
    except (Exception, SystemExit) as error:
        frames = traceback.extract_tb(error.__traceback__)
        own = [frame for frame in frames if Path(frame.filename) == Path(place)] or list(frames)[1:] or list(frames)
        raise DataError(
            f"'{name}' failed: {type(error).__name__}: {error}",
            given=f"{own[-1].filename} line {own[-1].lineno}",
            hint="SARGNN_FULL_ERROR=1 shows the whole traceback",
        ) from error
