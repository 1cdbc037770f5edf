"""A module of the user's as a model: found, checked, built, given the graph and the rows; what it gives back is checked, too.

Whatever the user's code does wrong is one error with its file and line.

Letters: N input rows, M output rows of the labelled type, C outputs, L layers, T node types.
"""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from sargnn.comm.group import Group
from sargnn.config.choices import ModelSettings
from sargnn.config.models import CustomSettings
from sargnn.config.run import RunConfig
from sargnn.engine.aggregate import Engine
from sargnn.errors import ConfigError, SargnnError, nearest
from sargnn.interop.dgl import missing_in
from sargnn.models.base import LayerInput, Model
from sargnn.models.inputs import EVERY_TYPE, GraphShape, Inputs, NoRows, TypedRows, input_rows
from sargnn.models.probe import try_module, try_without_edges
from sargnn.modules.calls import StockCalls
from sargnn.modules.dgl_typed import GraphMaker
from sargnn.modules.functions import count_lengths, describe_replaced
from sargnn.modules.pyg import KNOWN, NO_FEATURES, PygGraph, Signature, joins_types, signature_of
from sargnn.modules.session import Asked, Places
from sargnn.modules.tag import Rows, constant, mark_of, rows_of, tagged
from sargnn.plan.layer_plan import LayerPlan
from sargnn.resolve import resolve

IN_WIDTHS = ("in_width", "in_size", "in_feats", "in_channels", "in_dim", "num_features")
"""What a constructor calls the width of its input rows."""
NUM_OUTPUTS = ("num_outputs", "out_size", "out_feats", "out_channels", "out_dim", "num_classes", "n_classes")
"""What it calls the number of outputs."""
_OF_TYPES = ("ntypes", "etypes", "metadata", "num_relations", "num_nodes", "edge_dim", "deg")
"""What else the data decide, by the names that DGL's and PyG's classes have."""
_FULL = "SARGNN_FULL_ERROR=1 shows the whole traceback"
_ADVICE = {
    "0-in-degree nodes": "allow_zero_in_degree=True in the layer",
    "must be a DGLGraph": "the graph is a sharded one; call the layers one after the other",
    "only supports integer tensors of shape": "of several types x and edge_index are mappings: to_hetero, HeteroConv, or an "
    "argument edge_type, with which all types are one graph",
}
"""What to do about errors of DGL's and PyG's."""
_OUT_OF_MEMORY = ("tried to allocate", "Unable to allocate")
_EMBEDDING = 256


