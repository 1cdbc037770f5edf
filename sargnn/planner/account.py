"""What a worker of a run holds, phase by phase, before anything is launched.

    whole = runtime + graph + features + parameters + max(training step, evaluation)

Runtime is what the interpreter and libraries take, measured once on a machine. Graph, features and parameters are counted. The
step and the evaluation are recorded on a made-up graph and counted for the real rows (``training.account``): the code that
allocates is the account, so that no mode, reducer, layer or view can be added without it.

Letters: N own rows, H halo rows, E edges, L layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sargnn.bf16 import ROW_DTYPES
from sargnn.config import RunConfig
from sargnn.config_groups import BatchesConfig
from sargnn.data.labels import LABEL_DTYPES
from sargnn.errors import ConfigError
from sargnn.kernels.dgl.graphs import unseen_bytes
from sargnn.models.inputs import GraphShape
from sargnn.models.stack import GraphLayer
from sargnn.partition.cut import Part
from sargnn.planner.parts import PartSizes
from sargnn.planner.wire import bare
from sargnn.shards.graph import usual_message_rows
from sargnn.training.account.record import Accounts
from sargnn.training.account.replay import FIXED
from sargnn.training.account.step import LIBRARIES_BYTES
from sargnn.training.build import make_trainer

_EDGE_BYTES, _ROW_BYTES, _HALO_BYTES, _SENT_BYTES = 8, 60, 24, 4
"""Of an edge in both orders; of a row ids twice, degrees, label, split, rank; of a halo row ids and rank; of one sent."""
EVALUATION = "evaluation"
TERMS = ("runtime", "graph", "features", "parameters", "kept for backward", "working set", "communication", "optimizer")
"""What a worker's memory is made of at its peak."""


@dataclass(frozen=True)
class Runtime:
    """What a worker takes beside what is counted, measured on this machine, bytes.

    Attributes:
        base: before it opens its part. loading: libraries that come with the model.
    """

    base: int
    loading: int


@dataclass(frozen=True)
class WorkerPlan:
    """One worker's memory, bytes.

    Attributes:
        training: of an epoch above what was there when training started (``peak_train_bytes``). evaluation: likewise.
        phase: in which the whole is largest. terms: what it is made of then, by ``TERMS``.
    """

    training: int
    evaluation: int
    phase: str
    terms: dict[str, int]

    @property
    def total(self) -> int:
        """The whole resident memory at its peak."""
        return sum(self.terms.values())


