"""``sargnn.shard``: this rank's part of a graph, for those who have a training loop of their own.

    torchrun --nproc-per-node 4 own_loop.py        # examples/own_loop.py trains with it

Letters: N own rows, F features, C outputs, P ranks.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from sargnn.api.run import as_words, store_of_graph
from sargnn.backends.device import device_of
from sargnn.bf16 import wide
from sargnn.cli.compose import compose_verb
from sargnn.comm.distributed import DistributedGroup, RankProcesses
from sargnn.comm.group import Group, sum_flat
from sargnn.config.run import RunConfig, parse
from sargnn.config.verbs import PartitionConfig
from sargnn.engine.aggregate import Engine, EngineSettings
from sargnn.engine.reducers import REDUCERS
from sargnn.errors import ConfigError, SargnnError
from sargnn.graph.edge_columns import WEIGHT
from sargnn.graph.schema import task_of
from sargnn.models.base import LayerInput, Model
from sargnn.models.inputs import GraphShape
from sargnn.native import set_threads
from sargnn.partition.part import Part, with_columns
from sargnn.partition.prepare import prepare_partition
from sargnn.partition.store import open_part, partition_info
from sargnn.plan.graph import WorkerGraph, degree_histogram, find_labelled
from sargnn.plan.layer_plan import LayerPlan
from sargnn.resolve import resolve
from sargnn.rng import Purpose
from sargnn.run.env import local_device_index
from sargnn.sources.prepare import prepare_dataset
from sargnn.tasks.kinds import in_split
from sargnn.training.build import check_edge_weights, edge_width, make_model, number_formats


def shard(graph_or_dataset: Any, group: dist.ProcessGroup | None = None, *overrides: str, **settings: Any) -> GraphShard:
    """This rank's part of a graph. All ranks of the group must call it, and the methods of what it returns, together.

    Rank 0 makes the stores where they are missing, and the others wait for it: with a large graph ``sargnn partition`` before
    spares them that.

    Args:
        graph_or_dataset: a graph as ``sargnn.train`` takes it (that of rank 0 counts), or a dataset: "products_like" or
            "dataset=arrays" with further overrides.
        group: a group of gloo; None: all ranks of torch.distributed, or this process alone where it is not initialised.
        overrides: as of ``sargnn.train``: dataset, partitioner, mode, kernel, precision, seed, comm.prefetch_depth.
        settings: the same by keyword.

    Raises:
        SargnnError: anything that can be mended, on every rank.
    """
    rank, world = _place(group)
    words = as_words(overrides, settings)
    if isinstance(graph_or_dataset, str):
        words.append(graph_or_dataset if "=" in graph_or_dataset else f"dataset={graph_or_dataset}")
        graph_or_dataset = None
    made: list[Any] = [None]
    if rank == 0:
        try:
            made = [_make_stores(graph_or_dataset, words, world)]
        except Exception as error:  # the others would wait for ever
            made = [error if isinstance(error, SargnnError) else SargnnError(f"Rank 0: {type(error).__name__}: {error}")]
    if world > 1:
        dist.broadcast_object_list(made, src=dist.get_global_rank(_group(group), 0), group=group)
    if isinstance(made[0], SargnnError):
        raise made[0]
    words, partition = made[0]
    set_threads(torch.get_num_threads())
    ranks = DistributedGroup(rank, world, RankProcesses(_group(group))) if world > 1 else Group.single()
    return GraphShard(words, partition, ranks)


def _group(group: dist.ProcessGroup | None) -> dist.ProcessGroup:
    process_group = group or dist.group.WORLD
    assert process_group is not None
    return process_group


def _place(group: dist.ProcessGroup | None) -> tuple[int, int]:
    """Rank and P. Raises ``ConfigError`` for ranks that have not met, and a group that cannot send tensors of a CPU."""
    if not (dist.is_available() and dist.is_initialized()):
        if int(os.environ.get("WORLD_SIZE", "1")) > 1:
            hint = 'torch.distributed.init_process_group("gloo")'
            raise ConfigError("The ranks have not met.", given=f"WORLD_SIZE={os.environ['WORLD_SIZE']}", hint=hint)
        return 0, 1
    backend = str(dist.get_backend(group))
    if "gloo" not in backend:
        raise ConfigError("The group cannot send tensors of a CPU.", given=backend, allowed="gloo")
    return dist.get_rank(group), dist.get_world_size(group)


def _config_of(words: list[str]) -> RunConfig:
    return parse(compose_verb("train", words))


def _make_stores(graph: Any, words: list[str], world: int) -> tuple[list[str], Path]:
    if graph is not None:
        words = store_of_graph(graph, words)
    words = [*words, f"world={world}"]
    config = _config_of(words)
    wanted = PartitionConfig(config.dataset, config.partitioner, world, config.store_dir, config.prepare)
    info = prepare_partition(wanted, prepare_dataset(config.dataset, config.store_dir, config.prepare.bytes))
    return words, info.path.resolve()


class GraphShard:
    """One rank's part: its rows, its engine, and sums over the ranks. Made by ``shard``.

    Attributes:
        engine: aggregates over the whole graph, whichever rank has the neighbours; ``engine.epoch`` decides dropout masks.
        ids: int64 [N], the own nodes' numbers in the whole graph.
        features: [N, F] in the run's precision; empty for a typed graph, whose model loads its own (``build_model``).
        labels: [N] or [N, C], as ``sargnn.graph.schema`` has them.
        train_mask: bool [N].
        val_mask: bool [N].
        test_mask: bool [N].
        num_classes: C, the outputs that a model needs.
        rank: this rank.
        world: P.
        plan: the edges that end in own rows, for ``engine.aggregate``.
    """

    def __init__(self, words: list[str], partition: Path, group: Group) -> None:
        config = _config_of(words)
        if config.comm.aggregate in ("pre", "least"):
            raise ConfigError(
                "sargnn.shard sends rows.",
                given=f"comm.aggregate={config.comm.aggregate}",
                allowed="comm.aggregate=post",
                hint="model=custom model.target=FILE.py:CLASS trains a module with all settings",
            )
        if config.num_servers > 1 or config.preload.name != "none":
            raise ConfigError(
                "sargnn.shard has no servers: all its ranks exchange rows.",
                given=f"servers={config.num_servers} preload={config.preload.name}",
                allowed="servers=1 preload=none",
                hint="model=custom model.target=FILE.py:CLASS trains a module with all settings",
            )
        self.config, self.group, self._words = config, group, words
        self.rank, self.world = group.rank, group.world
        device = torch.device(config.device)
        settings = EngineSettings(
            mode=config.mode.choice,
            keep=config.mode.keep,
            kernel=config.kernel.choice,
            prefetch_depth=config.comm.prefetch_depth,
            seed=config.seed,
            device=device,
            cache_static=False,
            **number_formats(config),
        )
        place = device_of(device)
        if place.unavailable is not None:
            raise ConfigError(place.unavailable, given=f"device={config.device}", allowed="device=cpu")
        place.start(local_device_index(group.rank, place.count, os.environ))
        self.engine = Engine(group, settings)
        info = partition_info(partition, group.rank)
        part = open_part(info.path, group.rank)
        self.part: Part = with_columns(
            part, [name for name in part.columns.columns if name != WEIGHT or config.dataset.edge_weights]
        )
        self._weights = info.weights
        self.num_classes, self.schema = info.num_classes, info.schema
        self.ids, self.labels, split = (
            torch.from_numpy(np.array(rows)).to(device) for rows in (self.part.node_ids, self.part.labels, self.part.split)
        )
        self.train_mask, self.val_mask, self.test_mask = (in_split(split, name) for name in ("train", "valid", "test"))
        rows = self.part.features[0] if not info.schema.typed else np.zeros((len(self.ids), 0), np.float32)
        self.features = torch.from_numpy(np.array(rows)).to(device, self.engine.dtype)
        self._graphs: dict[tuple[bool, bool | str], WorkerGraph] = {}
        self._models: set[nn.Module] = set()

    def graph(self, *, add_self_loops: bool, by_relation: bool | Literal["joined"] = False) -> WorkerGraph:
        """The part as the engine has it, made the first time; all ranks must call it together. See ``WorkerGraph``."""
        from sargnn.training.build import plan_settings

        key = add_self_loops, by_relation and self.schema.typed
        if key not in self._graphs:
            self._graphs[key] = WorkerGraph(
                self.part,
                self.engine.exchange,
                plan_settings(self.config, self.engine, self.part),
                add_self_loops=add_self_loops,
                by_relation=by_relation,
            )
        return self._graphs[key]

    @property
    def plan(self) -> LayerPlan:
        """All edges that end in own rows; with a self-loop at every node where ``dataset.add_self_loops=true`` says so."""
        return self.graph(add_self_loops=bool(self.config.dataset.add_self_loops)).whole(1).plans[0]

    def sum(self, x: Tensor, *, weighted: bool = False) -> Tensor:
        """Over the sources j of each own node's in-edges the sum of their rows: [N, F] from [N, F], differentiable.

        Args:
            weighted: each row times its edge's weight, if the graph has edge weights.
        """
        return self._reduce("sum", x, weighted=weighted)

    def mean(self, x: Tensor, *, weighted: bool = False) -> Tensor:
        """The mean of the same, with weights divided by their sum; zeros for a node without in-edges.

        Raises:
            ConfigError: some weights are negative.
        """
        if weighted and self.part.weighted and self._weights is not None and self._weights[0] < 0:
            raise ConfigError(
                "A mean divides by sums of edge weights, and some are negative.",
                given=f"from {self._weights[0]:g} on",
                hint="sum(x, weighted=True), or mean(x)",
            )
        return self._reduce("mean", x, weighted=weighted)

    def max(self, x: Tensor) -> Tensor:
        """The largest of the same in each column; zeros for a node without in-edges."""
        return self._reduce("max", x)

    def _reduce(self, name: str, x: Tensor, **options: bool) -> Tensor:
        if self.schema.typed:
            raise ConfigError("A typed graph's rows are not summed over all relations.", hint='build_model("model=rgcn")')
        if x.shape[0] != len(self.ids) or x.ndim != 2 or x.dtype != self.engine.dtype:
            given = f"{x.dtype} {list(x.shape)}"
            raise ConfigError(
                "The rows are not those of this rank.", given=given, allowed=f"{self.engine.dtype} [{len(self.ids)}, F]"
            )
        (out,) = self.engine.aggregate(self.plan, resolve("reducer", REDUCERS, name)(**options), (x,))
        return out

    def dropout(self, x: Tensor, p: float, layer: int = 0) -> Tensor:
        """``x`` [N, F] with a share ``p`` of its entries zero and the others grown by 1 / (1 - p).

        Which ones depends on the seed, ``engine.epoch``, the node's number, the column and ``layer``: so it is the same on any
        number of ranks.
        """
        return self.engine.operators.dropout(x, self.ids, self.engine.draw(Purpose.DROPOUT, layer, p))

    def build_model(self, *overrides: str, **settings: Any) -> ShardModel:
        """A model, the same parameters on every rank: ``build_model("model=gat", "model.hidden=32")``.

        Other settings, such as the seed, are those that the shard was made with; self-loops as the model's definition has them.
        """
        words = as_words(overrides, settings)
        keys = {word.partition("=")[0] for word in words}
        config = _config_of([*(word for word in self._words if word.partition("=")[0] not in keys), *words])
        widths = tuple(rows.shape[1] for rows in self.part.features)
        labelled = find_labelled(self.part, self.group)
        check_edge_weights(config, self._weights)
        shape = GraphShape(
            self.schema,
            widths,
            self.num_classes,
            task=task_of(self.part.labels),
            labelled=labelled,
            weighted=self.part.weighted,
            edge_width=edge_width(self.part.columns, config),
            degrees=degree_histogram(self.part, self.group) if config.model.reads_degrees else None,
        )
        model = make_model(config, shape).to(wide(self.engine.dtype))
        graph = self.graph(add_self_loops=config.add_self_loops, by_relation=model.by_relation)
        return ShardModel(self, model, graph, config.seed)

    def total(self, value: Tensor | float) -> float:
        """The sum of a number over all ranks."""
        return float(self.group.sum_(torch.as_tensor(value, dtype=torch.float64).detach().clone()))

    def sum_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Add up the gradients over all ranks, in one all-reduce: after ``backward``, before the optimizer's step.

        A parameter without a gradient on this rank gets zeros first. Learnable rows that belong to own nodes, as R-GCN has them
        for types without features, are left out: theirs are complete.
        """
        own = {id(parameter) for model in self._models for parameter in getattr(model, "sharded", ())}
        shared = [parameter for parameter in parameters if parameter.requires_grad and id(parameter) not in own]
        for parameter in shared:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        sum_flat(self.group, [parameter.grad for parameter in shared if parameter.grad is not None])


