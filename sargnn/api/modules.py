"""A class of modules, or a function that returns one, as the words of a command line that name it."""

from __future__ import annotations

import inspect
import os
import re
from pathlib import Path
from typing import Any

from sargnn.cli.command_line import words_of
from sargnn.errors import ConfigError

_ALLOWED = "a class that extends torch.nn.Module, or a function that returns one, in a file of its own"


def words_of_module(model: Any) -> list[str]:
    """``model=custom model.target=...`` for ``sargnn.train(model=Gin)``.

    Args:
        model: a class or a function at the first level of a module.

    Raises:
        ConfigError: workers could not find it by its file and name, or would run the script that trains it.
    """
    if not inspect.isroutine(model) and not isinstance(model, type):
        kind = type(model).__name__
        raise ConfigError(
            "'model' is a module that is made already; the run makes its own.",
            given=f"a {kind}",
            allowed=_ALLOWED,
            hint=f'sargnn.train("model.args.NAME=VALUE", model={kind}, ...)',
        )
    name, file = getattr(model, "__qualname__", ""), _file_of(model)
    if model.__module__ == "__main__":
        raise ConfigError(
            "The model is defined where it is trained, and workers would run all of that again.",
            given=f"{name} in {os.path.basename(file) if file else 'an interactive session'}",
            allowed=_ALLOWED,
            hint="put it into a file and import it from there; in a notebook a cell that begins with %%writefile makes one",
        )
    if not name.isidentifier():
        raise ConfigError("The model cannot be found by a name.", given=name, allowed=_ALLOWED)
    place = model.__module__ if file is None or _imports_relatively(file) else file
    return ["model=custom", *words_of("model.target", f"{place}:{name}")]


def _file_of(model: Any) -> str | None:
    try:
        file = inspect.getsourcefile(model)
    except (TypeError, OSError):  # the latter of a class of a session that has no file
        return None
    return None if file is None or not os.path.isfile(file) else os.path.abspath(file)


def _imports_relatively(file: str) -> bool:
    """Whether a file works as a part of its package only."""
    return re.search(r"^\s*from\s+\.", Path(file).read_text(errors="replace"), flags=re.M) is not None