@dataclass(frozen=True)
class UserModule:
    """A class of modules, or a function that returns one, with the line of ``file`` where it begins, 0 where nobody knows.

    ``takes``: the names of its arguments, in their order, none where they are not known; ``by_type``: those that may be a
    mapping from node types, by their annotation or default.
    """

    make: Callable[..., Any]
    name: str
    file: str
    line: int
    takes: tuple[str, ...] = ()
    by_type: frozenset[str] = frozenset()

    @property
    def place(self) -> str:
        return f"{self.file} line {self.line}, {self.name}" if self.line else f"{self.file}, {self.name}"

    def maps_rows(self, args: dict[str, Any]) -> bool:
        """Whether it wants one width for the rows of all node types."""
        return any(name in IN_WIDTHS and name not in (*args, *self.by_type) for name in self.takes)

    def from_data(
        self, in_width: int | dict[str, int], num_outputs: int, args: dict[str, Any], shape: GraphShape
    ) -> dict[str, Any]:
        """The arguments that the data decide: what the constructor takes by such a name and ``args`` does not give."""
        schema, types = shape.schema, shape.schema.node_types
        relations = [(types[relation.source], relation.name, types[relation.destination]) for relation in schema.relations]
        values = dict.fromkeys(IN_WIDTHS, in_width) | dict.fromkeys(NUM_OUTPUTS, num_outputs)
        degrees = torch.tensor(shape.degrees or (0, 1))  # nobody knows them yet where a module is only tried out
        pair, edge_dim = (list(types), relations), shape.edge_width or None
        of_types = (*pair, pair, len(relations), schema.num_nodes, edge_dim, degrees)
        known = values | dict(zip(_OF_TYPES, of_types, strict=True))
        return {name: known[name] for name in self.takes if name in known and name not in args}

    def build(self, args: dict[str, Any]) -> nn.Module:
        """Make the module. Raises ``ConfigError`` where that fails, or gives no module with a ``forward(graph, x)``."""
        nothing = f"edge_dim=None, for {NO_FEATURES}" if args.get("edge_dim", 0) is None else None
        with self.blame("The model's constructor", note=nothing):
            module = self.make(**args)
        if not isinstance(module, nn.Module):
            kind = type(module).__name__
            raise ConfigError(f"'{self.name}' returns no torch.nn.Module.", given=f"a {kind}, from {self.place}")
        name, wanted = type(module).__name__, "def forward(self, x, edge_index), or DGL's def forward(self, graph, x)"
        if getattr(module.forward, "__func__", module.forward) in (nn.Module.forward, None) or not callable(module.forward):
            raise ConfigError(f"'{name}' has no forward.", given=self.place, allowed=wanted)
        taken = signature_of(module)
        if taken is not None:
            if taken.unknown:
                raise ConfigError(
                    f"Nothing is known for {_listed(taken.unknown)} of the model's forward.",
                    given=f"{self.forward_place(module)}, {taken}",
                    allowed=", ".join(KNOWN),
                    hint="give other arguments a default",
                )
            return module
        try:
            inspect.signature(module.forward).bind(None, None)
        except TypeError as error:
            raise ConfigError(
                f"The model's forward must take rows and edges, or a graph and rows: {error}.",
                given=f"{self.forward_place(module)}, forward{inspect.signature(module.forward)}",
                allowed=wanted,
            ) from error
        except ValueError:  # a function of C without a signature
            pass
        return module

    def forward_place(self, module: nn.Module) -> str:
        code = getattr(inspect.unwrap(getattr(module.forward, "__func__", module.forward)), "__code__", None)
        return self.place if code is None else f"{code.co_filename} line {code.co_firstlineno}"

    @contextmanager
    def blame(
        self, what: str, module: nn.Module | None = None, note: str | None = None, *, typed: bool = False
    ) -> Iterator[None]:
        """Turn any exception out of the user's code into one ``ConfigError`` with the innermost line of the user's file.

        What this package raises goes through, and so does what tells that memory ran out.

        Args:
            what: that fails, at the beginning of a sentence.
            note: where it was found, or what may be the reason.
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
            own = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == self.file]
            place = self.place if module is None else self.forward_place(module)
            if own:
                place = f"{own[-1].filename} line {own[-1].lineno}"
            if dgl_missing := missing_in(error, place):
                raise dgl_missing from error
            hint = "; ".join(advice for advice in (_advice(str(error), typed=typed), _FULL, note) if advice)
            raise ConfigError(f"{what} failed: {text}", given=place, hint=hint) from error


def _advice(text: str, *, typed: bool) -> str | None:
    advice = next((advice for part, advice in _ADVICE.items() if part in text), None)
    if "0-in-degree" in text and not typed:
        return f"dataset.add_self_loops=true gives each node a self-loop; or {advice}"
    return advice


def find_module(settings: CustomSettings) -> UserModule:
    """What ``model.target`` names.

    Raises ``ConfigError`` where it cannot be loaded, is no class of modules, or does not take ``model.args``.
    """
    target = str(settings.target)
    resolved = resolve("model", {}, settings.name, target)
    place, _, name = target.rpartition(":")
    if isinstance(resolved, type) and issubclass(resolved, ModelSettings):
        hint = (
            "a class of settings is an option of its own: a file in conf/model with target: (docs/maintainers/extend-model.md)"
        )
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
    by_type = {parameter.name for parameter in parameters if _may_be_mapping(parameter)}
    return replace(module, takes=takes, by_type=frozenset(by_type))


def _may_be_mapping(parameter: inspect.Parameter) -> bool:
    annotation = parameter.annotation
    text = annotation if isinstance(annotation, str) else str(annotation)
    return isinstance(parameter.default, dict) or any(kind in text for kind in ("Dict[", "dict", "Mapping"))


def _listed(names: Sequence[str]) -> str:
    quoted = [f"'{name}'" for name in names]
    return " and ".join([", ".join(quoted[:-1]), quoted[-1]] if len(quoted) > 1 else quoted)


def _as_settings(names: Sequence[str]) -> str:
    return " ".join(f"model.args.{name}=VALUE" for name in names)


def _where(resolved: Any) -> tuple[str | None, int]:
    """The file of a class or function, and the line where it begins; of a class whose text is not found, of ``__init__``."""
    try:
        return inspect.getsourcefile(inspect.unwrap(resolved)), inspect.getsourcelines(inspect.unwrap(resolved))[1]
    except (OSError, TypeError):
        code = getattr(inspect.unwrap(getattr(resolved, "__init__", resolved)), "__code__", None)
        return (None, 0) if code is None else (code.co_filename, code.co_firstlineno)


class CustomModel(Model):
    """Any module with ``forward(x, edge_index)`` and the like (``modules.pyg``), or with ``forward(graph, x)``.

    Attributes:
        from_data: the arguments of its constructor that the data decided.
        num_layers: how many blocks its forward asks for, 1 if none; None until ``try_out`` has found it out.
        asked: what the last forward pass asked of its blocks.
        note: what errors say of where they were found; None in a run.
        group: the workers that calls in forward must suit; None: the engine's.
        folds_rows: whether forward has folded over rows, as in ``x.mean(0)``.
        draws_parameters: as in ``StockCalls``.
        signature: how it takes PyG's edges; None: it takes a graph as DGL has it.
    """

    def __init__(self, settings: CustomSettings, shape: GraphShape) -> None:
        super().__init__()
        settings.check_target()
        self.settings, self.source = settings, find_module(settings)
        self.inputs: Inputs
        embedding = settings.embedding
        if shape.schema.typed or isinstance(embedding, dict):
            as_they_are = shape.schema.typed and not self.source.maps_rows(settings.args)
            self.inputs = TypedRows(shape, embedding, _EMBEDDING, as_they_are=as_they_are)
        else:
            self.inputs = input_rows(shape, settings.name, embedding or _EMBEDDING)
        self.module, self.signature, self.widths = self._build(shape)
        if shape.schema.typed and len(set(self.widths)) > 1 and joins_types(self.signature):
            self.inputs = TypedRows(shape, embedding, _EMBEDDING)  # all types are one graph, whose rows are as wide
            self.module, self.signature, self.widths = self._build(shape)
        if self.signature is not None and self.signature.asks and self.signature.rows is None:
            self.inputs, self.widths = NoRows(), (0,) * len(self.widths)
        count_lengths(self.module)
        self.num_outputs, self.labelled = shape.num_classes, shape.labelled
        self.num_layers: int | None = None
        self.asked = Asked()
        self.folds_rows = self.draws_parameters = False
        self.note: str | None = None
        self.group: Group | None = None
        self.by_relation = "joined" if joins_types(self.signature) else True
        self._seen: LayerPlan | None = None
        self._graphs = GraphMaker(self.source.file)

    def _build(self, shape: GraphShape) -> tuple[nn.Module, Signature | None, tuple[int, ...]]:
        """The module, how it takes its graph, and the widths of the rows of each node type."""
        types, columns = shape.schema.node_types, shape.label_columns
        widths = self.inputs.widths if isinstance(self.inputs, TypedRows) else (self.inputs.width,)
        same = len(set(widths)) == 1
        by_type = {name: width + columns for name, width in zip(types, widths, strict=False)}
        in_width = widths[0] + columns if same else by_type
        self.from_data = self.source.from_data(in_width, shape.num_classes, self.settings.args, shape)
        module = self.source.build({**self.from_data, **self.settings.args})
        return module, signature_of(module), widths

    @property
    def uses_edges(self) -> list[bool]:
        return [True] * (self.num_layers or 1)

    @property
    def norms_over_rows(self) -> bool:
        return self.folds_rows or super().norms_over_rows

    def kernels(self, engine: Engine) -> set[str]:
        return engine.kernels

    def try_out(self, config: RunConfig, shape: GraphShape) -> None:
        try_module(self, config, shape)

    def try_without_edges(self, config: RunConfig, shape: GraphShape, find_lacking: Callable[[], Mapping[int, int]]) -> None:
        try_without_edges(self, config, shape, find_lacking)

    def decay_groups(self) -> dict[str, list[nn.Parameter]]:
        """The module's own modules, by name; a parameter that several have belongs to the first."""
        groups: dict[str, list[nn.Parameter]] = {}
        seen: set[int] = set()
        for name, child in self.module.named_children():
            own = [p for p in child.parameters() if id(p) not in seen]
            seen |= {id(p) for p in own}
            if own:
                groups[name] = own
        return groups

    def remarks(self) -> list[str]:
        numbers = [f"{name}={value}" if isinstance(value, (int, dict)) else name for name, value in self.from_data.items()]
        filled_in = [f"from the data: {', '.join(numbers)}"] if numbers else []
        return [*filled_in, *describe_replaced(self.module)]

    def calls(self) -> list[str]:
        return self._graphs.report

    def prepare(self, engine: Engine, plans: Sequence[LayerPlan]) -> None:
        self._graphs.prepare(engine, plans)

    def forward(self, engine: Engine, plans: Sequence[LayerPlan], x: LayerInput, *, hidden: bool = False) -> Tensor:
        if hidden:
            raise ConfigError(CustomSettings.no_embeddings)
        plan, joined = plans[0], x.joined()
        schema, ends = plan.schema, pairwise(plan.row_bounds)
        given = {  # by node type views that nobody may write to
            name: tagged(
                joined[a:b] if width == self.inputs.width else _narrowed(x, a, b, width), Rows("nodes", t), shared=True
            )
            for t, (name, (a, b), width) in enumerate(zip(schema.node_types, ends, self.widths, strict=True))
        }
        if self.inputs.constant and x.labels is None and not joined.requires_grad:
            given = {name: constant(tensor) for name, tensor in given.items()}
        before = [(tensor, tensor._version, tensor.detach().clone() if self.note else None) for tensor in given.values()]
        rows = given if schema.typed else next(iter(given.values()))
        places = Places(self.group or engine.group, plans)
        observe = None if self.observer is None else self.observer(places)
        calls = StockCalls(engine, places, path=self.source.file, observe=observe)
        session = self._graphs.session(engine, calls, training=self.training, num_blocks=self.num_layers)
        self.asked = session.asked
        graph = self._graphs.graph(session, plans)
        calls.narrows, calls.draws_parameters = self.signature is not None, self.draws_parameters
        if plan is not self._seen:
            _forget_cached(self.module)
            self._seen = plan
        with self.source.blame("The model's forward", self.module, self.note, typed=schema.typed), calls:
            if self.signature is None:
                out = self.module(graph, rows)
            else:
                whole = tagged(joined, Rows("nodes", -1), shared=True)
                sharded = PygGraph(session, graph, rows, whole, self.labelled, x.queries)
                out = sharded.call(self.module, self.signature)
        self.folds_rows = self.folds_rows or calls.folds_rows
        if any(tensor._version != version or not (old is None or torch.equal(tensor, old)) for tensor, version, old in before):
            raise self.wrong(
                "The model's forward writes to its input rows, which the next epoch reads again.",
                hint="x = x + ... in place of x += ..., relu(x) in place of relu_(x)",
            )
        return self._checked(out, engine, plans[-1], self.num_outputs if x.queries is None else len(x.queries))

    def _checked(self, out: Any, engine: Engine, plan: LayerPlan, width: int) -> Tensor:
        """The labelled type's rows [M, C] of what forward gave. Raises ``ConfigError`` for anything else."""
        types, number = plan.schema.node_types, self.labelled
        if number == EVERY_TYPE and isinstance(out, Mapping) and all(name in out for name in types):
            out = torch.cat([out[name] for name in types])
        first, last = (0, len(types)) if number == EVERY_TYPE else (number, number + 1)
        if isinstance(out, Mapping) and plan.schema.typed:
            if number == EVERY_TYPE or types[number] not in out:
                names = [str(key) for key in out]
                raise self.wrong(
                    f"The model's forward returns no rows of the labelled node type '{types[number]}'.",
                    given=f"rows of {', '.join(names) or 'no type'}",
                    allowed=f"rows of '{types[number]}', or of more types",
                )
            out = out[types[number]]
        wanted = f"a tensor [nodes, {width}] of {engine.dtype}"
        if plan.schema.typed:
            wanted += f", or a mapping with one for '{types[number]}'"
        if not isinstance(out, Tensor):
            given = "None" if out is None else f"a {type(out).__name__}"
            if isinstance(out, Mapping):
                given = f"a mapping with {', '.join(str(key) for key in out)}"
            raise self.wrong("The model's forward returns no tensor.", given=given, allowed=wanted)
        rows, shown = plan.out_bounds[last] - plan.out_bounds[first], list(out.shape)
        if out.dim() != 2 or out.shape[1] != width:
            hint = "the rows' heads are joined by h.mean(1) or h.flatten(1)" if out.dim() == 3 else None
            raise self.wrong(
                "The model's output has another width than there are outputs.",
                given=f"shape {shown}",
                allowed=wanted,
                hint=hint,
            )
        if out.shape[0] != rows:
            raise self.wrong(
                "The model's output has not one row for each node.", given=f"shape {shown} for {rows} nodes", allowed=wanted
            )
        if out.dtype != engine.dtype:
            raise self.wrong("The model's output has another precision than the run.", given=out.dtype, allowed=wanted)
        mark = mark_of(out)
        several = (self.group or engine.group).world > 1
        elsewhere = mark is not None and mark.rows is None and not plan.schema.typed  # h[types == 1] of a joined table is fine
        if mark is not None and several and (elsewhere or not mark.is_single or mark.numbered):
            why = mark.numbered or mark.why or "several rows for each node"
            raise self.wrong("The model's output has not the graph's rows in their order.", given=why, allowed=wanted)
        if mark is None and several and number != EVERY_TYPE:
            raise self.wrong("The model's output was made without the graph's rows.", allowed=wanted)
        tag = rows_of(out)
        if tag is not None and (tag.kind, tag.type) != ("nodes", number):
            what = "edges" if tag.kind == "edges" else f"nodes of type '{types[tag.type]}'"
            raise self.wrong("The model's output has rows of something else.", given=f"rows of {what}", allowed=wanted)
        return out

    def wrong(self, what: str, *, given: object = None, allowed: Any = None, hint: str | None = None) -> ConfigError:
        place = self.source.forward_place(self.module)
        notes = "; ".join(note for note in (hint, self.note) if note)
        return ConfigError(what, given=place if given is None else f"{given}; {place}", allowed=allowed, hint=notes or None)


def _narrowed(x: LayerInput, first: int, last: int, width: int) -> Tensor:
    """A type's rows without the columns that only wider types have, and its labels."""
    blocks = [x.rows[first:last, :width], *(block[first:last] for block in x.blocks[1:])]
    return blocks[0] if len(blocks) == 1 else torch.cat(blocks, 1)


def _forget_cached(module: nn.Module) -> None:
    """Let layers of PyG's with ``cached=True`` compute anew, on another graph, what they keep."""
    for part in module.modules():
        for name in [name for name in vars(part) if name.startswith("_cached")]:
            setattr(part, name, None)
