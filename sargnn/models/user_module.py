"""What ``model.target`` names: found, checked, called; whatever it does wrong is one error with its file and line."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from sargnn.config.run import ModelSettings
from sargnn.data.schema import Schema
from sargnn.errors import ConfigError, SargnnError, nearest
from sargnn.models.custom import Custom
from sargnn.resolve import resolve

IN_WIDTHS = ("in_width", "in_size", "in_feats", "in_channels", "in_dim", "num_features")
"""What a constructor calls the width of its input rows."""
NUM_OUTPUTS = ("num_outputs", "out_size", "out_feats", "out_channels", "out_dim", "num_classes", "n_classes")
"""What it calls the number of outputs."""
_OF_TYPES = ("ntypes", "etypes")
_FULL = "SARGNN_FULL_ERROR=1 shows the whole traceback"
_ADVICE = {
    "0-in-degree nodes": "allow_zero_in_degree=True in the layer",
    "must be a DGLGraph": "the graph is a sharded one; call the layers one after the other",
}
"""What to do about errors of DGL's."""
_OUT_OF_MEMORY = ("tried to allocate", "Unable to allocate")


@dataclass(frozen=True)
class UserModule:
    """A class of modules, or a function that returns one.

    Attributes:
        make: it. name: what it is called. file: where it stands. line: where it begins, 0 where nobody knows.
        takes: the names of its arguments, in their order; none where they are not known.
    """

    make: Callable[..., Any]
    name: str
    file: str
    line: int
    takes: tuple[str, ...] = ()

    @property
    def place(self) -> str:
        """File, line and name, for messages."""
        return f"{self.file} line {self.line}, {self.name}" if self.line else f"{self.file}, {self.name}"

    def from_data(self, in_width: int, num_outputs: int, args: dict[str, Any], schema: Schema) -> dict[str, Any]:
        """The arguments that the data decide: what the constructor takes by such a name and ``args`` does not give."""
        types = schema.node_types
        relations = [(types[relation.source], relation.name, types[relation.destination]) for relation in schema.relations]
        values = dict.fromkeys(IN_WIDTHS, in_width) | dict.fromkeys(NUM_OUTPUTS, num_outputs)
        known = values | dict(zip(_OF_TYPES, (list(types), relations), strict=True))
        return {name: known[name] for name in self.takes if name in known and name not in args}

    def build(self, args: dict[str, Any]) -> nn.Module:
        """The module, made with these arguments.

        Raises:
            ConfigError: it fails, or gives no module with a ``forward(graph, x)``.
        """
        with self.blame("The model's constructor"):
            module = self.make(**args)
        if not isinstance(module, nn.Module):
            kind = type(module).__name__
            raise ConfigError(f"'{self.name}' returns no torch.nn.Module.", given=f"a {kind}, from {self.place}")
        self._check_forward(module)
        return module

    def _check_forward(self, module: nn.Module) -> None:
        name, given = type(module).__name__, self.forward_place(module)
        wanted = "def forward(self, graph, x)"
        if getattr(module.forward, "__func__", module.forward) in (nn.Module.forward, None) or not callable(module.forward):
            raise ConfigError(f"'{name}' has no forward.", given=self.place, allowed=wanted)
        try:
            inspect.signature(module.forward).bind(None, None)
        except TypeError as error:
            raise ConfigError(
                f"The model's forward must take a graph and rows: {error}.",
                given=f"{given}, forward{inspect.signature(module.forward)}",
                allowed=wanted,
            ) from error
        except ValueError:  # a function of C without a signature
            pass

    def forward_place(self, module: nn.Module) -> str:
        """File and line of a module's ``forward``, or where the target stands."""
        return line_of(module.forward) or self.place

    @contextmanager
    def blame(
        self, what: str, module: nn.Module | None = None, note: str | None = None, *, typed: bool = False
    ) -> Iterator[None]:
        """Turn any exception out of the user's code into one ``ConfigError`` with the user's file and line.

        What this package raises goes through, and so does what tells that memory ran out.

        Args:
            what: that fails, at the beginning of a sentence. module: whose forward it is. note: where it was found.
            typed: whether the graph is, so that its nodes can get no self-loops.
        """
        try:
            yield
        except (SargnnError, MemoryError):
            raise
        except (Exception, SystemExit) as error:
            if any(text in str(error) for text in _OUT_OF_MEMORY):
                raise
            lines = str(error).strip().splitlines() or [""]
            text = f"{type(error).__name__}: {lines[0]}{' ...' if lines[1:] else ''}"
            otherwise = self.place if module is None else self.forward_place(module)
            hint = "; ".join(advice for advice in (_advice(str(error), typed=typed), _FULL, note) if advice)
            raise ConfigError(f"{what} failed: {text}", given=self._line_in(error) or otherwise, hint=hint) from error

    def _line_in(self, error: BaseException) -> str | None:
        """The innermost line of the user's file in an exception's traceback."""
        own = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == self.file]
        return f"{own[-1].filename} line {own[-1].lineno}" if own else None


