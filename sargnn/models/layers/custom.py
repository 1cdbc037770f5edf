"""A module of the user's as a model: it gets the graph and the rows, and what it gives back is checked.

Letters: N input rows, M output rows of the labelled type, C outputs, L layers, T node types.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from sargnn.comm.group import Group
from sargnn.config.run import RunConfig
from sargnn.engine.aggregate import Engine
from sargnn.errors import ConfigError
from sargnn.models.base import LayerInput, Model
from sargnn.models.custom import Custom
from sargnn.models.inputs import Features, GraphShape, Inputs, TypedRows
from sargnn.models.user_module import UserModule, find_module
from sargnn.modules.calls import StockCalls, describe_replaced
from sargnn.modules.dgl_typed import GraphMaker
from sargnn.modules.session import Asked, Places
from sargnn.modules.tag import Rows, constant, rows_of, tagged
from sargnn.shards.plan import LayerPlan

_EMBEDDING = 256
_LOOP = "for layer, block in zip(self.layers, graph.blocks): h = layer(block, h)"


class CustomModel(Model):
    """Any module with ``forward(graph, x)``.

    Args:
        source: what made the module, for messages.
        inputs: the rows of all node types.
        module: the user's.
        shape: of the graph.
        from_data: the arguments of its constructor that the data decided.

    Attributes:
        num_layers: L, how many blocks its forward asks for, 1 if it asks for none; None until ``try_out`` has found it out.
        asked: what the last forward pass asked of its blocks.
        note: what errors say of where they were found; None in a run.
        group: the workers that calls in forward must suit; None: the engine's.
    """

    by_relation = True

    def __init__(
        self, source: UserModule, inputs: Inputs, module: nn.Module, shape: GraphShape, from_data: Mapping[str, Any]
    ) -> None:
        super().__init__()
        self.source, self.inputs, self.module = source, inputs, module
        self.num_outputs, self.labelled, self.from_data = shape.num_classes, shape.labelled, from_data
        self.num_layers: int | None = None
        self.asked = Asked()
        self.note: str | None = None
        self.group: Group | None = None
        self._graphs = GraphMaker(source.file)

    @property
    def uses_edges(self) -> list[bool]:
        return [True] * (self.num_layers or 1)

    def kernels(self, engine: Engine) -> set[str]:
        return engine.kernels

    def try_out(self, config: RunConfig, shape: GraphShape) -> None:
        from sargnn.models.probe import try_module

        settings = config.model
        assert isinstance(settings, Custom)
        try_module(self, lambda small: build(settings, small), config, shape)

    def try_without_edges(self, config: RunConfig, shape: GraphShape, find_lacking: Callable[[], Mapping[int, int]]) -> None:
        from sargnn.models.probe import try_without_edges

        settings = config.model
        assert isinstance(settings, Custom)
        try_without_edges(self, lambda small: build(settings, small), config, shape, find_lacking)

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
        numbers = [f"{name}={value}" if isinstance(value, int) else name for name, value in self.from_data.items()]
        filled_in = [f"from the data: {', '.join(numbers)}"] if numbers else []
        return [*filled_in, *describe_replaced(self.module)]

    def calls(self) -> list[str]:
        return self._graphs.report.lines

    def prepare(self, engine: Engine, plans: Sequence[LayerPlan]) -> None:
        self._graphs.prepare(engine, plans)

    def forward(self, engine: Engine, plans: Sequence[LayerPlan], x: LayerInput, *, hidden: bool = False) -> Tensor:
        if hidden:
            raise ConfigError(Custom.no_embeddings)
        given = _by_type(plans[0], x.joined())
        if self.inputs.constant and x.labels is None:
            given = {name: constant(tensor) for name, tensor in given.items()}
        before = [(tensor, tensor._version, tensor.detach().clone() if self.note else None) for tensor in given.values()]
        rows = given if plans[0].schema.typed else next(iter(given.values()))
        places = Places(self.group or engine.group, plans)
        observe = None if self.observer is None else self.observer(places)
        calls = StockCalls(engine, places, path=self.source.file, observe=observe)
        session = self._graphs.session(engine, calls, training=self.training, num_blocks=self.num_layers)
        self.asked = session.asked
        graph = self._graphs.graph(session, plans)
        typed = plans[0].schema.typed
        with self.source.blame("The model's forward", self.module, self.note, typed=typed), calls:
            out = self.module(graph, rows)
        if any(tensor._version != version or not (old is None or torch.equal(tensor, old)) for tensor, version, old in before):
            raise self.wrong(
                "The model's forward writes to its input rows, which the next epoch reads again.",
                hint="x = x + ... in place of x += ..., relu(x) in place of relu_(x)",
            )
        return self._checked(out, engine, plans[-1])

    def _checked(self, out: Any, engine: Engine, plan: LayerPlan) -> Tensor:
        """The labelled type's rows [M, C] of what forward gave. Raises ``ConfigError`` for anything else."""
        types, number = plan.schema.node_types, self.labelled
        if isinstance(out, Mapping) and plan.schema.typed:
            if types[number] not in out:
                names = [str(key) for key in out]
                raise self.wrong(
                    f"The model's forward returns no rows of the labelled node type '{types[number]}'.",
                    given=f"rows of {', '.join(names) or 'no type'}",
                    allowed=f"rows of '{types[number]}', or of more types",
                )
            out = out[types[number]]
        wanted = f"a tensor [nodes, {self.num_outputs}] of {engine.dtype}"
        if plan.schema.typed:
            wanted += f", or a mapping with one for '{types[number]}'"
        if not isinstance(out, Tensor):
            raise self.wrong("The model's forward returns no tensor.", given=_kind(out), allowed=wanted)
        rows, shown = plan.out_bounds[number + 1] - plan.out_bounds[number], list(out.shape)
        if out.dim() != 2 or out.shape[1] != self.num_outputs:
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
        tag = rows_of(out)
        if tag is not None and (tag.kind, tag.type) != ("nodes", number):
            what = "edges" if tag.kind == "edges" else f"nodes of type '{types[tag.type]}'"
            raise self.wrong("The model's output has rows of something else.", given=f"rows of {what}", allowed=wanted)
        return out

    def refuse_without_blocks(self) -> ConfigError:
        """The error for message flows where nobody knows where one layer ends and the next begins."""
        return self.wrong(
            "With message flows each layer works on a graph of its own, and the model does not ask for them.",
            given="mfg=true, micro-batches, several steps or samples",
            hint=_LOOP,
            allowed="mfg=false batches.count=1 batches.steps=1 sample.fanouts=null",
        )

    def wrong(self, what: str, *, given: object = None, allowed: Any = None, hint: str | None = None) -> ConfigError:
        """An error about the module, with the place of its ``forward``."""
        place = self.source.forward_place(self.module)
        notes = "; ".join(note for note in (hint, self.note) if note)
        return ConfigError(what, given=place if given is None else f"{given}; {place}", allowed=allowed, hint=notes or None)


def _by_type(plan: LayerPlan, rows: Tensor) -> dict[str, Tensor]:
    """Rows [N, F] by node type, views that nobody may write to."""
    ends = zip(plan.schema.node_types, plan.row_bounds, plan.row_bounds[1:], strict=False)
    return {name: tagged(rows[a:b], Rows("nodes", t), shared=True) for t, (name, a, b) in enumerate(ends)}


def _kind(value: Any) -> str:
    if value is None:
        return "None"
    if isinstance(value, Mapping):
        return f"a mapping with {', '.join(str(key) for key in value)}"
    return f"a {type(value).__name__}"


def build(config: Custom, shape: GraphShape) -> CustomModel:
    """The model that ``config`` describes."""
    config.check_target()
    source = find_module(config)
    inputs = TypedRows(shape, config.embedding, _EMBEDDING) if shape.schema.typed else Features(shape, config.name)
    from_data = source.from_data(inputs.width + shape.label_columns, shape.num_classes, config.args, shape.schema)
    return CustomModel(source, inputs, source.build({**from_data, **config.args}), shape, from_data)
