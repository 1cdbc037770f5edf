"""A module of the user's, tried out on a made-up graph before anything long begins.

The graph has the run's node types, relations, widths and outputs, but six nodes a type: every relation is a ring with a
self-loop at each node. Forward and backward run once, as in training and as in an evaluation, in the run's mode and
precision, in the launching process. The module that is tried is thrown away, with what it keeps from a forward pass.

Letters: T node types, R relations.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

from sargnn.bf16 import ROW_DTYPES
from sargnn.comm.group import Group, SingleGroup
from sargnn.config.run import RunConfig
from sargnn.engine.aggregate import Engine, EngineSettings
from sargnn.engine.serving import check_serves, engine_alone
from sargnn.errors import ConfigError
from sargnn.graph.edge_columns import ATTR, NO_COLUMNS, WEIGHT, EdgeColumns
from sargnn.graph.examine_edges import ALL_RELATIONS
from sargnn.graph.queries import Queries
from sargnn.graph.schema import Relation, Schema, zero_labels
from sargnn.models.base import LayerInput
from sargnn.models.inputs import GraphShape
from sargnn.modules.dgl_graph import MOST_BLOCKS
from sargnn.modules.pyg import FLOWS
from sargnn.partition.part import Part, WeightedDegrees
from sargnn.plan.graph import WorkerGraph
from sargnn.plan.load import PlanSettings
from sargnn.plan.mfg import MessageFlow
from sargnn.tasks.kinds import make_split

if TYPE_CHECKING:
    from sargnn.models.custom import CustomModel

NODES = 6
"""Of each type."""
_QUERIES = 3


def try_module(model: CustomModel, config: RunConfig, shape: GraphShape) -> None:
    """Try the module out, and let ``model`` know how many layers it has.

    Its parameters stay as they are, but those without a shape get one. Raises ``ConfigError`` with the file and line of what is
    wrong in the user's module.
    """
    small = replace(shape, schema=_small(shape.schema))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        tried = type(model)(model.settings, small)
        tried.note = f"found on a graph of {NODES} nodes{' of each type' if small.schema.typed else ''}, before the run"
        tried.group = _Alike(config.world)
        _check_same(model, tried)
        if config.world > 1:
            _check_hooks(model)
        if config.asks_queries and not (tried.signature and tried.signature.asks):
            raise tried.wrong(
                "The model's forward reads no queries.", allowed="forward(..., queries), as NBFNet's in examples/layers"
            )
        trial = _Trial(tried, config, small, ROW_DTYPES[config.precision])
        trial.run()
        check_serves(engine_alone(config), sorted(trial.engine.served), model.source.forward_place(model.module))
        model.num_layers, model.takes_flows, model.folds_rows = tried.num_layers, tried.takes_flows, tried.folds_rows
        if any(is_lazy(tensor) for tensor in (*model.module.parameters(), *model.module.buffers())):
            torch.manual_seed(config.seed)
            shaped = type(model)(model.settings, small)
            shaped.module, shaped.num_layers, shaped.draws_parameters = model.module, model.num_layers, True
            _Trial(shaped, config, small, torch.float32).give_shapes()


def try_without_edges(
    model: CustomModel, config: RunConfig, shape: GraphShape, find_lacking: Callable[[], Mapping[int, int]]
) -> None:
    """Try the module out where a node has no edge into it, if the run's graph has such nodes. Raises as ``try_module``.

    ``find_lacking`` gives what ``graph.examine_edges.nodes_without_edges`` does; asked only where it matters.
    """
    small = replace(shape, schema=_small(shape.schema))

    def attempt(lacking: Collection[int], note: str) -> None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(config.seed)
            tried = type(model)(model.settings, small)
            tried.note, tried.group = note, _Alike(config.world)
            _Trial(tried, config, small, ROW_DTYPES[config.precision], lacking).forward_with(model.num_layers)

    try:
        attempt((ALL_RELATIONS, *range(len(shape.schema.relations))), "")
    except ConfigError:
        if lacking := find_lacking():
            attempt(lacking, f"nodes without an edge into them: {_counts(lacking, shape.schema)}")


def _counts(lacking: Mapping[int, int], schema: Schema) -> str:
    if not schema.typed:
        return str(max(lacking.values()))
    named = {number: "any relation" if number == ALL_RELATIONS else f"'{schema.relations[number].name}'" for number in lacking}
    return ", ".join(f"{count} of {named[number]}" for number, count in lacking.items())


class _Alike(SingleGroup):
    """``world`` workers with the same rows: what only a worker alone may call is refused, and no other one is needed."""

    def __init__(self, world: int) -> None:
        super().__init__(0, world)

    def sum_(self, tensor: Tensor) -> Tensor:
        return tensor.mul_(self.world)

    def gather(self, tensor: Tensor) -> list[Tensor]:
        return [tensor] * self.world


class _Trial:
    """One module on the made-up graph. ``lacking`` as of ``_part``."""

    def __init__(
        self, model: CustomModel, config: RunConfig, shape: GraphShape, dtype: torch.dtype, lacking: Collection[int] = ()
    ) -> None:
        device = torch.device("cpu")  # wherever the run's rows lie
        self.model, self.mfg = model.to(device, dtype), config.trains_on_flows
        self.may_split = self.mfg or config.memory_budget.limits
        settings = EngineSettings(
            mode=config.mode.choice,
            kernel="reference",
            seed=config.seed,
            device=device,
            dtype=dtype,
            cache_static=False,
        )
        self.engine = Engine(Group.single(), settings)
        part = _part(shape, config.seed, lacking)
        self.graph = WorkerGraph(
            part,
            self.engine.exchange,
            PlanSettings(0, self.engine.mode.layout, device, dtype=dtype),
            add_self_loops=config.add_self_loops,
            by_relation=model.by_relation,
        )
        self.rows = model.inputs.load(part, config.seed, device, dtype)
        labels = torch.zeros(len(self.rows), shape.label_columns, device=device, dtype=dtype)
        self.labels = labels if shape.label_columns else None
        self.queries: Queries | None = None
        if config.asks_queries:
            numbers = torch.arange(_QUERIES)
            self.queries = Queries.of(numbers, numbers % len(shape.schema.relations), len(self.rows), dtype)

    def run(self) -> None:
        layers = self._find_layers()
        self.model.num_layers = layers or 1
        self._both(self._whole)
        if self.may_split:
            self.model.takes_flows = layers > 0 or not self._reaches_further()
        if not self.mfg:
            return
        if not self.model.takes_flows:
            raise self.model.wrong(
                "With message flows each layer works on a graph of its own, and the model does not ask for them.",
                given="mfg=true, micro-batches, several steps or samples",
                hint=FLOWS
                if self.model.signature
                else "for layer, block in zip(self.layers, graph.blocks): h = layer(block, h)",
                allowed="mfg=false batches.count=1 batches.steps=1 sample.fanouts=null",
            )
        wanted = np.zeros(len(self.graph.part.node_ids), bool)
        wanted[self.graph.labelled_rows.start] = True
        flow = self.graph.flow(wanted, self.model.uses_edges)
        self._both(lambda: flow)

    def _whole(self) -> MessageFlow:
        return self.graph.whole(len(self.model.uses_edges))

    def _find_layers(self) -> int:
        """How many blocks the model asks for; 0 if it asks for none.

        It gets as many as it takes. One that iterates may have looked at one block more than it uses, as in
        ``zip(graph.blocks, layers)``: then it gives the same without. One that fails is asked again with numbers that it may
        have meant: one less than it went through before ``one, other = graph.blocks`` failed, or every number if it wanted to
        know how many there are, of which the largest that it makes use of counts.
        """
        model = self.model
        try:
            out = self.forward_with(None)
        except ConfigError as error:
            if model.asked.counted:
                return self._most_used(error)
            number = model.asked.drawn - 1
            if number < 1:
                raise
            try:
                self.forward_with(number)
            except ConfigError as own:
                raise (own if "to unpack" in str(error) else error) from None
            return number
        number = max(model.asked.numbers, default=-1) + 1
        if 1 < number == model.asked.drawn:
            with suppress(ConfigError):
                if torch.equal(self.forward_with(number - 1), out):
                    return number - 1
        return number

    def _most_used(self, error: ConfigError) -> int:
        """The largest number of blocks with which the model runs and uses all; else raises the error that came furthest."""
        most, furthest = 0, 0
        for number in range(1, MOST_BLOCKS + 1):
            try:
                self.forward_with(number)
                fits = len(self.model.asked.numbers) == number
            except ConfigError as own:
                fits = False
                if len(self.model.asked.numbers) > furthest:
                    error, furthest = own, len(self.model.asked.numbers)
            if most and not fits:
                break
            most = number if fits else most
        if not most:
            raise error
        return most

    def forward_with(self, number: int | None) -> Tensor:
        """What the model gives in training with so many blocks; None: as many as it takes."""
        self.model.num_layers = number
        self.model.train()
        return self._forward(self._whole())

    def give_shapes(self) -> None:
        """One forward pass, for parameters whose shapes come from their first input."""
        self.model.eval()
        with torch.no_grad():
            self._forward(self._whole())

    def _both(self, flow: Callable[[], MessageFlow]) -> None:
        """Forward and backward as in training, forward as in an evaluation."""
        self.model.train()
        out = self._forward(flow())
        trained = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        if trained and not out.requires_grad:
            raise self.model.wrong(
                "The model's output depends on none of its parameters: there is nothing to train.",
                hint="detach(), .data and torch.no_grad() cut it off",
            )
        if out.requires_grad:
            with self.model.source.blame("The model's backward", self.model.module, self.model.note):
                torch.autograd.grad((out * torch.rand_like(out)).sum(), trained, allow_unused=True)
        self.model.eval()
        with torch.no_grad():
            self._forward(flow())

    def _forward(self, flow: MessageFlow, rows: Tensor | None = None) -> Tensor:
        """``rows``: [N, D], other ones than those of the made-up graph."""
        self.model.prepare(self.engine, flow.plans)
        rows = flow.own_inputs(self.model.inputs(self.rows)) if rows is None else rows
        labels = None if self.labels is None else flow.own_inputs(self.labels)
        out: Tensor = self.model(self.engine, flow.plans, LayerInput(rows, labels, queries=self.queries))
        return out

    def _reaches_further(self) -> bool:
        """Whether an output depends on rows that are more than one edge away."""
        self.model.eval()
        leaf = self.model.inputs(self.rows).detach().requires_grad_()
        for number in range(NODES):
            row = self._forward(self._whole(), leaf)[number]  # anew for each: what backward needs is freed in its first pass
            if not row.requires_grad:
                return False
            (gradient,) = torch.autograd.grad((row * torch.rand_like(row)).sum(), leaf, allow_unused=True)
            reached = set() if gradient is None else {int(index) % NODES for index in gradient.any(1).nonzero()[:, 0]}
            if reached - {number, (number - 1) % NODES}:
                return True
        return False


def _check_same(model: CustomModel, other: CustomModel) -> None:
    """Two modules made with one seed are the same. Raises ``ConfigError`` with the first parameter that is not."""
    others = dict(other.module.named_parameters())
    # A layer without its width yet draws all its parameters with the first rows: PyG's leaves its bias unset until then.
    waiting = {name.rpartition(".")[0] for name, parameter in model.module.named_parameters() if is_lazy(parameter)}
    for name, parameter in model.module.named_parameters():
        counterpart = others.get(name)
        if name.rpartition(".")[0] in waiting:
            continue
        if (
            counterpart is None
            or parameter.shape != counterpart.shape
            or not torch.equal(parameter.detach(), counterpart.detach())
        ):
            raise model.wrong(
                "Made twice with the same seed, the model has other parameters: workers would not agree.",
                given=name,
                hint="draw them with torch, whose generator is seeded before the model is made",
            )


def _check_hooks(model: CustomModel) -> None:
    """A worker's gradient of a parameter is a part of a sum. Raises ``ConfigError`` where somebody would change it."""
    for name, parameter in model.module.named_parameters():
        if parameter._backward_hooks or getattr(parameter, "_post_accumulate_grad_hooks", None):
            raise model.wrong(
                "A hook on a parameter's gradient would see one worker's part of it.",
                given=name,
                hint="optim.clip, optim.weight_decay, or an optimizer of your own (sargnn help optimizer)",
            )