def _advice(text: str, *, typed: bool) -> str | None:
    advice = next((advice for part, advice in _ADVICE.items() if part in text), None)
    if "0-in-degree" in text and not typed:
        return f"dataset.add_self_loops=true gives each node a self-loop; or {advice}"
    return advice


def find_module(settings: Custom) -> UserModule:
    """What ``model.target`` names, once its arguments are known to be its own.

    Raises:
        ConfigError: it cannot be loaded, is no class of modules, or does not take ``model.args``.
    """
    target = str(settings.target)
    resolved = resolve("model", {}, settings.name, target)
    place, _, name = target.rpartition(":")
    if isinstance(resolved, type) and issubclass(resolved, ModelSettings):
        hint = "a class of settings is an option of its own: a file in conf/model with target: (docs/EXTENDING.md)"
        raise ConfigError("'model.target' names a class of settings, not a torch.nn.Module.", given=target, hint=hint)
    wrong = None
    if isinstance(resolved, nn.Module):
        wrong = f"a module that is made already, of class {type(resolved).__name__}"
    elif isinstance(resolved, type) and not issubclass(resolved, nn.Module):
        wrong = "a class that does not extend torch.nn.Module"
    elif not callable(resolved):
        wrong = f"a {type(resolved).__name__}"
    if wrong is not None:
        allowed = "a class that extends torch.nn.Module, or a function that returns one"
        raise ConfigError("'model.target' names no class of modules.", given=f"{target}, {wrong}", allowed=allowed)
    file, line = _where(resolved)
    return _with_arguments(UserModule(resolved, name, file or place, line), settings.args)


def _with_arguments(module: UserModule, args: dict[str, Any]) -> UserModule:
    """The same with the names that it takes. Raises ``ConfigError`` where it does not take ``args``, or needs more."""
    try:
        signature = inspect.signature(module.make)
    except ValueError:  # a function of C without a signature
        return module
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    parameters = [parameter for parameter in signature.parameters.values() if parameter.kind not in variable]
    takes = tuple(parameter.name for parameter in parameters)
    open_ended = any(parameter.kind is parameter.VAR_KEYWORD for parameter in signature.parameters.values())
    given = f"{module.place}{signature}"
    for name in args:
        if name not in takes and not open_ended:
            raise ConfigError(
                f"'{module.name}' takes no argument '{name}'.",
                given=f"model.args.{name}; {module.place}",
                allowed=[f"model.args.{argument}" for argument in nearest(name, takes)] or "it takes none",
            )
    for names, what in ((IN_WIDTHS, "the width of its input rows"), (NUM_OUTPUTS, "the number of its outputs")):
        left = [name for name in takes if name in names and name not in args]
        if len(left) > 1:
            raise ConfigError(
                f"'{module.name}' has {len(left)} arguments that may mean {what}: {_listed(left)}.",
                given=given,
                hint=f"give all but the one that does, such as {_as_settings(left[:-1])}",
            )
    decided = (*IN_WIDTHS, *NUM_OUTPUTS, *_OF_TYPES)
    needed = [
        parameter.name
        for parameter in parameters
        if parameter.default is parameter.empty and parameter.name not in (*args, *decided)
    ]
    if needed:
        others = [f"{', '.join(names)}" for names in (IN_WIDTHS, NUM_OUTPUTS) if not {*names} & {*takes}]
        hint = f"add {_as_settings(needed)}"
        if others:
            hint += f"; the data decide only arguments that are called {' or '.join(others)}"
        raise ConfigError(
            f"'{module.name}' needs the argument{'s' * (len(needed) > 1)} {_listed(needed)}.", given=given, hint=hint
        )
    return replace(module, takes=takes)


def _listed(names: Sequence[str]) -> str:
    """Names in a sentence."""
    quoted = [f"'{name}'" for name in names]
    return " and ".join([", ".join(quoted[:-1]), quoted[-1]] if len(quoted) > 1 else quoted)


def _as_settings(names: Sequence[str]) -> str:
    return " ".join(f"model.args.{name}=VALUE" for name in names)


def line_of(function: Any) -> str | None:
    """``FILE line N`` where a function written in Python begins; None for others."""
    code = getattr(inspect.unwrap(getattr(function, "__func__", function)), "__code__", None)
    return None if code is None else f"{code.co_filename} line {code.co_firstlineno}"


def _where(resolved: Any) -> tuple[str | None, int]:
    """The file of a class or function, and the line where it begins; of a class whose text is not found, of ``__init__``."""
    try:
        return inspect.getsourcefile(inspect.unwrap(resolved)), inspect.getsourcelines(inspect.unwrap(resolved))[1]
    except (OSError, TypeError):
        code = getattr(inspect.unwrap(getattr(resolved, "__init__", resolved)), "__code__", None)
        return (None, 0) if code is None else (code.co_filename, code.co_firstlineno)
