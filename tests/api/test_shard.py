"""A shard of a graph on one process is the graph: plain sums over its edges say what must come out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import sargnn
from sargnn.errors import ConfigError
from tests.graphs import nasty_graph, typed_graph, with_weights
from tests.sources.own.given import arrays_of, typed_arrays_of


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_sums_and_their_gradients(here: Path) -> None:
    arrays = arrays_of(nasty_graph())
    part = sargnn.shard(arrays, precision="fp64")
    source, destination = arrays["edge_index"]
    dense = torch.zeros(len(part.ids), len(part.ids), dtype=torch.float64)
    dense.index_put_((torch.from_numpy(destination), torch.from_numpy(source)), torch.ones(()).double(), accumulate=True)
    dense = dense[part.ids][:, part.ids]
    degree = dense.sum(1, keepdim=True).clamp(min=1)
    x = torch.from_numpy(np.random.default_rng(0).normal(size=(len(part.ids), 3))).requires_grad_()
    weight = torch.from_numpy(np.random.default_rng(1).normal(size=(len(part.ids), 3)))
    for found, wanted in ((part.sum(x), dense @ x), (part.mean(x), dense @ x / degree)):
        assert torch.allclose(found, wanted, rtol=0, atol=1e-12)
        grads = [torch.autograd.grad((out * weight).sum(), x)[0] for out in (found, wanted)]
        assert torch.allclose(grads[0], grads[1], rtol=0, atol=1e-12)
    near = [x[row.nonzero()[:, 0]] for row in dense]
    largest = torch.stack([rows.amax(0) if len(rows) else torch.zeros(3).double() for rows in near])
    assert torch.equal(part.max(x), largest)
    assert torch.equal(part.features, torch.from_numpy(arrays["x"]).double()[part.ids])
    assert torch.equal(part.train_mask, torch.from_numpy(arrays["train_mask"])[part.ids]) and part.total(torch.ones(())) == 1.0


def test_edge_weights(here: Path) -> None:
    graph = with_weights(nasty_graph())
    arrays = arrays_of(graph)
    part = sargnn.shard(arrays, precision="fp64")
    source, destination = (torch.from_numpy(ends) for ends in arrays["edge_index"])
    dense = torch.zeros(len(part.ids), len(part.ids), dtype=torch.float64)
    dense.index_put_((destination, source), torch.from_numpy(arrays["edge_weight"]).double(), accumulate=True)
    dense = dense[part.ids][:, part.ids]
    total = dense.sum(1, keepdim=True)
    x = torch.from_numpy(np.random.default_rng(0).normal(size=(len(part.ids), 3)))
    mean = torch.where(total == 0, 0.0, dense @ x / torch.where(total == 0, 1.0, total))
    for found, wanted in ((part.sum(x, weighted=True), dense @ x), (part.mean(x, weighted=True), mean)):
        assert torch.allclose(found, wanted, rtol=0, atol=1e-12)
    assert not torch.allclose(part.sum(x), dense @ x)
    with pytest.raises(ConfigError, match="'sage' .*edge weights"):
        part.build_model("model=sage", "model.aggregator=max")
    without = sargnn.shard(arrays, None, "dataset.edge_weights=false", precision="fp64")
    assert torch.equal(without.sum(x, weighted=True), part.sum(x)) and not without.plan.weighted
    negative = sargnn.shard(arrays | {"edge_weight": arrays["edge_weight"] - 1})
    with pytest.raises(ConfigError, match="some are negative"):
        negative.mean(x.float(), weighted=True)
    with pytest.raises(ConfigError, match="'gcn' divides by sums"):
        negative.build_model("model=gcn")


def test_dropout_goes_by_node_number(here: Path) -> None:
    part = sargnn.shard(arrays_of(nasty_graph()), seed=3)
    x = torch.ones(len(part.ids), 8)
    first, second = part.dropout(x, 0.5, layer=1), part.dropout(x, 0.5, layer=2)
    part.engine.epoch = 1
    third = part.dropout(x, 0.5, layer=1)
    assert set(first.unique().tolist()) == {0.0, 2.0} and not torch.equal(first, second) and not torch.equal(first, third)
    other = sargnn.shard(arrays_of(nasty_graph()), None, "partitioner=random", seed=3, store_dir="others")
    by_node = [rows[ids.argsort()] for rows, ids in ((first, part.ids), (other.dropout(x, 0.5, layer=1), other.ids))]
    assert torch.equal(by_node[0], by_node[1])


def test_a_model_of_the_package_learns(here: Path) -> None:
    """Typed, with learnable rows for types without features; of which the isolated ones get none."""
    part = sargnn.shard(typed_arrays_of(typed_graph()), None, "model=rgcn")
    model = part.build_model("model=rgcn", "model.hidden=8", "model.num_layers=2", "model.dropout=0")
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    rows = part.train_mask[model.rows]
    losses = []
    for _ in range(15):
        loss = torch.nn.functional.cross_entropy(model()[rows], part.labels[model.rows][rows])
        optimizer.zero_grad()
        loss.backward()
        part.sum_gradients(model.parameters())
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]
    learned = [parameter.grad for parameter in model.sharded if parameter.grad is not None]
    assert len(learned) == 3 and any(bool(grad.any()) for grad in learned)
    with pytest.raises(ConfigError, match="build_model"):
        part.mean(torch.ones(len(part.ids), 2))


def test_attention_that_keeps_its_scores(here: Path) -> None:
    """Chosen before the model is known; the same gradients."""
    grads = []
    for keep in ("rows", "all"):
        part = sargnn.shard("dataset=synthetic", None, "dataset.num_nodes=300", "mode=no_remat", f"mode.keep={keep}")
        assert part.engine.mode.keeps_scores == (keep == "all")
        model = part.build_model("model=gat", "model.hidden=8", "model.num_layers=2")
        model().square().sum().backward()
        grads.append([one.grad for one in model.parameters()])
    assert all(one is not None and torch.equal(one, other) for one, other in zip(*grads, strict=True))


def test_what_is_refused(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    part = sargnn.shard("dataset=synthetic", None, "dataset.num_nodes=300")
    with pytest.raises(ConfigError, match="this rank"):
        part.mean(torch.ones(3, 2))
    with pytest.raises(ConfigError, match="sends rows"):
        sargnn.shard("dataset=synthetic", None, "dataset.num_nodes=300", "comm.aggregate=least")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="init_process_group"):
        sargnn.shard("synthetic")
