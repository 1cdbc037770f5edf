"""What a worker of a run holds, phase by phase, before anything is launched.

    whole = runtime + graph + features + parameters + max(training step, evaluation)

Runtime is what the interpreter and libraries take, measured once on a machine. Graph, features and parameters are counted. The
step and the evaluation are recorded on a made-up graph and counted for the real rows (``account_record``): the code that
allocates is the account, so that no mode, reducer, layer or view can be added without it.

Letters: N own rows, H halo rows, E edges, L layers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from sargnn.bf16 import ROW_DTYPES, wide
from sargnn.config.run import RunConfig
from sargnn.engine.segments import KeepLayers
from sargnn.errors import ConfigError
from sargnn.memory.account_record import SMOOTHING, Accounts
from sargnn.memory.account_step import StepAccount
from sargnn.memory.account_trace import FIXED, StepMemory
from sargnn.memory.budget import alike, largest_of
from sargnn.memory.plan_parts import PartSizes
from sargnn.memory.plan_traffic import bare
from sargnn.memory.plan_views import Reached, WorkerViews, has_views
from sargnn.models.inputs import GraphShape
from sargnn.plan.cover import spared_shares
from sargnn.plan.graph import usual_message_rows
from sargnn.plan.layer_plan import RowCounts
from sargnn.plan.sizes import OTHER_ORDER, Sizes
from sargnn.training.build import layer_shares, share_of_sums
from sargnn.training.fit import draws_views, holds_constants, trains_in_batches

_EDGE_BYTES, _ROW_BYTES, _HALO_BYTES, _SENT_BYTES = 8, 60, 24, 4
"""Of an edge in both orders; of a row ids twice, degrees, label, split, rank; of a halo row ids and rank; of one sent."""
_OWN_BYTES = 26
"""Of an own row where only flows are held: id, label, split, targets."""
EVALUATION = "evaluation"
TERMS = ("runtime", "graph", "features", "parameters", "kept for backward", "working set", "communication", "optimizer")
BEFORE_TRAINING = TERMS[:4]
"""What of a worker's memory is there when training starts."""
_TRAINING_BYTES = 22 << 20
"""What libraries take while they train, and what lies between small allocations, where no run has measured it."""


@dataclass(frozen=True)
class Runtime:
    """What a worker takes beside what is counted, measured on this machine, bytes.

    Attributes:
        base: before it opens its part.
        loading: libraries that come with the model.
        training: libraries that come while it trains, and what lies between small allocations.
    """

    base: int
    loading: int
    training: int = _TRAINING_BYTES


@dataclass(frozen=True)
class WorkerPlan:
    """One worker's memory, bytes.

    Attributes:
        training: of an epoch above what was there when training started (``peak_train_bytes``).
        evaluation: likewise.
        phase: in which the whole is largest.
        terms: what it is made of then, by ``TERMS``.
        smoothing: as training, of Correct & Smooth; 0: there is none.
        lasting: of the terms, what lies in a mapped file with ``spill``: learned rows, their moments and averages.
    """

    training: int
    evaluation: int
    phase: str
    terms: dict[str, int]
    smoothing: int = 0
    lasting: int = 0

    @property
    def total(self) -> int:
        """The whole resident memory at its peak."""
        return sum(self.terms.values())

    @property
    def while_training(self) -> int:
        """Without evaluations, which may be computed in groups of rows."""
        return sum(self.terms[name] for name in BEFORE_TRAINING) + self.training

    @property
    def while_evaluating(self) -> int:
        return sum(self.terms[name] for name in BEFORE_TRAINING) + self.evaluation


