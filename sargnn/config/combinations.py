"""Settings that make no sense together: a table, a row each.

A row says which values meet, as a command line has them, and why that cannot be. What was given, and mostly what is allowed, is
made from it. ``RUN`` has the rows of a run, in the order in which they are looked at.

    task=links,edges      the setting has one of these values; of a group its option counts
    mfg!=false            it has another one; these are allowed, where nothing else is said
    servers=*             it is shown, whatever it is
    spills  !model.trains what is known of a run is true, or false; it is not shown
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, is_dataclass
from functools import cache
from typing import Any

import yaml

from sargnn.config.fields import is_among, written
from sargnn.config.groups import DECODERS, LINK_METRICS
from sargnn.errors import ConfigError

_ABSENT = object()


@dataclass(frozen=True)
class Row:
    """Settings that do not go together.

    Attributes:
        why: a sentence; ``{run.KEY}`` is a value.
        meet: what meets.
        allowed: what is allowed, or how that is told of a run; None: the values behind ``!=``, if there is no hint.
        hint: what to do next.
        test: of the run, what no word says.
    """

    why: str
    meet: str
    allowed: str | Callable[[Any], Iterable[str]] | None = None
    hint: str | None = None
    test: Callable[[Any], object] = lambda _: True

    def check(self, run: Any) -> None:
        """Raises ``ConfigError`` where all that is said meets."""
        words = _read(self.meet)
        values = {key: _value(run, key) for key, _, _ in words}
        if not all(_ABSENT is not values[key] and _holds(values[key], sign, meant) for key, sign, meant in words):
            return
        if self.test(run):
            shown = {key: "memory_budget" if key == "memory_budget.size" else key for key, sign, _ in words if sign.strip("!")}
            given = " ".join(f"{name}={written(values[key])}" for key, name in shown.items())
            allowed = self.allowed(run) if callable(self.allowed) else self.allowed
            if allowed is None and self.hint is None:
                unlike = [(shown[key], meant) for key, sign, meant in words if sign == "!="]
                allowed = [f"{key}={written(value)}" for key, meant in unlike[-1:] for value in meant]
            raise ConfigError(self.why.format(run=run), given=given, allowed=allowed, hint=self.hint)


@cache
def _read(meet: str) -> list[tuple[str, str, tuple[Any, ...]]]:
    """The words of a row: key, sign, and values."""
    words = []
    for word in meet.split():
        parts = re.fullmatch(r"(!?)([\w.]+)(?:(!?=)(.*))?", word)
        assert parts is not None, word
        no, key, sign, text = parts.groups()
        every = text in (None, "*")
        words.append(
            (key, f"{sign}*" if text == "*" else sign or no, () if every else tuple(map(yaml.safe_load, text.split(","))))
        )
    return words


def _holds(value: Any, sign: str, meant: tuple[Any, ...]) -> bool:
    if sign in ("=", "!="):
        return (value in meant) == (sign == "=")
    return sign == "=*" or bool(value) == (sign == "")


def check(run: Any, rows: Iterable[Row]) -> None:
    """Raises ``ConfigError`` for the first row that meets; ``run``: a ``RunConfig``, or what has the groups of the rows."""
    for row in rows:
        row.check(run)


def _value(run: Any, key: str) -> Any:
    """A setting's value, or what is known of a run; of a group its target or name; ``_ABSENT`` where the option has no such."""
    value = run
    for part in key.split("."):
        value = value.get(part, _ABSENT) if isinstance(value, dict) else getattr(value, part, _ABSENT)
    return getattr(value, "choice", getattr(value, "name", None)) if is_dataclass(value) else value


def _divisors(key: str) -> Callable[[Any], list[str]]:
    return lambda run: [f"{key}={count}" for count in range(1, run.world + 1) if run.world % count == 0]


ONE_GRAPH = ("one_shot", "domain_parallel")
"""Modes that fetch all rows and aggregate one graph."""