class ShardModel(nn.Module):
    def __init__(self, owner: GraphShard, model: Model, graph: WorkerGraph, seed: int) -> None:
        super().__init__()
        self.stack = model
        self._owner = [owner]  # in a list, so that it is no part of the module
        rows = model.inputs.load(owner.part, seed, owner.engine.device, owner.engine.dtype)
        self._rows = [rows]
        self._flow = graph.whole(len(model.uses_edges))
        model.prepare(owner.engine, self._flow.plans)
        owner._models.add(self)

    @property
    def sharded(self) -> list[nn.Parameter]:
        """Parameters of which this rank has its own rows only."""
        return self.stack.inputs.sharded()

    @property
    def rows(self) -> Tensor:
        """int64, which own rows the output's rows are."""
        output_rows = self._flow.output_rows
        ids = self._owner[0].ids
        return torch.arange(len(ids), device=ids.device) if output_rows is None else output_rows

    def forward(self) -> Tensor:
        """[rows, C], differentiable in the parameters; fp32 where rows are bf16. All ranks must call it together."""
        inputs = self._flow.own_inputs(self.stack.inputs(self._rows[0]))
        out: Tensor = self.stack(self._owner[0].engine, self._flow.plans, LayerInput(inputs, None), hidden=False)
        return out.to(wide(out.dtype))
