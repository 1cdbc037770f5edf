"""``sargnn predict`` and ``sargnn evaluate`` of ``task=links`` and ``task=edges``, on several numbers of workers."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.in_process import sargnn_here as run

SMALL = ["model=sage", "model.num_layers=2", "model.hidden=8", "model.dropout=0", "epochs=4", "eval_every=2", "tracking=none"]
NODES, EDGES = 60, 400


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Graphs ``linked`` and ``labelled``, pairs to ask for, and a run of each task on two workers."""
    path, rng = tmp_path_factory.mktemp("pairs"), np.random.default_rng(0)
    ends = rng.integers(0, NODES, (2, EDGES))
    for name in ("linked", "labelled"):
        (path / name).mkdir()
        np.save(path / name / "edge_index.npy", ends)
        np.save(path / name / "x.npy", rng.normal(size=(NODES, 4)))
    np.save(path / "labelled" / "edge_y.npy", rng.integers(-1, 3, EDGES))
    np.save(path / "labelled" / "edge_attr.npy", rng.normal(size=(EDGES, 2)))
    np.save(path / "ask.npy", rng.integers(0, NODES, (7, 2)))
    for graph, task, more in (
        ("linked", "links", []),
        ("labelled", "edges", []),
        ("labelled", "edges", ["edges.features=false"]),
    ):
        called = "bare" if more else task
        words = ["dataset=arrays", f"dataset.root={graph}", "dataset.link_split=[0.6,0.2,0.2]", f"task={task}", "world=2"]
        done = run(path, "train", *words, *SMALL, *more, f"run_dir={called}")
        assert done.returncode == 0, done.stderr
    return path


def predicted(folder: Path, of: str, world: int, *words: str) -> Path:
    done = run(folder, "predict", f"run={of}", f"world={world}", f"out={of}_{world}", "partitioner=random", *words)
    assert done.returncode == 0, done.stderr
    assert [Path(line).name for line in done.stdout.splitlines()] == sorted(
        (path.name for path in (folder / f"{of}_{world}").glob("*.npy")), key=done.stdout.index
    )
    return folder / f"{of}_{world}"


def test_links(folder: Path) -> None:
    """Scores are products of embeddings over the temperature; partners are the best without known links and loops."""
    ask, ends = np.load(folder / "ask.npy"), np.load(folder / "linked" / "edge_index.npy")
    known = np.eye(NODES, dtype=bool)
    known[ends[0], ends[1]] = True
    for world in (1, 3):
        where = predicted(folder, "links", world, "pairs=ask.npy", "top=3")
        rows = np.load(where / "embeddings.npy")
        scores, asked = rows @ rows.T, np.load(where / "pair_scores.npy")
        scores *= np.linalg.norm(asked) / np.linalg.norm(scores[ask[:, 0], ask[:, 1]])
        np.testing.assert_allclose(asked, scores[ask[:, 0], ask[:, 1]], rtol=1e-4, atol=1e-5)
        wanted = np.sort(np.where(known, -np.inf, scores), 1)[:, :-4:-1]
        np.testing.assert_allclose(np.load(where / "partner_scores.npy"), wanted, rtol=1e-4, atol=1e-5)
        partners = np.load(where / "partners.npy")
        assert not known[np.arange(NODES)[:, None], partners].any()
        done = run(folder, "evaluate", "run=links", f"predictions={where}")
        assert done.returncode == 0 and "pairs" in done.stdout, done.stderr
        content = json.loads((where / "evaluation.json").read_text())
        summary = json.loads((folder / "links" / "summary.json").read_text())
        for split in ("valid", "test"):
            assert content["metrics"][split] == pytest.approx(summary["metrics"][split], abs=1e-6)
        assert content["scores"]["predictions"]["test"] == content["metrics"]["test"]["auc"] and content["pairs"]["test"] > 0


def test_edges(folder: Path) -> None:
    """All edges in the order in which they were given, also those without a label; evaluate finds what training measured."""
    for world in (1, 3):
        where = predicted(folder, "edges", world, "embeddings=true")
        logits, labels = np.load(where / "logits.npy"), np.load(folder / "labelled" / "edge_y.npy")
        assert logits.shape == (EDGES, 3) and np.load(where / "embeddings.npy").shape == (NODES, 8)
        assert np.load(where / "predictions.npy").tolist() == logits.argmax(1).tolist()
        done = run(folder, "evaluate", "run=edges", f"predictions={where}")
        assert done.returncode == 0, done.stderr
        content = json.loads((where / "evaluation.json").read_text())
        summary = json.loads((folder / "edges" / "summary.json").read_text())
        assert content["scores"]["predictions"]["test"] == pytest.approx(summary["test_metric"], abs=1e-9)
        assert sum(content["edges"].values()) == (labels >= 0).sum()
    first, second = (np.load(folder / f"edges_{world}" / "logits.npy") for world in (1, 3))
    np.testing.assert_allclose(first, second, rtol=1e-4, atol=1e-5)


def test_pairs_that_are_told_by_their_ends_alone(folder: Path) -> None:
    ends = np.load(folder / "labelled" / "edge_index.npy")
    np.save(folder / "all.npy", ends)
    where = predicted(folder, "bare", 2, "pairs=all.npy")
    np.testing.assert_allclose(np.load(where / "pair_scores.npy"), np.load(where / "logits.npy"), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["predict", "run=edges", "top=3"], ["partners", "allowed: task=links"]),
        (["predict", "run=edges", "pairs=ask.npy"], ["own features", "edges.features=false"]),
        (["predict", "run=bare", "pairs=x.npy"], ["x.npy", "cannot be read"]),
        (["predict", "run=links", "pairs=far.npy"], ["far.npy", "given:   99", "0 to 59"]),
        (["evaluate", "run=links", "predictions=links_2"], ["There are no predictions"]),
    ],
)
def test_what_is_refused(folder: Path, words: list[str], expected: list[str]) -> None:
    np.save(folder / "far.npy", [[0, 1], [2, 99]])
    done = run(folder, *words)
    assert done.returncode == 1
    for text in expected:
        assert text in done.stderr, done.stderr


def test_edges_of_a_typed_graph(tmp_path: Path) -> None:
    """Planned, trained, predicted and evaluated by a metric of two classes, with weights."""
    rng = np.random.default_rng(0)
    for name, array in (
        ("edge_index/user___rates___item", rng.integers(0, 20, (2, 150))),
        ("edge_y/user___rates___item", rng.integers(0, 2, 150)),
        ("x/user", rng.normal(size=(20, 3))),
        ("x/item", rng.normal(size=(20, 3))),
    ):
        (tmp_path / "typed" / name).parent.mkdir(parents=True, exist_ok=True)
        np.save(tmp_path / "typed" / f"{name}.npy", array)
    words = ["dataset=arrays", "dataset.root=typed", "dataset.add_inverse_edges=true", "dataset.link_split=[0.6,0.2,0.2]"]
    words += ["task=edges", "metric=rocauc", "optim.class_weights=[1,3]", "model=rgcn", "model.hidden=8", "model.num_layers=2"]
    done = run(tmp_path, "plan", *words, "worlds=2")
    assert done.returncode == 0, done.stderr
    done = run(tmp_path, "train", *words, "world=2", "epochs=3", "tracking=none", "run_dir=typed_run")
    assert done.returncode == 0, done.stderr
    assert run(tmp_path, "predict", "run=typed_run").returncode == 0
    done = run(tmp_path, "evaluate", "run=typed_run")
    assert done.returncode == 0 and "edges" in done.stdout, done.stderr
