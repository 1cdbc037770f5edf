"""A second implementation to test against: dense matrices, one process, plain autograd, none of the engine's code.

It shares with the product only the parameters, the random masks and the definition of the models. Which layer a model is made
of, it is told (``tests/parity/cases.py``): a ``Layer`` is a function of a ``Place``, the input rows [N, F] and the layer's
parameters, and gives the output rows without their bias. A model that is no stack is one such function.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from sargnn.config.choices import ModelSettings
from sargnn.config.models import (
    AppnpSettings,
    GatSettings,
    GcniiSettings,
    GinSettings,
    LabelPropagationSettings,
    ResGcnSettings,
    RgatSettings,
    SageSettings,
    SgcSettings,
    StackSettings,
    TunedSettings,
)
from sargnn.config.run import RunConfig
from sargnn.graph.dataset import Dataset
from sargnn.graph.edge_columns import ATTR
from sargnn.graph.schema import SPLITS
from sargnn.rng import Draw, Purpose, draw_words, dropout_mask, edge_mask, neighbour_keys, philox


@dataclass(frozen=True)
class Place:
    """Where a layer stands.

    Attributes:
        matrix: ``adjacency`` of the graph. sums: the same with the edges' weights, where the graph has some.
        index: from 0. last: whether its output are the logits.
        training: whether anything is dropped. initial: what the first layer of a stack gave, activated; None in it.
        rows: bool [N], which are computed: a norm is taken over these; None: all.
        graphs: per layer of the model, ``matrix`` and ``sums``, where steps are drawn. datasets, computed (rows): likewise.
    """

    config: RunConfig
    dataset: Dataset
    matrix: Tensor
    sums: Tensor
    epoch: int
    index: int
    last: bool
    training: bool
    initial: Tensor | None = None
    rows: Tensor | None = None
    graphs: Sequence[tuple[Tensor, Tensor]] = ()
    datasets: Sequence[Dataset] = ()
    computed: Sequence[Tensor] = ()

    def at(self, layer: int) -> Place:
        """With the graph of a layer."""
        if not self.graphs:
            return self
        matrix, sums = self.graphs[layer]
        return dataclasses.replace(self, matrix=matrix, sums=sums, dataset=self.datasets[layer])

    @property
    def in_degrees(self) -> Tensor:
        """[N, 1], at least 1."""
        return self.matrix.sum(1, keepdim=True).clamp(min=1)


Params = dict[str, Tensor]
Layer = Callable[[Place, Tensor, Params], Tensor]


@dataclass(frozen=True)
class Definition:
    """What a model computes.

    Attributes:
        layer: of a stack; or all of the model, biases too, where there is no stack.
        reads_edges: whether a row's output depends on its in-neighbours. stack: whether it is a stack.
        ends: a stack's first and last layer, beside those that ``num_layers`` counts; None: there are none beside them.
    """

    layer: Layer
    reads_edges: bool = True
    stack: bool = True
    ends: Layer | None = None

    def layers(self, model: ModelSettings) -> list[tuple[Layer, bool]]:
        """Of a stack: the layers, each with whether it reads edges."""
        assert isinstance(model, StackSettings)
        inner = [(self.layer, self.reads_edges)] * model.num_layers
        if isinstance(model, TunedSettings) and model.blocks == "reversible":
            return [(perceptron, False), *inner, *inner, (perceptron, False)]
        if isinstance(model, TunedSettings):
            maps = [[(perceptron, False)] * there for there in (model.input_linear, model.head == "linear")]
            return [*maps[0], *inner, *maps[1]]
        return inner if self.ends is None else [(self.ends, False), *inner, (self.ends, False)]

    def reads(self, model: ModelSettings) -> list[bool]:
        """Of what is no stack: per layer, whether it reads edges."""
        if isinstance(model, AppnpSettings):
            return [False] * model.num_layers + [True] * model.steps
        return [True] * model.steps if isinstance(model, SgcSettings) else [self.reads_edges]


def adjacency(dataset: Dataset, add_self_loops: bool, *, weighted: bool = False) -> Tensor:
    """Dense [N, N] fp64: how many edges j -> i there are, row i, column j.

    With ``weighted``, of a graph with edge weights: their sum. An added self-loop weighs 1.
    """
    n = dataset.num_nodes
    matrix = torch.zeros(n, n, dtype=torch.float64)
    rows = torch.from_numpy(np.repeat(np.arange(n), np.diff(dataset.indptr)))
    columns, each = torch.from_numpy(np.asarray(dataset.indices)).long(), torch.ones(dataset.num_edges).double()
    if weighted and dataset.columns.weight is not None:
        each = torch.from_numpy(np.asarray(dataset.columns.weight)).double()
    matrix.index_put_((rows, columns), each, accumulate=True)
    if add_self_loops:
        matrix.fill_diagonal_(1.0)
    return matrix


def carried_labels(config: RunConfig, dataset: Dataset, epoch: int) -> Tensor:
    """bool [N], the training nodes that carry their label in an epoch."""
    train = torch.from_numpy(np.asarray(dataset.split) == SPLITS["train"])
    draw = Draw(config.seed, epoch, Purpose.LABELS, 0, 1 - config.labels.rate)
    return train & dropout_mask(torch.arange(dataset.num_nodes), 1, draw)[:, 0]


def label_columns(definition: Definition, config: RunConfig, dataset: Dataset, params: Params, epoch: int) -> Tensor:
    """[N, C]: labels that are carried; with reuse the others' soft predictions."""
    carried, labels = carried_labels(config, dataset, epoch), torch.from_numpy(np.asarray(dataset.labels))
    if dataset.task == "classes":
        known = F.one_hot(labels.clamp(min=0), dataset.num_classes).double()
    else:
        known = torch.where(_known_entries(labels), labels.double(), 0.0)
    columns = known * carried[:, None]
    soften: dict[str, Callable[[Tensor], Tensor]] = {"multilabel": torch.sigmoid, "regression": torch.clone}
    kind = dataset.schema.types_of(np.arange(dataset.num_nodes))
    labelled = torch.from_numpy(kind == kind[np.flatnonzero(dataset.split)[0]])
    for _ in range(config.labels.reuse):
        logits = forward(definition, config, dataset, params, epoch, columns=columns, training=False).detach()
        soft = soften.get(dataset.task, lambda z: z.softmax(1))(logits)
        columns = torch.where((labelled & ~carried)[:, None], soft, columns)
    return columns