class Account:
    """The memory of one configuration's workers.

    Raises ``ConfigError`` where the model cannot work on such a graph.
    """

    def __init__(self, config: RunConfig, shape: GraphShape, num_nodes: int) -> None:
        self._config, self._shape = config, shape
        self.engine, self.model = bare(config, shape)
        self._layers = len(self.model.uses_edges)
        message_rows = config.comm.message_rows or usual_message_rows(num_nodes, config.world)
        self.accounts = Accounts(config, shape, self.model, message_rows)

    def worker(
        self,
        part: PartSizes,
        runtime: Runtime,
        kept_halo: Sequence[int] | None = None,
        results: tuple[int, ...] = (),
        of_pairs: tuple[int, int] = (0, 0),
    ) -> WorkerPlan:
        """Of one worker that trains full batches.

        Args:
            kept_halo: rows of others that each layer reads where partial results travel, too [L]; None: all that there are.
            results: partial results, as of ``Sizes``.
            of_pairs: ``step_bytes`` and ``evaluation_bytes`` of ``WorkerViews``.

        Raises:
            ConfigError: the configuration trains other views, for which the graph is needed.
        """
        if has_views(self._config):
            raise ConfigError(
                "Without its graph only full batches of all rows are planned.",
                given="mfg, batches, sample, preload or task=queries",
                hint="a dataset that is here; or mfg=false batches.count=1 batches.steps=1 sample.fanouts=null preload=none",
            )
        halo = tuple(kept_halo or (part.halo,) * self._layers)
        whole = self._whole(part, halo, results)
        views = WorkerViews((Reached(whole, (), ()),), None, None, 0, 0, *of_pairs)
        return self.with_views(part, views, runtime, self._config.engine.keep_layers)

    def with_views(
        self,
        part: PartSizes,
        views: WorkerViews,
        runtime: Runtime,
        keep: KeepLayers,
        groups: Sequence[Reached] | None = None,
    ) -> WorkerPlan:
        """Of one worker that trains such views. ``groups``: of an evaluation in several; None: it is in one piece."""
        config, (parameters, learned), whole = self._config, self._parameters(part), self._all_rows(part, views)
        training, account, held, travelling = self.training(part, views, runtime, keep)
        states = config.optim.tables * parameters
        left = states - 2 * parameters  # Correct & Smooth comes when the optimizer's are gone
        kept = self.bytes_since(part, views)
        if trains_in_batches(config) and config.batches.flows == "memory" and not draws_views(config):
            kept += sum(account.brought(view.sizes) for view in views.training)
        if groups is None:
            held_there = self._evaluation_bytes(views, whole)
        else:  # of the largest group, and the outputs of groups, then of all together
            in_groups = [self.accounts.evaluation(group.counts, in_groups=True) for group in groups]
            held_there = largest_of(in_groups, [group.sizes for group in groups], all_held=False)
            held_there += 2 * part.split * self._shape.num_classes * wide(ROW_DTYPES[config.precision]).itemsize
        evaluation = held_there + runtime.training + states + kept + views.evaluation_bytes
        smoothing = 0
        if config.smooth.name != "none":
            smoothing = self._smoothing_bytes(part, views, whole) + runtime.training + left
        base = self.base(part, views, runtime)

        def lasting(fixed: int) -> int:
            return learned + min(fixed, config.optim.lasting * learned)

        if max(evaluation, smoothing) > training:
            phase, most = (EVALUATION, evaluation) if evaluation >= smoothing else (SMOOTHING, smoothing)
            fixed = states if phase == EVALUATION else left
            rest = {"kept for backward": 0, "working set": most - fixed, "communication": 0, "optimizer": fixed}
            return WorkerPlan(training, evaluation, phase, base | rest, smoothing, lasting(fixed))
        at = dict(held.at_peak)
        fixed, now = at.pop(FIXED, 0), at.pop(held.phase, 0)
        backward = sum(at.values())
        rest = {
            "kept for backward": backward,
            "working set": training - travelling - fixed - backward,
            "communication": travelling,
            "optimizer": fixed,
        }
        assert rest["working set"] >= now
        return WorkerPlan(training, evaluation, held.phase, base | rest, smoothing, lasting(fixed))

    def base(self, part: PartSizes, views: WorkerViews, runtime: Runtime) -> dict[str, int]:
        """What is there when training starts, by ``BEFORE_TRAINING``."""
        parameters, learned = self._parameters(part)
        return {
            "runtime": runtime.base + runtime.loading,
            "graph": self._graph(part, views),
            "features": max(0, self._features(part, views) - learned),
            "parameters": parameters,
        }

    def bytes_since(self, part: PartSizes, views: WorkerViews) -> int:
        """What comes after a worker has read its part and stays, beside what steps hold."""
        table = 0
        if views.constant_rows:
            table = sum(part.rows) * 8 + views.constant_rows * self.model.inputs.width * self._item
        return table + (views.drawer_bytes if self._config.eval != "sampled" else 0)

    def training(
        self, part: PartSizes, views: WorkerViews, runtime: Runtime, keep: KeepLayers
    ) -> tuple[int, StepAccount, StepMemory, int]:
        """What training holds above what was there when it started, bytes, and of the training views that hold most: their
        account, what is held, and bytes of halo rows beside it.
        """
        whole, batched = self._all_rows(part, views), trains_in_batches(self._config)
        trained = views.training or (Reached(whole, (), ()),)
        accounts = [
            self.accounts.step(
                view.counts or [None] * self._layers,
                micro_batches=batched,
                keep_layers=keep,
                constants=self.holds_constants,
                queries=views.queries[0],
            )
            for view in trained
        ]
        of_accounts = alike(accounts, [view.sizes for view in trained])
        every = [(account, *account.held(own, all_held=self.all_held)) for account, own in of_accounts]
        account, held, travelling = max(every, key=lambda candidate: candidate[1].peak + candidate[2])
        if self._config.labels.reuse:
            travelling = max(travelling, account.halo.peak(whole))
        beside = runtime.training + self.bytes_since(part, views) + views.step_bytes
        return held.peak + travelling + beside, account, held, travelling

    @property
    def all_held(self) -> bool:
        """Whether all micro-batches' flows stay in memory."""
        apart = self.model.by_relation and self._shape.schema.typed
        return not draws_views(self._config) and (self._config.batches.flows == "memory" or apart)

    @property
    def holds_constants(self) -> bool:
        """Whether micro-batches and drawn steps have the first layer's aggregates of constant rows."""
        return holds_constants(self._config, self.model, self.engine)

    def _evaluation_bytes(self, views: WorkerViews, whole: Sizes) -> int:
        """Beside what training leaves."""
        counts: Sequence[RowCounts | None] = [None] * self._layers
        if views.evaluation is None:
            counts = counts if views.whole is None else views.whole.counts
            account = self.accounts.evaluation(counts, in_groups=False, mfg=False, queries=views.queries[1])
            return account.peak([whole]) + self._constant_bytes(views)
        account = self.accounts.evaluation(views.evaluation.counts, in_groups=self._config.eval == "sampled")
        held = dataclasses.replace(account, holds_flow=False).peak([views.evaluation.sizes])
        return held + self._constant_bytes(views)

    def _constant_bytes(self, views: WorkerViews) -> int:
        """Of training's aggregates of constant rows, which stay while another flow is evaluated."""
        config = self._config
        if not views.training or not config.mfg or trains_in_batches(config) or not self.model.shares_constants(self.engine):
            return 0
        return views.training[0].sizes.counts["out", 0, -1] * self.model.inputs.width * self._item

    def _smoothing_bytes(self, part: PartSizes, views: WorkerViews, whole: Sizes) -> int:
        """Of scores, tables, and a plan where the run has none that Correct & Smooth can read."""
        config = self._config
        sizes = Sizes(whole.counts, (sum(part.edges),), (part.halo,))
        held = self.accounts.smoothing().peak([sizes])
        sums_shared = config.world == 1  # plain sums share cut edges out as some layer's plan of all rows does
        if not sums_shared:
            costs = self.model.partial_costs(self.engine, [None] * self._layers)
            sums_shared = share_of_sums(config, self.engine) in layer_shares(config, costs)
        apart = config.add_self_loops or self._shape.schema.typed or not sums_shared
        plan = graph_bytes(part, 0, goes_back=False) if apart else 0
        if views.evaluation is not None:  # predictions are of all rows
            plan += graph_bytes(part, sum(part.rows) if config.add_self_loops else 0, goes_back=False)
        return held + plan

    def _all_rows(self, part: PartSizes, views: WorkerViews) -> Sizes:
        return views.whole.sizes if views.whole is not None else self._whole(part, (part.halo,) * self._layers)

    def _whole(self, part: PartSizes, halo: tuple[int, ...], results: tuple[int, ...] = ()) -> Sizes:
        loops, labelled = self._config.add_self_loops, self._shape.labelled
        return part.view(self._shape.schema, self._layers, labelled, loops=loops, halo=halo, results=results)

    def _graph(self, part: PartSizes, views: WorkerViews) -> int:
        """Of plans and lists of rows that are there before training starts."""
        config, rows = self._config, sum(part.rows)
        goes_back = not trains_in_batches(config) and any(self.model.edges_in_backward)
        whole = int(graph_bytes(part, rows if config.add_self_loops else 0, goes_back=goes_back) * self._plans_held(part))
        if views.whole is not None and not config.mfg and config.eval == "full":
            return rows * _OWN_BYTES + views.whole.sizes.bytes_of_plans(self.model.edges_in_backward)
        total = whole
        if views.evaluation is not None:
            evaluated = views.evaluation.sizes.bytes_of_plans([False] * self._layers)
            total = rows * _OWN_BYTES + evaluated + (whole if config.labels.reuse else 0)
        if config.eval == "sampled":
            total += views.drawer_bytes
        if config.mfg and not trains_in_batches(config):
            total += sum(view.sizes.bytes_of_plans(self.model.edges_in_backward) for view in views.training)
        return total

    def _plans_held(self, part: PartSizes) -> float:
        """How many plans of all edges there are: one for each way in which layers share cut edges out (``plan.cover``)."""
        shape, config, model = self._shape, self._config, self.model
        if config.world == 1 or (model.by_relation and shape.schema.typed):
            return 1
        costs = model.partial_costs(self.engine, [None] * self._layers)
        *before, last = spared_shares(layer_shares(config, costs), model.uses_edges)
        held = len(set(before))
        if shape.schema.typed and last is not None:  # only edges into labelled nodes
            return held + part.edges_into(shape.schema, shape.labelled) / max(1, sum(part.edges))
        return held + (last not in before)

    @property
    def _item(self) -> int:
        """Bytes of a number of a row."""
        return ROW_DTYPES[self._config.precision].itemsize

    def _features(self, part: PartSizes, views: WorkerViews) -> int:
        """Of what the first layer reads: tables mapped from the store, copies of them, edges' features and where each lies."""
        shape, item = self._shape, self._item
        mapped = sum(rows * width * 4 for rows, width in zip(part.rows, shape.feature_widths, strict=True))
        mapped += sum(part.edges) * (4 * shape.edge_width + 4) if shape.edge_width else 0
        table = sum(part.rows) * self.model.inputs.width * item
        if self._config.mfg and self.model.inputs.constant and not trains_in_batches(self._config):
            mapped += sum(view.sizes.counts["rows", 0, -1] for view in views.training) * self.model.inputs.width * item
        if shape.schema.typed:
            return mapped + table
        return mapped if item == 4 else mapped + table

    def _parameters(self, part: PartSizes) -> tuple[int, int]:
        """Of all parameters, and of those that are rows of this worker."""
        whole = self.model.inputs.whole_tables()
        replicated = sum(parameter.numel() * parameter.element_size() for parameter in self.model.parameters())
        learned = 0
        for t, width in enumerate(self._shape.feature_widths):
            if whole and not width:
                learned += (part.inner or part.rows)[t] * self.model.inputs.width * 4
        return replicated + learned, learned


def graph_bytes(part: PartSizes, loops: int, *, goes_back: bool) -> int:
    """Of edges in blocks and lists of rows. ``loops``: self-loops that the model adds. ``goes_back``: gradients do."""
    edges, rows = sum(part.edges) + loops, sum(part.rows)
    held = edges * (_EDGE_BYTES if goes_back else _EDGE_BYTES - OTHER_ORDER)
    return held + rows * _ROW_BYTES + part.halo * _HALO_BYTES + part.sent * _SENT_BYTES
