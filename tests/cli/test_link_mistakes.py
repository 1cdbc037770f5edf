"""Mistakes with ``task=links`` and ``task=edges``: each is answered in one short message before anything is trained."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from sargnn.config.groups import EdgesConfig, LinksConfig
from sargnn.errors import ConfigError
from sargnn.graph.dataset import write_dataset
from sargnn.sources.links import draw_links
from sargnn.tasks.decoders import check_decoder, check_edge_decoder
from tests.cli.conftest import Sargnn
from tests.graphs import nasty_graph

SHARES = "dataset.link_split=[0.8,0.1,0.1]"
SMALL = ["train", "dataset.num_nodes=300", "world=1", "epochs=1", "tracking=none"]
MAG = ["dataset=mag_like", "dataset.scale=0.001", "model=rgcn", "world=1", "epochs=1"]
DECODERS = """
import torch
from torch import nn

class Sum(nn.Module):
    def __init__(self, width, relations):
        super().__init__()
        self.weight, self.of = nn.Parameter(torch.ones(width)), nn.Embedding(relations, width)

    def forward(self, heads, tails, relation):
        return (heads * tails * self.weight + self.of(relation)).sum(1)

class Rows(Sum):
    def forward(self, heads, tails, relation):
        return heads * tails

class Nothing(Sum):
    def forward(self, heads, tails, relation):
        return None

class Failing(Sum):
    def forward(self, heads, tails, relation):
        return heads @ tails

class Detached(Sum):
    def forward(self, heads, tails, relation):
        return super().forward(heads, tails, relation).detach()

class Centred(Sum):
    def forward(self, heads, tails, relation):
        scores = super().forward(heads, tails, relation)
        return scores - scores.mean()

class Dropped(Sum):
    def forward(self, heads, tails, relation):
        return nn.functional.dropout(super().forward(heads, tails, relation), 0.5)

class Unmade(nn.Module):
    def __init__(self, width, relations):
        raise ValueError("no such width")

class Narrow(nn.Module):
    def __init__(self, width):
        super().__init__()

class Plain:
    def __init__(self, width, relations):
        pass

def function(heads, tails, relation):
    return (heads * tails).sum(1)
"""

EDGE_DECODERS = """
import torch
from torch import nn

class Right(nn.Module):
    def __init__(self, width, relations, features, outputs):
        super().__init__()
        self.of, self.map = nn.Embedding(relations, width), nn.Linear(width + features, outputs)

    def forward(self, heads, tails, relation, features):
        return self.map(torch.cat([heads * tails + self.of(relation), features], 1))

class Scores(Right):
    def forward(self, *given):
        return super().forward(*given).sum(1)

class Three(Right):
    def forward(self, heads, tails, relation):
        return heads

class Narrow(nn.Module):
    def __init__(self, width, relations):
        super().__init__()

class Centred(Right):
    def forward(self, *given):
        numbers = super().forward(*given)
        return numbers - numbers.mean(0)

class Plain:
    def __init__(self, *sizes):
        pass