def step_targets(config: RunConfig, dataset: Dataset, number: int) -> Tensor:
    """bool [N], the training nodes of an optimizer step, counted from the beginning."""
    steps, ids = config.batches.steps, np.flatnonzero(np.asarray(dataset.split) == SPLITS["train"])
    epoch, step = divmod(number, steps)
    if steps > 1:
        ids = ids[np.argsort(draw_words(ids, config.seed, Purpose.SHUFFLE, epoch) >> 1, kind="stable")]
        ids = ids[len(ids) * step // steps : len(ids) * (step + 1) // steps]
    wanted = torch.zeros(dataset.num_nodes, dtype=torch.bool)
    wanted[torch.from_numpy(ids)] = True
    return wanted


def only_chosen(config: RunConfig, dataset: Dataset, rows: Tensor, layer: int, fanout: int, number: int) -> Dataset:
    """The dataset with the edges into some rows that a sample keeps: per relation those with the smallest numbers."""
    indptr, sources = np.asarray(dataset.indptr), np.asarray(dataset.indices, dtype=np.int64)
    destinations = np.repeat(np.arange(dataset.num_nodes), np.diff(indptr))
    relations = np.zeros(len(sources), np.int64) if dataset.relation is None else np.asarray(dataset.relation, dtype=np.int64)
    open_edges = np.flatnonzero(rows.numpy()[destinations] & ~((sources == destinations) & config.add_self_loops))
    source, row, relation = sources[open_edges], destinations[open_edges], relations[open_edges]
    copy = place_in_group(source, relation, row)  # of parallel edges the first, second, ...
    words = [torch.from_numpy(np.ascontiguousarray(w)) for w in (source, row, copy, 11 << 24 | layer << 16 | relation)]
    first, second, _, _ = philox(words[0], words[1], words[2], words[3], config.seed, number)
    keys = (first.numpy().astype(np.uint64) << np.uint64(32)) | second.numpy().astype(np.uint64)
    smallest = np.argsort(keys, kind="stable")
    chosen = smallest[place_in_group(relation[smallest], row[smallest]) < fanout]
    order = np.sort(open_edges[chosen])
    counts = np.bincount(destinations[order], minlength=dataset.num_nodes)
    return dataclasses.replace(
        dataset, indptr=np.concatenate([[0], np.cumsum(counts)]), indices=np.asarray(dataset.indices)[order],
        relation=None if dataset.relation is None else np.asarray(dataset.relation)[order],
        columns=dataset.columns.take(order),
    )  # fmt: skip


def place_in_group(*keys: np.ndarray) -> np.ndarray:
    """How many entries before each one have the same keys; the keys are int [E]."""
    order = np.lexsort(keys)  # which keeps the order of equal ones
    change = np.any([key[order][1:] != key[order][:-1] for key in keys], axis=0)
    starts = np.concatenate([[0], np.flatnonzero(change) + 1]) if len(order) else np.zeros(0, np.int64)
    place = np.arange(len(order)) - np.repeat(starts, np.diff(np.append(starts, len(order))))
    found = np.empty(len(order), np.int64)
    found[order] = place
    return found


def drawn_graphs(
    config: RunConfig, dataset: Dataset, reads_edges: Sequence[bool], number: int
) -> tuple[list[Dataset], list[tuple[Tensor, Tensor]], list[Tensor]]:
    """Per layer the dataset, its matrices, and the rows that a step computes: bool [N].

    A layer that keeps all edges has the whole graph.
    """
    samples = {"step": number, "epoch": number // config.batches.steps, "run": 0}
    left = list(config.sample.fanouts or ())
    fanouts = [left.pop(0) if reads and left else -1 for reads in reads_edges]
    rows = [step_targets(config, dataset, number)]
    datasets: list[Dataset] = []
    graphs: list[tuple[Tensor, Tensor]] = []
    for layer in reversed(range(len(reads_edges))):
        own, loops = dataset, torch.ones(dataset.num_nodes).double()
        if fanouts[layer] >= 0:
            own = only_chosen(config, dataset, rows[0], layer, fanouts[layer], samples[config.sample.every])
            loops = rows[0].double()
        matrices = [adjacency(own, config.add_self_loops, weighted=weighted) for weighted in (False, True)]
        if config.add_self_loops:
            matrices = [matrix.diagonal_scatter(loops) for matrix in matrices]
        datasets.insert(0, own)
        graphs.insert(0, (matrices[0], matrices[1]))
        if layer:
            reached = (matrices[0][rows[0]] > 0).any(0)
            rows.insert(0, rows[0] | reached if reads_edges[layer] else rows[0])
    return datasets, graphs, rows


def needed_rows(config: RunConfig, dataset: Dataset, reads_edges: Sequence[bool]) -> list[Tensor]:
    """Per layer bool [N], the rows that it must compute to reach the training nodes.

    Args:
        reads_edges: per layer, whether a row's output depends on its in-neighbours.
    """
    matrix = adjacency(dataset, config.add_self_loops)
    needed = [torch.from_numpy(np.asarray(dataset.split) == SPLITS["train"])]
    for reads in reversed(reads_edges[1:]):
        reached = (matrix[needed[0]] > 0).any(0)
        needed.insert(0, needed[0] | reached if reads else needed[0])
    return needed


def forward(
    definition: Definition, config: RunConfig, dataset: Dataset, params: Params, epoch: int, *, columns: Tensor | None = None,
    training: bool = True,
) -> Tensor:  # fmt: skip
    """Logits [N, C] in fp64; in evaluation mode with a fresh norm's running statistics."""
    matrix, sums = (adjacency(dataset, config.add_self_loops, weighted=weighted) for weighted in (False, True))
    place = Place(config, dataset, matrix, sums, epoch, 0, True, training)
    x = _inputs(dataset, params)
    x = x if columns is None else torch.cat([x, columns], 1)
    x = _dropped(place, x, Purpose.INPUT_DROPOUT, getattr(config.model, "input_dropout", 0))
    layers = definition.layers(config.model) if definition.stack else []
    reads = [reads for _, reads in layers] or definition.reads(config.model)
    if config.draws_flows and training:
        datasets, graphs, computed = drawn_graphs(config, dataset, reads, epoch)
        place = dataclasses.replace(place, datasets=datasets, graphs=graphs, computed=computed)
    if not definition.stack:
        return definition.layer(place, x, params)
    every = torch.ones(dataset.num_nodes, dtype=torch.bool)
    rows = needed_rows(config, dataset, reads) if config.mfg else [every] * len(layers)
    rows = list(place.computed) or rows
    join = _tuned_stack if isinstance(config.model, TunedSettings) and not config.model.is_plain else _stack
    join = _reversible_stack if getattr(config.model, "blocks", "plain") == "reversible" else join
    return join(place, [layer for layer, _ in layers], x, params, rows)


def _dropped(place: Place, x: Tensor, purpose: Purpose, p: float) -> Tensor:
    if not place.training:
        return x
    draw = Draw(place.config.seed, place.epoch, purpose, place.index, p)
    return x * dropout_mask(torch.arange(len(x)), x.shape[1], draw) / (1 - p)


def _stack(place: Place, layers: Sequence[Layer], h: Tensor, params: Params, rows: Sequence[Tensor]) -> Tensor:
    """The last layer's output. rows: bool [N] per layer, what it computes."""
    model, initial, stream = place.config.model, None, torch.zeros(())
    assert isinstance(model, StackSettings)
    for index, layer in enumerate(layers):
        place = dataclasses.replace(place, index=index, last=index == len(layers) - 1, initial=initial, rows=rows[index])
        place = place.at(index)
        own = _below(params, f"layers.{index}.")
        out = layer(place, h, own)
        out = out + sum(value for name, value in own.items() if name in ("bias", "self.bias", "linear.bias"))
        if place.last:
            return out
        if isinstance(model, ResGcnSettings):
            stream = out = out + stream
        if model.residual:
            weight = params.get(f"residuals.{index}.weight")
            out = out + (h if weight is None else h @ weight.T)
        out = getattr(F, model.activation)(_between(place, out, params, f"norms.{index}."))
        initial = out if index == 0 else initial
        h = _dropped(place, out, Purpose.DROPOUT, model.dropout)
    raise AssertionError


def _tuned_stack(place: Place, layers: Sequence[Layer], h: Tensor, params: Params, rows: Sequence[Tensor]) -> Tensor:
    """The same with what ``TunedSettings`` has."""
    model, stream, outs = place.config.model, h, list[Tensor]()
    assert isinstance(model, TunedSettings)
    for index, layer in enumerate(layers):
        place = dataclasses.replace(place, index=index, last=index == len(layers) - 1, rows=rows[index]).at(index)
        own, joined = _below(params, f"layers.{index}."), torch.stack(outs) if outs else None
        if place.last and joined is not None and model.jumping != "last":
            h = {"sum": joined.sum(0), "max": joined.amax(0), "cat": torch.cat(outs, 1)}[model.jumping]
        out = layer(place, h, own)
        out = out + sum(value for name, value in own.items() if name in ("bias", "self.bias", "linear.bias"))
        if layer is not perceptron and (model.residual == "linear" or (model.residual and not place.last)):
            weight = params.get(f"residuals.{index}.weight")
            out = out + (stream if weight is None else stream @ weight.T)
        if place.last:
            return out
        if layer is not perceptron:
            out = out if model.pre_norm else _between(place, out, params, f"norms.{index}.")
            out = getattr(F, model.activation)(out)
        stream = h = _dropped(place, out, Purpose.DROPOUT, model.dropout)
        if layer is not perceptron:
            outs.append(h)
        if model.pre_norm and f"norms.{index}.weight" in params:
            h = _between(place, h, params, f"norms.{index}.")
    raise AssertionError


def _reversible_stack(place: Place, layers: Sequence[Layer], h: Tensor, params: Params, rows: Sequence[Tensor]) -> Tensor:
    """Blocks [a + f(b), b + g(a + f(b))], by plain autograd."""
    model = place.config.model
    assert isinstance(model, TunedSettings)

    def mapped(index: int, x: Tensor) -> Tensor:
        here = dataclasses.replace(place, index=index, last=index == len(layers) - 1)
        own = _below(params, f"layers.{index}.")
        if index:
            x = getattr(F, model.activation)(_between(here, x, params, f"norms.{index - 1}."))
            x = _dropped(here, x, Purpose.DROPOUT, model.dropout)
        out = layers[index](here, x, own)
        return out + sum(value for name, value in own.items() if name in ("bias", "self.bias", "linear.bias"))

    a, b = mapped(0, h).chunk(2, 1)
    for index in range(1, len(layers) - 1, 2):
        a = a + mapped(index, b)
        b = b + mapped(index + 1, a)
    return mapped(len(layers) - 1, torch.cat([a, b], 1))


def _below(params: Params, start: str) -> Params:
    """The parameters whose names start so, by what follows."""
    return {name.removeprefix(start): value for name, value in params.items() if name.startswith(start)}


def sage(place: Place, h: Tensor, params: Params) -> Tensor:
    """h W_self + the neighbours' mean, sum, maximum or last state W_neigh."""
    assert isinstance(place.config.model, SageSettings)
    if place.config.model.aggregator == "max":
        gathered = _maxima(place.matrix, h)
    elif place.config.model.aggregator == "pool":
        gathered = _maxima(place.matrix, F.relu(h @ params["pool.weight"].T + params["pool.bias"]))
    elif place.config.model.aggregator == "lstm":
        gathered = _last_states(place, h, _below(params, "lstm."))
    else:
        gathered = place.sums @ h
        if place.config.model.aggregator == "mean":
            gathered = _power(place.sums.sum(1, keepdim=True), -1.0) * gathered
    return h @ params["self.weight"].T + gathered @ params["neigh.weight"].T


def _symmetric(place: Place) -> Tensor:
    """D_in^-1/2 A D_out^-1/2."""
    return _power(place.sums.sum(1, keepdim=True), -0.5) * place.sums * _power(place.sums.sum(0, keepdim=True), -0.5)


def _power(sums: Tensor, power: float) -> Tensor:
    """To a negative power; 0 stays 0."""
    return torch.where(sums > 0, torch.where(sums > 0, sums, 1.0) ** power, 0.0)


def gcn(place: Place, h: Tensor, params: Params) -> Tensor:
    """D_in^-1/2 A D_out^-1/2 h W."""
    return _symmetric(place) @ h @ params["linear.weight"].T


def sgc(place: Place, h: Tensor, params: Params) -> Tensor:
    """S^K h W + b."""
    assert isinstance(place.config.model, SgcSettings)
    for step in range(place.config.model.steps):
        h = _symmetric(place.at(step)) @ h
    return h @ params["linear.weight"].T + params["linear.bias"]


def appnp(place: Place, h: Tensor, params: Params) -> Tensor:
    """Z_(t+1) = (1 - alpha) S Z_t + alpha H from H = Z_0 = MLP(h); in each step other entries of S are dropped."""
    model, n = place.config.model, len(h)
    assert isinstance(model, AppnpSettings)
    rows = [torch.ones(n, dtype=torch.bool)] * model.num_layers
    if place.graphs:
        rows = list(place.computed)
    elif place.config.mfg:
        rows = needed_rows(place.config, place.dataset, [False] * model.num_layers + [True] * model.steps)
    own = _stack(place, [perceptron] * model.num_layers, h, _below(params, "mlp."), rows)
    z = own
    destination, source = torch.meshgrid(torch.arange(n), torch.arange(n), indexing="ij")
    for step in range(model.steps):
        draw = Draw(place.config.seed, place.epoch, Purpose.EDGE_DROPOUT, step, model.edge_dropout * place.training)
        kept = edge_mask(source.flatten(), destination.flatten(), 1, draw).view(n, n)
        matrix = _symmetric(place.at(model.num_layers + step))
        z = (1 - model.alpha) * (matrix * kept * draw.scale) @ z + model.alpha * own
    return z


def gcnii(place: Place, h: Tensor, params: Params) -> Tensor:
    """((1 - alpha) S h + alpha H_0) ((1 - beta) I + beta W), beta = log(theta / l + 1)."""
    model = place.config.model
    assert isinstance(model, GcniiSettings) and place.initial is not None
    beta = math.log(model.theta / place.index + 1)
    mixed = (1 - model.alpha) * _symmetric(place) @ h + model.alpha * place.initial
    return (1 - beta) * mixed + beta * mixed @ params["weight"].T


def resgcn(place: Place, h: Tensor, params: Params) -> Tensor:
    """What a block adds to its input: a convolution of the rows that are normalised, activated and dropped."""
    model = place.config.model
    assert isinstance(model, ResGcnSettings)
    if model.conv == "gcn":
        return gcn(place, h, params)
    mean = _power(place.sums.sum(1, keepdim=True), -1.0) * (place.sums @ h)
    return h @ params["self.weight"].T + mean @ params["neigh.weight"].T


def gin(place: Place, h: Tensor, params: Params) -> Tensor:
    """A perceptron of (1 + eps) h + the neighbours' sum, or that of what edges' features make of them."""
    model = place.config.model
    assert isinstance(model, GinSettings)
    eps = params["eps"] if model.learn_eps else model.eps
    h = (1 + eps) * h + (_changed_by_edges(place, h, params) if "edge_map.weight" in params else place.sums @ h)
    for index in range(model.mlp_layers):
        if index:
            h = getattr(F, model.activation)(_between(place, h, params, f"norms.{index - 1}."))
        h = h @ params[f"maps.{index}.weight"].T + params.get(f"maps.{index}.bias", 0.0)
    return h


def _changed_by_edges(place: Place, h: Tensor, params: Params) -> Tensor:
    """The sum of w_e relu(h_j + W f_e + b) over edges e = j -> i, every edge at once."""
    graph = place.dataset
    rows = torch.from_numpy(np.repeat(np.arange(graph.num_nodes), np.diff(graph.indptr)))
    features = torch.from_numpy(np.asarray(graph.columns[ATTR])).double()
    messages = h[torch.from_numpy(np.asarray(graph.indices)).long()] + features @ params["edge_map.weight"].T
    messages = (messages + params["edge_map.bias"]).relu()
    if graph.columns.weight is not None:
        messages = messages * torch.from_numpy(np.asarray(graph.columns.weight)).double()[:, None]
    return torch.zeros_like(h).index_add(0, rows, messages)


def gat(place: Place, h: Tensor, params: Params) -> Tensor:
    """Heads side by side, in the last layer their mean."""
    model = place.config.model
    assert isinstance(model, GatSettings)
    heads = model.out_heads if place.last else model.heads
    draw = Draw(
        place.config.seed, place.epoch, Purpose.ATTENTION_DROPOUT, place.index, model.attn_dropout * place.training
    )  # fmt: skip
    matrix, n = place.matrix, len(h)
    if model.edge_dropout and place.training:
        edges = Draw(place.config.seed, place.epoch, Purpose.EDGE_DROPOUT, place.index, model.edge_dropout)
        destination, source = torch.meshgrid(torch.arange(n), torch.arange(n), indexing="ij")
        matrix = matrix * edge_mask(source.flatten(), destination.flatten(), 1, edges).view(n, n)
    roots = place.matrix.sum(0).clamp(min=1).sqrt()[:, None] if model.symmetric_norm else torch.ones(n, 1).double()
    each = place.sums / place.matrix.clamp(min=1)  # parallel edges have one coefficient: the mean of their weights
    if "edge_map.weight" in params:
        out = _attention_with_features(place, matrix, h, params, heads, draw, roots)
    else:
        out = _attention(matrix, each, h, params, model, heads, draw, roots)
    if model.symmetric_norm:
        out = out * place.in_degrees.sqrt()
    if model.linear_residual:
        out = out + h @ params["residual.weight"].T
    return out.view(n, heads, -1).mean(1) if place.last else out


def rgcn(place: Place, h: Tensor, params: Params) -> Tensor:
    """h W_0 + the relations' means, each with its own weight or one made of bases."""
    return _relational(place.dataset, h, params)


def rgat(place: Place, h: Tensor, params: Params) -> Tensor:
    """h W_0 + GAT's attention over each relation's edges, every edge at once."""
    graph, model, n = place.dataset, place.config.model, len(h)
    assert isinstance(model, RgatSettings)
    heads = model.out_heads if place.last else model.heads
    draw = Draw(
        place.config.seed, place.epoch, Purpose.ATTENTION_DROPOUT, place.index, model.attn_dropout * place.training
    )  # fmt: skip
    dst = torch.from_numpy(np.repeat(np.arange(n), np.diff(graph.indptr)))
    src = torch.from_numpy(np.asarray(graph.indices)).long()
    relation = torch.zeros_like(dst) if graph.relation is None else torch.from_numpy(np.asarray(graph.relation)).long()
    weight = torch.ones(len(src)) if graph.columns.weight is None else torch.from_numpy(np.asarray(graph.columns.weight))
    out = (h @ params["loop"].T).view(n, heads, -1)
    for r, own in enumerate(params["weight"]):
        of = relation == r
        a, b, z = src[of], dst[of], (h @ own.T).view(n, heads, -1)
        raw = (z * params["attn_src"][r]).sum(2)[a] + (z * params["attn_dst"][r]).sum(2)[b]
        if "edge_weight" in params:
            features = torch.from_numpy(np.asarray(graph.columns[ATTR])).double()[of]
            mapped = (features @ params["edge_weight"][r].T).unflatten(1, (heads, -1))
            raw = raw + (mapped * params["attn_edge"][r]).sum(2)
        exponentials = F.leaky_relu(raw, model.negative_slope).exp()
        sums = torch.zeros(n, heads).double().index_add(0, b, exponentials)
        factors = weight.double()[of, None] * edge_mask(a, b, heads, draw) * draw.scale
        out = out.index_add(0, b, (exponentials / sums[b] * factors)[:, :, None] * z[a])
    return out.mean(1) if place.last else out.flatten(1)


def perceptron(place: Place, h: Tensor, params: Params) -> Tensor:
    """h W: no edges."""
    return h @ params["linear.weight"].T


def rows_alone(place: Place, h: Tensor, params: Params) -> Tensor:
    return h


def label_propagation(place: Place, h: Tensor, params: Params) -> Tensor:
    """log of Y_T, rows scaled to sum to one: Y_(t+1) = clamp(alpha D^-1/2 A D^-1/2 Y_t + (1 - alpha) Y_0, 0, 1)."""
    model, dataset = place.config.model, place.dataset
    assert isinstance(model, LabelPropagationSettings) and model.adjacency == "dad"
    train = torch.from_numpy(np.asarray(dataset.split) == SPLITS["train"])
    known = F.one_hot(torch.from_numpy(np.asarray(dataset.labels)).clamp(min=0), dataset.num_classes).double()
    h = known * train[:, None]
    power = _power(place.sums.sum(1), -0.5)
    normalised, y = power[:, None] * place.sums * power, h
    for _ in range(model.steps):
        y = (model.alpha * normalised @ y + (1 - model.alpha) * h).clamp(0, 1)
    return ((y + 1e-12) / (y.sum(1, keepdim=True) + 1e-12 * y.shape[1])).log()


def _inputs(dataset: Dataset, params: Params) -> Tensor:
    """[N, D]: features, mapped features or embeddings, type by type."""
    tables = []
    for number, (node_type, features) in enumerate(zip(dataset.schema.node_types, dataset.features, strict=True)):
        name = f"{number:02d}_{node_type.replace('.', '_')}"
        rows, weight = torch.from_numpy(np.array(features)).double(), params.get(f"inputs.maps.{name}.weight")
        rows = rows if weight is None else rows @ weight.T
        tables.append(params.get(f"inputs.embeddings.{name}", rows))
    return torch.cat(tables)


def _relational(dataset: Dataset, h: Tensor, params: Params) -> Tensor:
    n, weights = dataset.num_nodes, params["weight"]
    if "coefficients" in params:
        weights = torch.einsum("rb,bio->rio", params["coefficients"], weights)
    rows = torch.from_numpy(np.repeat(np.arange(n), np.diff(dataset.indptr)))
    columns = torch.from_numpy(np.asarray(dataset.indices)).long()
    each = (
        torch.ones(dataset.num_edges)
        if dataset.columns.weight is None
        else torch.from_numpy(np.asarray(dataset.columns.weight))
    )
    each = each.double()
    relation = torch.zeros_like(rows) if dataset.relation is None else torch.from_numpy(np.asarray(dataset.relation)).long()
    out = h @ params["loop"]
    for r, weight in enumerate(weights):
        matrix, own = torch.zeros(n, n, dtype=torch.float64), relation == r
        matrix.index_put_((rows[own], columns[own]), each[own], accumulate=True)
        out = out + _power(matrix.sum(1, keepdim=True), -1.0) * matrix @ h @ weight
    return out


NEGLIGIBLE = 64
"""Batch norm takes a column's variance for rounding below (64 eps)^2 times the mean, over the columns, of the squared means."""


def _between(place: Place, x: Tensor, params: Params, name: str) -> Tensor:
    """The model's norm; its parameters' names start with ``name``."""
    assert isinstance(place.config.model, StackSettings)
    norm = place.config.model.norm
    if norm == "none":
        return x
    weight, bias = params[f"{name}weight"], params[f"{name}bias"]
    if norm == "layer":
        return _normalised_rows(place.dataset, x, weight, bias)
    rows = torch.ones(len(x), dtype=torch.bool) if place.rows is None else place.rows
    return _normalised(place.config, place.dataset, x, weight, bias, rows, place.training)


def _normalised(
    config: RunConfig, dataset: Dataset, x: Tensor, weight: Tensor, bias: Tensor, rows: Tensor, training: bool
) -> Tensor:  # fmt: skip
    """Batch norm over some rows of each type, the others left as they are; or with mean 0 and variance 1.

    Columns whose rows are all the same, but for rounding, are normalised to 0 and give no gradient to ``x``.
    """
    bounds = list(zip(dataset.schema.offsets, dataset.schema.offsets[1:], strict=False))
    weight, bias = weight.view(len(bounds), -1), bias.view(len(bounds), -1)
    eps = torch.finfo(torch.float64 if config.precision == "fp64" else torch.float32).eps
    pieces = []
    for t, (a, b) in enumerate(bounds):
        piece, own = x[a:b], rows[a:b]
        if training and own.any():
            normed = F.batch_norm(piece[own], None, None, weight[t], bias[t], training=True)
            variance, mean = torch.var_mean(piece[own].detach(), 0, correction=0)
            same = variance < (NEGLIGIBLE * eps) ** 2 * mean.square().mean()
            normed = torch.where(same, bias[t], normed)
            piece = torch.zeros_like(piece).index_put((torch.nonzero(own)[:, 0],), normed)
        elif not training:
            zeros = torch.zeros(x.shape[1], dtype=x.dtype)
            piece = F.batch_norm(piece, zeros, zeros + 1, weight[t], bias[t])
        pieces.append(piece)
    return torch.cat(pieces)


def _normalised_rows(dataset: Dataset, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Layer norm, each type's rows with its own weight and bias."""
    kind = torch.from_numpy(dataset.schema.types_of(np.arange(len(x)))).long()
    by_type = weight.view(-1, x.shape[1]), bias.view(-1, x.shape[1])
    centred = x - x.mean(1, keepdim=True)
    return centred / (centred.square().mean(1, keepdim=True) + 1e-5).sqrt() * by_type[0][kind] + by_type[1][kind]


def _attention(
    matrix: Tensor, each: Tensor, h: Tensor, params: Params, model: GatSettings, heads: int, draw: Draw, roots: Tensor
) -> Tensor:  # fmt: skip
    """[N, H K]: per head a softmax over all in-edges, with what stands in ``matrix`` as their number.

    Args:
        each: [N, N], what multiplies its weights after that.
        roots: [N, 1], what sources' rows are divided by before they are scored; GAT only.
    """
    n = len(h)
    if model.v2:
        z = (h @ params["src.weight"].T + params["src.bias"]).view(n, heads, -1)
        x = (h @ params["dst.weight"].T + params["dst.bias"]).view(n, heads, -1)
        u = F.leaky_relu(z[None] + x[:, None], model.negative_slope)  # [destination, source, head, feature]
        scores = (u * params["attn"]).sum(3)
    else:
        z = (h @ params["linear.weight"].T).view(n, heads, -1)
        of_destinations = (z * params["attn_dst"]).sum(2) if model.attn_dst else torch.zeros(n, heads).double()
        z = z / roots[:, :, None]
        raw = (z * params["attn_src"]).sum(2)[None] + of_destinations[:, None]
        scores = F.leaky_relu(raw, model.negative_slope)
    connected = matrix[:, :, None] > 0
    scores = scores.masked_fill(~connected, -torch.inf)
    top = scores.detach().amax(1, keepdim=True)
    weights = torch.where(connected, matrix[:, :, None] * torch.exp(scores - top.masked_fill(top == -torch.inf, 0)), 0)
    sums = weights.sum(1, keepdim=True)
    weights = weights / torch.where(sums == 0, 1, sums)
    destination, source = torch.meshgrid(torch.arange(n), torch.arange(n), indexing="ij")
    kept = edge_mask(source.flatten(), destination.flatten(), heads, draw).view(n, n, heads)
    return torch.einsum("ijh,jhk->ihk", weights * kept * draw.scale * each[:, :, None], z).flatten(1)


def _attention_with_features(
    place: Place, kept: Tensor, h: Tensor, params: Params, heads: int, draw: Draw, roots: Tensor
) -> Tensor:
    """The same where edges have features, so that parallel ones differ: every edge at once.

    Args:
        kept: [N, N], not 0 where an edge takes part.
    """
    graph, model, n = place.dataset, place.config.model, len(h)
    assert isinstance(model, GatSettings)
    rows, columns = np.repeat(np.arange(n), np.diff(graph.indptr)), np.asarray(graph.indices)
    given = rows != columns  # each node has one self-loop, without features
    dst, src = (torch.from_numpy(np.concatenate([ends[given], np.arange(n)])).long() for ends in (rows, columns))
    features = torch.from_numpy(np.asarray(graph.columns[ATTR])[given]).double()
    mapped = torch.cat([features, features.new_zeros(n, features.shape[1])]) @ params["edge_map.weight"].T
    weight = torch.ones(len(src)).double()
    if graph.columns.weight is not None:
        weight[: int(given.sum())] = torch.from_numpy(np.asarray(graph.columns.weight)[given]).double()
    if model.v2:
        z = h @ params["src.weight"].T + params["src.bias"]
        u = z[src] + (h @ params["dst.weight"].T + params["dst.bias"])[dst] + mapped
        z, scores = (
            z.view(n, heads, -1),
            (F.leaky_relu(u, model.negative_slope).unflatten(1, (heads, -1)) * params["attn"]).sum(2),
        )
    else:
        z = (h @ params["linear.weight"].T).view(n, heads, -1)
        of_destinations = (z * params["attn_dst"]).sum(2) if model.attn_dst else torch.zeros(n, heads).double()
        z = z / roots[:, :, None]
        of_edges = (mapped.unflatten(1, (heads, -1)) * params["attn_edge"]).sum(2)
        raw = (z * params["attn_src"]).sum(2)[src] + of_destinations[dst] + of_edges
        scores = F.leaky_relu(raw, model.negative_slope)
    part = (kept[dst, src] != 0)[:, None]
    exponentials = torch.where(part, torch.exp(scores), 0)
    sums = torch.zeros(n, heads).double().index_add(0, dst, exponentials)
    shares = exponentials / torch.where(sums == 0, 1, sums)[dst]
    factors = weight[:, None] * edge_mask(src, dst, heads, draw) * draw.scale
    return torch.zeros_like(z).index_add(0, dst, (shares * factors)[:, :, None] * z[src]).flatten(1)


def _last_states(place: Place, h: Tensor, params: Params) -> Tensor:
    """Each row's last hidden state of an LSTM over its in-neighbours, in the drawn order; 0 without any."""
    n, edges = len(h), place.dataset
    destination = torch.from_numpy(np.repeat(np.arange(n), np.diff(edges.indptr)))
    source = torch.from_numpy(np.asarray(edges.indices)).long()
    draw = Draw(place.config.seed, place.epoch * place.training, Purpose.NEIGHBOURS, place.index, 0.0)
    keys = neighbour_keys(source, destination, draw).numpy()
    order = torch.from_numpy(np.lexsort((keys, destination.numpy())))
    degrees = torch.bincount(destination, minlength=n)
    starts = degrees.cumsum(0) - degrees
    state, cell = torch.zeros_like(h), torch.zeros_like(h)
    for step in range(int(degrees.max())):
        there = degrees > step
        z = torch.zeros_like(h).index_put((there.nonzero()[:, 0],), h[source[order[starts[there] + step]]])
        gates = z @ params["weight_ih_l0"].T + params["bias_ih_l0"] + state @ params["weight_hh_l0"].T + params["bias_hh_l0"]
        into, forget, new, out = gates.chunk(4, 1)
        cell_now = forget.sigmoid() * cell + into.sigmoid() * new.tanh()
        state_now = out.sigmoid() * cell_now.tanh()
        cell, state = torch.where(there[:, None], cell_now, cell), torch.where(there[:, None], state_now, state)
    return state


def _maxima(matrix: Tensor, h: Tensor) -> Tensor:
    """Each row's maximum over its in-neighbours, 0 without any; a tie goes to the smallest id, and its gradient with it."""
    neighbours = torch.where((matrix > 0)[:, :, None], h.detach()[None], -torch.inf)
    top = neighbours.amax(1, keepdim=True)
    first = torch.arange(matrix.shape[1])[None, :, None].where(neighbours == top, matrix.shape[1]).amin(1)
    return h.gather(0, first.clamp(max=len(h) - 1)).masked_fill(~top[:, 0].isfinite(), 0)


def _loss(
    definition: Definition, config: RunConfig, dataset: Dataset, leaves: Params, epoch: int
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The training loss of an optimizer step, and the logits."""
    counted = step_targets(config, dataset, epoch)
    columns = None
    if config.labels.name != "none":
        columns = label_columns(definition, config, dataset, leaves, epoch)
        counted = counted & ~carried_labels(config, dataset, epoch)
    logits = forward(definition, config, dataset, leaves, epoch, columns=columns)
    labels = torch.from_numpy(np.asarray(dataset.labels))[counted]
    if dataset.task == "classes":
        return F.cross_entropy(logits[counted], labels), logits
    known = _known_entries(labels)
    criterion = F.binary_cross_entropy_with_logits if dataset.task == "multilabel" else F.mse_loss
    return criterion(logits[counted][known], labels[known].double()), logits


def _known_entries(labels: Tensor) -> Tensor:
    """Of several labels or numbers: not -1, not nan."""
    return ~labels.isnan() if labels.is_floating_point() else labels != -1


def first_step(definition: Definition, config: RunConfig, dataset: Dataset, params: Params) -> dict[str, Any]:
    """Loss, logits and every gradient of epoch 0."""
    leaves = {name: value.double().clone().requires_grad_() for name, value in params.items()}
    loss, logits = _loss(definition, config, dataset, leaves, 0)
    if leaves:
        loss.backward()
    grads = {name: leaf.grad for name, leaf in leaves.items()}
    return {"loss": loss.item(), "logits": logits.detach(), "grads": grads}


def curve(definition: Definition, config: RunConfig, dataset: Dataset, params: Params) -> list[float]:
    """The loss of every epoch, trained by PyTorch's Adam with half a cosine as learning rate."""
    leaves = {name: value.double().clone().requires_grad_() for name, value in params.items()}
    optimizer = torch.optim.Adam(leaves.values(), lr=config.optim.lr)
    losses, steps = [], config.batches.steps
    for epoch in range(config.epochs):
        summed = 0.0
        for number in range(epoch * steps, (epoch + 1) * steps):
            for group in optimizer.param_groups:
                group["lr"] = config.optim.lr * (1 + math.cos(math.pi * number / (config.epochs * steps))) / 2
            optimizer.zero_grad()
            loss, _ = _loss(definition, config, dataset, leaves, number)
            loss.backward()
            optimizer.step()
            summed += loss.item() * int(step_targets(config, dataset, number).sum())
        losses.append(summed / int((np.asarray(dataset.split) == SPLITS["train"]).sum()))
    return losses