def _small(schema: Schema) -> Schema:
    return replace(schema, offsets=tuple(range(0, NODES * len(schema.node_types) + 1, NODES)))


def _part(shape: GraphShape, seed: int, lacking: Collection[int] = ()) -> Part:
    """The made-up graph as the one part of one worker. Edges from node i and node i - 1 of its source type into each node i.

    ``lacking``: relations, each without edges into a node that others reach; ``ALL_RELATIONS``: none reaches the last node.
    """
    schema, types = shape.schema, len(shape.schema.node_types)
    rng = np.random.default_rng(seed)
    edges = [
        _ring(
            relation,
            {*([number % (NODES - 1)] if number in lacking else []), *([NODES - 1] if ALL_RELATIONS in lacking else [])},
        )
        for number, relation in enumerate(schema.relations)
    ]
    sources, destinations = (np.concatenate([ring[end] for ring in edges]).astype(np.int32) for end in (0, 1))
    nodes, first = NODES * types, NODES * max(shape.labelled, 0)
    columns, sums = NO_COLUMNS, None
    if shape.weighted:
        weights = rng.uniform(0.5, 1.5, len(sources)).astype(np.float32)
        columns = EdgeColumns.of({WEIGHT: weights})
        sums = WeightedDegrees(*(np.bincount(ends, weights=weights, minlength=nodes) for ends in (destinations, sources)))
    if shape.edge_width:
        columns = columns.put(ATTR, rng.standard_normal((len(sources), shape.edge_width)).astype(np.float32))
    return Part(
        schema=schema,
        features=tuple(rng.standard_normal((NODES, width)).astype(np.float32) for width in shape.feature_widths),
        node_ids=np.arange(nodes),
        labels=zero_labels(shape.task, nodes, shape.num_classes),
        split=make_split(nodes, slice(first, first + NODES)),
        in_degrees=np.bincount(destinations, minlength=nodes),
        out_degrees=np.bincount(sources, minlength=nodes),
        edge_src=sources,
        edge_dst=destinations,
        edge_offsets=np.cumsum([0, *(len(ring[0]) for ring in edges)]),
        halo_ids=np.zeros(0, np.int64),
        halo_offsets=np.zeros(2, np.int64),
        send_rows=np.zeros(0, np.int32),
        send_offsets=np.zeros(2, np.int64),
        columns=columns,
        weights=sums,
    )


def _ring(relation: Relation, without: Collection[int]) -> tuple[np.ndarray, np.ndarray]:
    """Sources and destinations, sorted by destination, then source. ``without``: nodes that it does not reach."""
    destination = np.repeat([node for node in range(NODES) if node not in without], 2)
    source = np.sort((destination.reshape(-1, 2) - [0, 1]) % NODES, axis=1).reshape(-1)
    return source + NODES * relation.source, destination + NODES * relation.destination