"""


def refuse(sargnn: Sargnn, words: list[str], expected: list[str]) -> None:
    """The command ends with one message that has these texts in it, and has begun no run."""
    done = sargnn(*words)
    assert done.returncode == 1, done.stdout + done.stderr
    lines = done.stderr.splitlines()
    message = lines[next(i for i, line in enumerate(lines) if line.startswith("sargnn: ")) :]
    assert "Traceback" not in done.stderr and 2 <= len(message) <= 5, done.stderr
    for text in expected:
        assert text in "\n".join(message), done.stderr


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("links.decoder=distmul", ["'links.decoder'", "'distmul'", "distmult, FILE.py:NAME"]),
        ("links.decoders=dot", ["no setting 'links.decoders'", "links.decoder"]),
        ("links.decoder=complex links.embedding_dim=7", ["'complex'", "of 7", "links.embedding_dim=F, an even"]),
        ("links.decoder=complex model.hidden=7", ["'complex'", "of 7", "links.embedding_dim=F, an even"]),
        ("links.embedding_dim=0", ["'links.embedding_dim'", "at least 1"]),
        ("links.mlp_hidden=8", ["Only the decoder 'mlp'", "links.decoder=dot links.mlp_hidden=8", "links.decoder=mlp"]),
        ("links.decoder=mlp links.mlp_hidden=0", ["'links.mlp_hidden'", "at least 1"]),
        ("links.negatives=-1", ["'links.negatives'", "at least 0"]),
        ("links.negatives=0", ["task=links links.negatives=0", "links.negatives=K"]),
        ("links.temperature=0", ["'links.temperature'", "more than 0"]),
        ("links.loss=margin links.margin=-1", ["'links.margin'", "more than 0"]),
        ("links.degree_power=-0.5", ["'links.degree_power'", "at least 0"]),
        ("links.loss=hinge", ["'links.loss'", "'hinge'", "bce, softmax, margin"]),
        ("links.corrupt=tails", ["'links.corrupt'", "'tails'", "tail, head, both, ends"]),
        ("links.rank=all", ["'links.rank'", "'all'", "both, tail, head"]),
        ("links.shared=true links.corrupt=both", ["share", "links.corrupt=both", "links.corrupt=tail, links.corrupt=head"]),
        ("links.shared=true links.strict=true", ["links.shared=true links.strict=true", "leave one"]),
        ("dataset.link_split=[0.8,0.2]", ["'dataset.link_split'", "[0.8, 0.2]", "three numbers", "[0.85,0.05,0.1]"]),
        ("dataset.link_split=[0.7,0.1,0.1,0.1]", ["'dataset.link_split'", "three numbers"]),
        ("dataset.link_split=[0.8,0.2,0.2]", ["'dataset.link_split'", "[0.8, 0.2, 0.2]", "at most 1"]),
        ("dataset.link_split=[0,0.5,0.5]", ["'dataset.link_split'", "[0.0, 0.5, 0.5]", "above 0"]),
        ("dataset.link_split=[0.8,-0.1,0.1]", ["'dataset.link_split[1]'", "-0.1", "at least 0"]),
        ("dataset.link_split=0.8", ["'dataset.link_split'", "0.8", "a list"]),
        ("dataset.link_seed=-1", ["'dataset.link_seed'", "at least 0"]),
        ("dataset.link_split=[1e-9,0.5,0.4]", ["for training", "dataset.link_split=[1e-09, 0.5, 0.4]"]),
        ("dataset.link_messages=false", ["as a message", "dataset.link_messages=true", "less than 1"]),
        ("dataset.link_relations=[writes]", ["no relation 'writes'", "['writes']", "allowed: edge"]),
        ("dataset.link_relations=[]", ["No relation", "dataset.link_relations=null"]),
        ("dataset.link_split=null", ["no pairs", "task=links", "dataset.link_split=[0.85,0.05,0.1]"]),
        ("dataset.link_split=null dataset.link_relations=[a]", ["No links are drawn", "dataset.link_split=[0.85,0.05,0.1]"]),
        ("metric=accuracy", ["'accuracy'", "links", "auc, ap, mrr"]),
        ("metric=hits@0", ["'metric'", "hits@0", "hits@K"]),
        ("labels=masked", ["Labels are of nodes", "task=links labels=masked", "labels=none"]),
        ("smooth=cs", ["Correct & Smooth", "task=links smooth=cs", "smooth=none"]),
        ("preload=shared world=2 servers=2", ["task=links preload=shared", "preload=none"]),
        ("mfg=true", ["all rows", "task=links mfg=true", "mfg=false"]),
        ("sample.fanouts=[3,3,3] eval=sampled", ["with all edges", "task=links eval=sampled", "eval=full"]),
        ("optim.label_smoothing=0.1", ["no classes", "optim.label_smoothing=0.1", "optim.label_smoothing=0.0"]),
        ("batches.count=auto", ["micro-batches", "batches.count=auto", "memory_budget=6GB", "batches.count=K"]),
        ("batches.steps=100000", ["training pairs", "batches.steps=100000", "1 to "]),
        ("early_stopping=3 dataset.link_split=[0.9,0,0.1]", ["needs validation pairs", "early_stopping=null"]),
        ("model=label_propagation", ["without parameters", "task=links model=label_propagation", "model=sage"]),
        ("task=nodes", ["to be predicted", "task=nodes dataset.link_split=[0.8, 0.1, 0.1]", "task=links"]),
        ("task=nodes dataset.link_split=null links.negatives=3", ["of links", "links.negatives=3", "task=links"]),
        ("task=nodes dataset.link_split=null metric=auc", ["'auc'", "classes", "accuracy"]),
        ("task=link", ["task", "links"]),
    ],
)  # fmt: skip
def test_settings(sargnn: Sargnn, tmp_path: Path, words: str, expected: list[str]) -> None:
    given = {word.partition("=")[0]: word for word in [*SMALL[1:], "task=links", SHARES, *words.split()]}
    refuse(sargnn, ["train", *given.values()], expected)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("relations", "expected"),
    [
        ("[writs]", ["no relation 'writs'", "['writs']", "writes"]),
        ("[cites,wrote]", ["no relation 'wrote'", "writes"]),
    ],
)
def test_relations(sargnn: Sargnn, relations: str, expected: list[str]) -> None:
    refuse(sargnn, ["train", *MAG, "task=links", SHARES, f"dataset.link_relations={relations}"], expected)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("Rows", ["score", "[5, 64] for 5 pairs", "a tensor [5]"]),
        ("Nothing", ["score", "NoneType for 5 pairs"]),
        ("Failing", ["failed: RuntimeError", "decoders.py line 23"]),
        ("Detached", ["failed: RuntimeError", "require grad"]),
        ("Centred", ["other pairs", "relation alone", "batch norm"]),
        ("Dropped", ["another time", "relation alone", "dropout"]),
        ("Unmade", ["cannot be made: ValueError: no such width", "decoders.py line 40"]),
        ("Narrow", ["cannot be made: TypeError", "decoders.py"]),
        ("Plain", ["names no module", "a torch.nn.Module, made with (width, relations)"]),
        ("function", ["names no module", "a torch.nn.Module, made with (width, relations)"]),
        ("Sun", ["names nothing in", "Sum"]),
    ],
)
def test_decoders_of_ones_own(sargnn: Sargnn, tmp_path: Path, name: str, expected: list[str]) -> None:
    (tmp_path / "decoders.py").write_text(DECODERS)
    words = ["task=links", SHARES, "model.hidden=64", f"links.decoder={tmp_path / 'decoders.py'}:{name}"]
    refuse(sargnn, [*SMALL, *words], expected)
    assert not (tmp_path / "runs").exists()


def test_a_decoder_of_ones_own_that_is_right(tmp_path: Path) -> None:
    (tmp_path / "decoders.py").write_text(DECODERS)
    check_decoder(LinksConfig(f"{tmp_path / 'decoders.py'}:Sum"), 8, 3, 0)


def test_a_store_with_pairs(sargnn: Sargnn, tmp_path: Path) -> None:
    drawn = dataclasses.replace(draw_links(nasty_graph(), [0.8, 0.1, 0.1]), name="mine")
    write_dataset(tmp_path / "store", drawn, made_by={})
    words = ["train", "dataset=stored", f"dataset.root={tmp_path / 'store'}", "task=links", "world=1", SHARES]
    refuse(sargnn, words, ["The pairs of 'mine' are given", "[0.8, 0.1, 0.1]", "leave dataset.link_split out"])


def test_prepare_checks_a_split(sargnn: Sargnn) -> None:
    refuse(
        sargnn,
        ["prepare", "dataset.num_nodes=300", "dataset.link_split=[0.8,0.3,0.1]"],
        ["'dataset.link_split'", "[0.8, 0.3, 0.1]"],
    )


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("edges.decoder=concatenate", ["'edges.decoder'", "'concatenate'", "concat, FILE.py:NAME"]),
        ("edges.decoders=concat", ["no setting 'edges.decoders'", "edges.decoder"]),
        ("edges.embedding_dim=0", ["'edges.embedding_dim'", "at least 1"]),
        ("edges.mlp_hidden=0", ["'edges.mlp_hidden'", "at least 1"]),
        ("edges.features=some", ["'edges.features'", "'some'"]),
        ("links.negatives=3", ["of links", "task=edges links.negatives=3", "task=links"]),
        ("task=nodes dataset.link_split=null edges.features=false", ["of edges", "edges.features=False", "task=edges"]),
        ("task=links edges.decoder=product", ["of edges", "links", "edges.decoder=product"]),
        ("dataset.link_split=null", ["labelled edges of 'mine'", "dataset.link_split=[0.6,0.2,0.2]"]),
        ("dataset.link_split=[0.6,0.2]", ["'dataset.link_split'", "three numbers"]),
        ("dataset.link_split=[1e-9,0.5,0.4]", ["None of the labelled edges of 'mine'", "7 edges"]),
        ("dataset.link_relations=[edge]", ["have labels", "dataset.link_relations=['edge']"]),
        ("dataset.link_messages=false", ["of 'mine'", "as a message", "dataset.link_messages=true"]),
        ("metric=auc", ["'auc'", "classes", "accuracy, rocauc"]),
        ("metric=rocauc", ["not two", "3 classes", "metric=accuracy"]),
        ("labels=masked", ["Labels are of nodes", "task=edges labels=masked", "labels=none"]),
        ("smooth=cs", ["Correct & Smooth", "task=edges smooth=cs", "smooth=none"]),
        ("preload=shared world=2 servers=2", ["task=edges preload=shared", "preload=none"]),
        ("mfg=true", ["all rows", "task=edges mfg=true", "mfg=false"]),
        ("sample.fanouts=[3,3,3] eval=sampled", ["with all edges", "task=edges eval=sampled", "eval=full"]),
        ("batches.count=auto", ["micro-batches", "batches.count=auto", "memory_budget=6GB"]),
        ("batches.steps=1000", ["training edges", "batches.steps=1000"]),
        ("early_stopping=3 dataset.link_split=[0.9,0,0.1]", ["needs validation edges", "early_stopping=null"]),
        ("model=label_propagation", ["without parameters", "task=edges model=label_propagation", "model=sage"]),
        ("dataset.task=regression optim.label_smoothing=0.1", ["Numbers", "optim.label_smoothing=0"]),
        ("dataset.task=multilabel", ["edge_y.npy", "neither 0 nor 1", "edge 0"]),
        ("task=nodes dataset.link_split=null", ["no training nodes", "labels of edges", "task=edges"]),
        ("task=links", ["labels of edges", "no links", "task=edges"]),
        ("task=edge", ["task", "edges"]),
    ],
)  # fmt: skip
def test_settings_of_edges(sargnn: Sargnn, tmp_path: Path, words: str, expected: list[str]) -> None:
    (tmp_path / "mine").mkdir()
    np.save(tmp_path / "mine" / "edge_index.npy", [[0, 1, 2, 3, 4, 5, 0], [1, 2, 3, 4, 5, 0, 3]])
    np.save(tmp_path / "mine" / "edge_y.npy", [2, 0, 1, 0, 2, 1, 0])
    graph = ["dataset=arrays", "dataset.root=mine", "dataset.link_split=[0.7,0.2,0.1]", "task=edges"]
    given = {word.partition("=")[0]: word for word in [*SMALL[2:], *graph, *words.split()]}
    refuse(sargnn, ["train", *given.values()], expected)
    assert not (tmp_path / "runs").exists()


def test_edges_of_a_graph_without_labels(sargnn: Sargnn) -> None:
    refuse(sargnn, [*SMALL, "task=edges"], ["have no labels", "task=edges", "edge_y"])


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("Right", None),
        ("Scores", "numbers"),
        ("Three", "failed: TypeError"),
        ("Narrow", "cannot be made: TypeError"),
        ("Centred", "beside other pairs"),
        ("Plain", "names no module"),
    ],
)
def test_decoders_of_edges_of_ones_own(tmp_path: Path, name: str, expected: str | None) -> None:
    (tmp_path / "decoders.py").write_text(EDGE_DECODERS)
    config = EdgesConfig(f"{tmp_path / 'decoders.py'}:{name}")
    if expected is None:
        check_edge_decoder(config, 8, 3, 2, 4, 0)
        return
    with pytest.raises(ConfigError, match=expected):
        check_edge_decoder(config, 8, 3, 2, 4, 0)