class Account:
    """The memory of one configuration's workers, full batches.

    Args:
        num_nodes: of the whole graph.

    Raises:
        ConfigError: the configuration trains views that are not planned, or the model cannot work on such a graph.
    """

    def __init__(self, config: RunConfig, shape: GraphShape, num_nodes: int) -> None:
        _refuse(config)
        self._config, self._shape = config, shape
        self._engine, self._model = bare(config, shape)
        self._layers = len(self._model.uses_edges)
        message_rows = config.comm.message_rows or usual_message_rows(num_nodes, config.world)
        accounts = Accounts(
            make_trainer, config, _empty_part(shape), shape.num_classes, self._model, labelled=shape.labelled,
            message_rows=message_rows,
        )  # fmt: skip
        counts = [None] * self._layers
        self._step = accounts.step(counts, micro_batches=False, keep_layers=config.engine.keep_layers)
        self._library_edge_bytes = max(
            (self._bytes_of_kernel(one) for one in self._model.modules() if isinstance(one, GraphLayer)), default=0
        )
        self._evaluation = accounts.evaluation(counts, in_groups=False)

    def worker(self, part: PartSizes, runtime: Runtime, kept_halo: Sequence[int] | None = None) -> WorkerPlan:
        """Of one worker.

        Args:
            kept_halo: rows of others that each layer reads where partial results travel, too [L]; None: all that there are.
        """
        config, shape = self._config, self._shape
        halo = tuple(kept_halo or (part.halo,) * self._layers)
        sizes = part.view(shape.schema, self._layers, shape.labelled, loops=config.add_self_loops, halo=halo)
        rows = sum(part.rows)
        loops = rows if config.add_self_loops else 0
        graph = graph_bytes(part, loops)
        parameters, learned = self._parameters(part)
        features = self._features(part) - learned
        held, travelling = self._step.held([sizes])
        training = held.peak + travelling + LIBRARIES_BYTES + self._library_edge_bytes * (sum(part.edges) + loops)
        states = 3 * sum(one.numel() * one.element_size() for one in self._model.parameters()) + 3 * learned
        evaluation = self._evaluation.peak([sizes]) + states
        base = {
            "runtime": runtime.base + runtime.loading, "graph": graph, "features": max(0, features), "parameters": parameters,
        }  # fmt: skip
        if evaluation > training:
            rest = {"kept for backward": 0, "working set": evaluation - states, "communication": 0, "optimizer": states}
            return WorkerPlan(training, evaluation, EVALUATION, base | rest)
        at = dict(held.at_peak)
        fixed, now = at.pop(FIXED, 0), at.pop(held.phase, 0)
        kept = sum(at.values())
        rest = {
            "kept for backward": kept, "working set": training - travelling - fixed - kept, "communication": travelling,
            "optimizer": fixed,
        }  # fmt: skip
        assert rest["working set"] >= now
        return WorkerPlan(training, evaluation, held.phase, base | rest)

    def _bytes_of_kernel(self, layer: GraphLayer) -> int:
        """Of an edge, what a layer's kernel holds where no record sees it."""
        if not layer.uses_edges:
            return 0
        operation = layer.reducer.operation
        name = "dgl" if self._engine.mode.plain_autograd else self._engine.kernel(operation).name
        return unseen_bytes(operation, whole=self._engine.mode.plain_autograd) if name == "dgl" else 0

    def _features(self, part: PartSizes) -> int:
        """Of what the first layer reads: tables mapped from the store, and copies of them."""
        shape, item = self._shape, ROW_DTYPES[self._config.precision].itemsize
        mapped = sum(rows * width * 4 for rows, width in zip(part.rows, shape.feature_widths, strict=True))
        table = sum(part.rows) * self._model.inputs.width * item
        if shape.schema.typed:
            return mapped + table
        return mapped if item == 4 else mapped + table

    def _parameters(self, part: PartSizes) -> tuple[int, int]:
        """Of all parameters, and of those that are rows of this worker."""
        whole = self._model.inputs.whole_tables()
        replicated = sum(one.numel() * one.element_size() for one in self._model.parameters())
        learned = 0
        for t, width in enumerate(self._shape.feature_widths):
            if whole and not width:
                learned += part.rows[t] * self._model.inputs.width * 4
        return replicated + learned, learned


def graph_bytes(part: PartSizes, loops: int) -> int:
    """Of edges in blocks and lists of rows. loops: self-loops that the model adds."""
    edges, rows = sum(part.edges) + loops, sum(part.rows)
    return edges * _EDGE_BYTES + rows * _ROW_BYTES + part.halo * _HALO_BYTES + part.sent * _SENT_BYTES


def why_not_planned(config: RunConfig) -> str | None:
    """Why there is no account of what it trains on; None: there is."""
    if config.mfg or config.batches != BatchesConfig() or config.draws_flows or config.preload.name != "none":
        return "mfg, batches, sample or preload"
    return None


def _refuse(config: RunConfig) -> None:
    """Raises ``ConfigError`` for what is no full batch of all rows."""
    if (why := why_not_planned(config)) is not None:
        raise ConfigError(
            "Full batches of all rows are planned.", given=why,
            hint="memory_budget=6GB of a run plans those before its first step",
        )  # fmt: skip


def _empty_part(shape: GraphShape) -> Part:
    """A part without rows, of which only the form counts."""
    none, offsets = np.zeros(0, np.int64), np.zeros(2, np.int64)
    labels = np.zeros(0, np.int64) if shape.task == "classes" else np.zeros((0, shape.num_classes), LABEL_DTYPES[shape.task])
    weights = np.zeros(0, np.float32) if shape.weighted else None
    return Part(
        schema=shape.schema,
        features=tuple(np.zeros((0, width), np.float32) for width in shape.feature_widths),
        node_ids=none, labels=labels, split=np.zeros(0, np.uint8), in_degrees=none, out_degrees=none,
        edge_src=np.zeros(0, np.int32), edge_dst=np.zeros(0, np.int32),
        edge_offsets=np.zeros(len(shape.schema.relations) + 1, np.int64), halo_ids=none, halo_offsets=offsets,
        send_rows=np.zeros(0, np.int32), send_offsets=offsets, edge_weight=weights,
        in_weights=None if weights is None else np.zeros(0), out_weights=None if weights is None else np.zeros(0),
    )  # fmt: skip