LSTM = Row(
    "An LSTM needs all neighbours of a node at one time, and this mode has those of one worker after the other.",
    "model.aggregator=lstm mode=sar,no_remat,auto world!=1",
    ", ".join(f"mode={name}" for name in ONE_GRAPH) + ", world=1",
    "model.aggregator=pool works in every mode",
)
_WHOLE = "Reversible blocks need all rows of the layer before, and a step that computes some rows has fewer of them."
_OWN_BLOCKS = "Reversible blocks have residuals, norms in front and maps at both ends of their own."
_EVERY_STEP = "Label propagation reads all nodes in every step."
_MODELS = (
    Row(
        "This model has no linear residuals.",
        "!model.linear_residuals model=* model.residual=linear",
        "model=sage, gcn, gat or gin; model.residual=true",
    ),
    *(
        Row(_OWN_BLOCKS, f"model.blocks=reversible model.{own}", hint="leave it out")
        for own in ("residual!=false", "pre_norm=true", "input_linear=true", "head!=graph", "jumping!=last")
    ),
    Row(
        "A reversible block has two halves.",
        "model.blocks=reversible model.hidden=*",
        "even numbers",
        test=lambda run: run.model.hidden % 2,
    ),
    Row(
        "Rows of reversible blocks are computed again from what comes after them, and bf16 loses too much of them.",
        "model.blocks=reversible precision!=fp32,fp64,mixed",
    ),
    Row("Reversible blocks keep no layer's input.", "model.blocks=reversible engine.keep_layers!=all"),
    *(
        Row(_WHOLE, f"model.blocks=reversible {step}", "full batches: model.blocks=reversible alone")
        for step in ("mfg=true", "batches.steps!=1", "batches.count!=1", "sample.fanouts!=null", "preload!=none")
    ),
    Row(
        "Jumping knowledge is read by a linear map behind the graph layers.",
        "model.jumping!=last model.head!=linear",
        "model.head=linear, or model.jumping=last",
    ),
    Row("There is no norm that could come before the layers.", "model.pre_norm=true model.norm!=batch,layer"),
    LSTM,
    Row(
        "Two settings give each layer a linear residual.",
        "model.residual=linear model.linear_residual=true",
        hint="leave one of them out; the second is a map for each head, also of the last layer's, which are averaged",
    ),
    *(
        Row(
            f"'model.{key}' is defined for GAT's scores, not for GATv2's.",
            f"model.v2=true model.{key}={other}",
            "model.v2=false",
        )
        for key, other in (("attn_dst", "false"), ("symmetric_norm", "true"))
    ),
    Row("Blocks of ResGCN+ are added to their input already.", "model.conv=gcn,sage model.residual!=false"),
    *(Row(_EVERY_STEP, f"!model.trains model=* {key}") for key in ("mfg!=false", "batches.count!=1", "batches.steps!=1")),
    Row("Label propagation reads all edges in every step.", "!model.trains model=* sample.fanouts!=null"),
    Row("Label propagation reads labels by itself.", "!model.trains model=* labels!=none"),
    Row(
        "The setting 'model.target' must be given.",
        "model.reads_target model=* model.target=null",
        hint="add model.target=FILE.py:CLASS",
    ),
    Row(
        "A module of your own computes in fp32 or fp64: PyTorch multiplies no bf16 rows by its fp32 parameters.",
        "model.reads_target model=* precision=bf16",
        hint="precision=mixed multiplies in bf16, comm.wire=bf16 halves what is sent",
    ),
    Row(
        "A module of your own does not say where its layers end: all that its backward needs is kept.",
        "model.reads_target model=* engine.keep_layers!=all",
        "engine.keep_layers=all",
        "batches.count=K needs less memory, too",
    ),
)
PROCESSES = (
    Row(
        "There are more processes than workers.",
        "world=* processes=*",
        lambda run: [f"at most processes={run.world}"],
        test=lambda run: run.num_processes > run.world,
    ),
    Row(
        "All processes have the same number of workers where these take turns.",
        "world=* processes=* !joins_parts",
        _divisors("processes"),
        test=lambda run: run.world % run.num_processes,
    ),
    Row("NCCL carries rows from GPU to GPU.", "device!=cuda comm.backend=nccl", "comm.backend=gloo"),
    Row("NCCL has a process for each worker.", "shares_processes world=* processes=* comm.backend=nccl", "comm.backend=gloo"),
    Row("MPI has a process for each worker.", "shares_processes world=* processes=* comm.backend=mpi", "comm.backend=gloo"),
    Row(
        "The baseline is what a user has without this project: a process for each worker.",
        "shares_processes mode=domain_parallel world=* processes=*",
        "mode=sar, no_remat or one_shot",
        "leave processes out",
    ),
    Row(
        "A memory budget is kept by workers that have a process of their own, or by tables on disk.",
        "shares_processes memory_budget.limits !spills memory_budget.size=* world=* processes=*",
        "spill=auto",
        "leave processes out, or memory_budget",
    ),
)
"""What workers that share a process do not go with."""
DRAWN = (
    Row(
        "No links are drawn whose relations could be chosen.",  # pairs that are given have their relations
        "dataset.link_split=null dataset.link_relations!=null",
        hint="dataset.link_split=[0.85,0.05,0.1], or leave dataset.link_relations out",
    ),
    Row(
        "'dataset.link_split' are no shares of training, validation and test pairs.",
        "dataset.link_split!=null",
        "three numbers from 0 to 1 that add up to at most 1, the first above 0, such as [0.85,0.05,0.1]",
        test=lambda run: len(s := run.dataset.link_split) != 3 or sum(s) > 1 + 1e-9 or not s[0],
    ),
    Row("No relation's edges are links.", "dataset.link_relations=[]", hint="dataset.link_relations=null takes all"),
)
"""What links cannot be drawn by."""
_ANSWERS = "A model that is asked gives scores by itself, of every node."
_PAIRS = (
    Row(
        "Links are drawn to be predicted, and held-out ones are no edges of the graph.",
        "task=nodes dataset.link_split!=null",
        hint="task=links or task=edges, or leave dataset.link_split out",
    ),
    Row("Labels are of nodes, and pairs have none.", "task=links,edges,queries labels!=none"),
    Row("Correct & Smooth spreads the shares of classes of nodes.", "task=links,edges,queries smooth!=none"),
    Row("Any node may be an end of a pair.", "task=links,edges,queries preload!=none"),
    Row("Any node may be an end of a pair, so all rows are computed.", "task=links,edges,queries mfg!=false"),
    Row("Pairs are measured with all edges.", "task=links,edges,queries eval!=full"),
    Row("Rows alone say nothing of classes.", "task=nodes model=none", hint="task=links, or another model"),
    Row(
        "A model without parameters gives no embeddings to train.",
        "task=links,edges,queries !model.trains model=*",
        hint="model=sage",
    ),
    Row(
        "The decoder '{run.links.decoder}' takes half of an embedding as real parts and half as imaginary ones.",
        "task=links links.decoder=complex,rotate links.embedding_dim=*",
        lambda run: [f"an even number in place of {run.num_outputs(0)}"],
        "links.embedding_dim=F, an even number; without it they have model.hidden numbers",
        test=lambda run: run.num_outputs(0) % 2,
    ),
    Row(
        "Only the decoder 'mlp' has a hidden layer.",
        "task=links links.decoder!=mlp links.mlp_hidden!=null",
        hint="links.decoder=mlp, or leave links.mlp_hidden out",
        test=lambda run: run.links.decoder in DECODERS,
    ),
    Row(
        "Negatives that a step's pairs share are the same nodes at one of their ends.",
        "task=links links.shared=true links.corrupt!=tail,head",
    ),
    Row(
        "A node that all pairs of a step share is no link's end for some of them, and is for others.",
        "task=links links.shared=true links.strict=true",
        hint="leave one of them out",
    ),
    Row(
        "Other nodes are scored for each query, and links have a score each.",
        "task=links links.negatives=0",
        "links.negatives=K",
    ),
    Row(
        "Only softmax needs no scores of all nodes in one place.",
        "task=queries links.negatives=0 links.loss!=softmax",
        hint="links.negatives=K draws some",
    ),
    Row(
        "Rows of this model do not depend on what is asked.",
        "task=queries !model.reads_target model=*",
        "model=custom model.target=FILE.py:CLASS, whose forward takes queries",
        "examples/layers/nbfnet.py has one; task=links scores pairs of this model's rows",
    ),
    *(
        Row(_ANSWERS, f"task=queries {setting}", hint="leave it out")
        for setting in (
            "links.decoder!=dot",
            "links.embedding_dim!=null",
            "links.mlp_hidden!=null",
            "links.temperature!=null,1.0",
            "links.corrupt!=tail",
            "links.shared=true",
        )
    ),
    Row("A step of queries has as many as links.queries says.", "task=queries batches.steps!=1", hint="links.queries=Q"),
    Row("A step of queries computes all rows, from all edges.", "task=queries sample.fanouts!=null"),
    Row("Queries are measured by ranks.", "task=queries metric=auc,ap", "metric=mrr, hits@1, hits@3, hits@10, ..."),
    Row("Validation pairs have no loss, which is of negatives that are drawn.", "task=links,queries select!=val_metric"),
    Row("A pair has no classes to spread a label's weight over.", "task=links,queries optim.label_smoothing!=0.0"),
    Row("A pair has no class that could have a weight.", "task=links,queries optim.class_weights!=null"),
    Row("What is minimised of pairs is links.loss.", "task=links,queries optim.loss!=null"),
    Row(
        "'{run.metric}' is no metric of links.",
        "task=links,queries metric!=null",
        lambda _: LINK_METRICS,
        test=lambda run: not is_among(run.metric, LINK_METRICS),
    ),
)
SERVERS = Row(
    "All servers have the same number of workers.",
    "world=* servers=*",
    _divisors("servers"),
    test=lambda run: run.world % run.num_servers,
)
_BOUNDS = "preload.max_hop=* preload.fanout=*"
_FULL_GRAPH = "Where servers preload less than the model reads, evaluations read the full graph"
_SERVERS = (
    SERVERS,
    Row("Nothing is preloaded that could be bounded.", f"preload.bounded preload=none {_BOUNDS}", hint="preload=shared"),
    Row(
        "'preload=auto' chooses only what changes no loss, and bounds on what is preloaded change losses.",
        f"preload.bounded preload=auto {_BOUNDS}",
        hint="preload=shared, or leave preload.max_hop and preload.fanout out",
    ),
    Row(
        "One server has all nodes: there is nothing to preload.",
        "preload=shared world=* servers=*",
        hint="servers=S, a divisor of world; or preload=none",
        test=lambda run: run.num_servers == 1,
    ),
    Row(
        "What a server holds decides the losses here, and 'auto' may cut otherwise another time.",
        f"bounds_preload partitioner=auto {_BOUNDS}",
        "partitioner=metis, kaminpar or stream",
    ),
    Row(f"{_FULL_GRAPH}.", f"bounds_preload {_BOUNDS} eval!=full"),
    Row(
        f"{_FULL_GRAPH} at once, which no budget holds back.",
        f"bounds_preload memory_budget.limits memory_budget.size=* {_BOUNDS}",
        hint="preload=shared without bounds, or no memory_budget",
    ),
)
RUN = (
    *_MODELS,
    Row(
        "'optim.target' names an optimizer of your own.",
        "optim=* optim.target=*",
        "optim=custom optim.target=FILE.py:CLASS, such as torch.optim:SGD",
        test=lambda run: (run.optim.name == "custom") != (run.optim.target is not None),
    ),
    Row("'optim.args' are of an optimizer of your own.", "optim.args!=null,{} optim!=custom"),
    *(
        Row(f"'optim.args' does not set {name}.", f"optim.args.{name}=*", hint=f"optim.{name}=...")
        for name in ("lr", "weight_decay")
    ),
    Row("Labels that are not read cannot be fed back.", "labels.reuse!=0 labels=none", "labels=masked"),
    Row("'init_digest' is filled in by itself.", "init_from=null init_digest!=null", hint="init_from=RUN_DIR"),
    Row("fp64 rows are sent as they are.", "precision=fp64 comm.wire!=exact", hint="precision=fp32, or comm.wire=exact"),
    Row(
        "Only comm.aggregate=fastest asks how fast workers talk.",
        "comm.aggregate!=null,fastest comm.rate!=null",
        hint="leave one of them out",
    ),
    Row(
        "This mode aggregates all edges where their destinations are.",
        "mode=one_shot,domain_parallel comm.aggregate=pre,least,fastest",
        "mode=sar, mode=no_remat",
        "leave comm.aggregate out, or comm.aggregate=post",
    ),
    Row(
        "Only no_remat keeps attention's scores.",
        "mode=sar,auto,one_shot,domain_parallel mode.keep=all",
        "mode=no_remat mode.keep=all",
    ),
    *PROCESSES,
    Row(
        "The baseline is what a user has without this project: its tables stay in memory.",
        "mode=domain_parallel spill!=none",
        "mode=sar, no_remat or one_shot",
    ),
    Row(
        "What goes to disk depends on the memory that a process may take.",
        "spill=auto memory_budget.size=null",
        hint="memory_budget=8GB, or memory_budget=auto; spill=all writes all that backward needs",
    ),
    Row(
        "Tables that lie on a GPU do not go to the disk.",
        "device=cuda spill!=none",
        "spill=none",
        "world=N processes=1 and engine.keep_layers=sqrt hold less at a time; or device=cpu",
    ),
    Row(
        "A memory budget is of resident memory, and not of a GPU's.",
        "device=cuda memory_budget.limits memory_budget.size=*",
        "memory_budget=null",
        "batches.count=K and engine.keep_layers=sqrt hold less at a time; or device=cpu",
    ),
    *DRAWN,
    *_PAIRS,
    Row(
        "How many micro-batches there must be depends on the memory that they may take.",
        "batches.count=auto spill=*",
        hint="memory_budget=6GB, for each worker, without spill; or batches.count=K",
        test=lambda run: run.spills or not run.memory_budget.limits,
    ),
    Row(
        "There is no sample to evaluate on.",
        "eval=sampled sample.fanouts=null",
        hint="sample.fanouts=[10,10,10], one for each layer; or eval=full",
    ),
    *_SERVERS,
    Row("'store_dir' is empty.", "store_dir=''", hint="store_dir=FOLDER, such as stores"),
)
