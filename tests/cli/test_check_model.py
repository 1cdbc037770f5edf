"""``sargnn check model=...`` as a person meets it: exit codes, lines, JSON, wrong input, nothing left behind."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import numpy as np
import pytest

from sargnn.graph.dataset import cut_surroundings, write_dataset
from sargnn.graph.schema import SPLITS
from sargnn.run import compare_worlds
from tests.graphs import nasty_graph, typed_graph
from tests.in_process import sargnn_here

NET = """import numpy as np
from torch import nn


class Net(nn.Module):
    def __init__(self, in_width, num_outputs, centred=True):
        super().__init__()
        self.linear, self.centred = nn.Linear(in_width, num_outputs), centred

    def forward(self, graph, x):
        if self.centred:
            x = x * np.random.rand()
        return self.linear(x)
"""
WORDS = ("check", "model=custom", "model.target=net.py:Net", "dataset.num_nodes=200", "tracking=none")


def test_a_module_that_is_not_exact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "net.py").write_text(NET)
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    monkeypatch.setattr(compare_worlds, "MOST_NODES", 150)
    done = sargnn_here(tmp_path, *WORDS)
    assert done.returncode == 1, done.stderr
    text = " ".join(done.stdout.split())
    assert "mul, forward step 1" in text, done.stdout
    assert "x = x * np.random.rand()" in text and "et.py line 12" in text, done.stdout
    assert "150 nodes, of 200" in text and "[150, 64] on 1 worker, [" in text
    assert "numbers of numpy" in text
    assert all(len(line.rstrip()) <= 80 for line in done.stdout.splitlines())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["net.py", "stores", "temporary"]
    assert not list((tmp_path / "temporary").glob("sargnn-check-*")) and not (tmp_path / "stores" / "partitions").exists()


def test_the_same_for_scripts(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(NET)
    done = sargnn_here(tmp_path, *WORDS, "json=true", "run_dir=kept", "world=9", "epochs=500")
    found = json.loads(done.stdout)
    assert done.returncode == 1 and not found["agrees"] and found["worlds"] == [1, 3] and found["largest_difference"] > 1e-3
    first = found["first"]
    assert (first["what"], first["line"], first["step"]) == ("mul", 12, 1) and first["difference"] > 1e-3
    assert first["file"] == str(tmp_path / "net.py") and "output" in first["differs_too"]
    assert (tmp_path / "kept" / "world_3" / "records_01.npz").is_file()
    assert sargnn_here(tmp_path, *WORDS, "run_dir=kept").returncode == 1


GIVEN = ["model=sage", "model.hidden=8", "partitioner=given", "partitioner.file=made_for_others.npy"]


@pytest.mark.parametrize("words", [["model.args.centred=false"], GIVEN], ids=["custom", "sage"])
def test_what_agrees(words: list[str], tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(NET)
    base = WORDS if len(words) == 1 else ("check", *WORDS[3:])
    done = sargnn_here(tmp_path, *base, *words)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "All agree on 1 and on 3 workers: " in done.stdout and "The largest difference is" in done.stdout


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (["check", "mode=sar"], "graph alone"),
        (["check", "debug=tiny"], "add the model: model=custom"),
        (["check", "model=custom"], "'model.target'"),
        (["check", "model=custom", "model.target=no.py:Net"], "no.py"),
        (["check", "model=sage", "dataset.num_nodes=200", "run_dir=."], "holds something"),
        (["check", "model=sage", "mode=sra"], "sar"),
    ],
)
def test_wrong_input(words: list[str], wanted: str, tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(NET)
    done = sargnn_here(tmp_path, *words)
    assert done.returncode == 1 and wanted in done.stderr and done.stderr.count("sargnn: ") == 1, done.stderr


@pytest.mark.parametrize("kind", ["plain", "typed"])
def test_the_part_of_a_large_graph(kind: str, tmp_path: Path) -> None:
    """Every edge between the nodes that are kept is there, once, with its relation; nodes keep their rows and types."""
    whole = nasty_graph(2000) if kind == "plain" else typed_graph()
    count = 500 if kind == "plain" else 220
    part = cut_surroundings(whole, count, seed=1)
    write_dataset(tmp_path / "part", part, made_by={})  # checks its form
    assert part.num_nodes == count and (part.split == SPLITS["train"]).sum() >= 10
    assert all(part.schema.count(t) > 0 for t in range(len(part.schema.node_types)))
    types, ends = part.schema.types_of(np.arange(count)), np.array([one[::2] for one in part.schema.relations])
    relation = np.zeros(part.num_edges, int) if part.relation is None else part.relation
    into = np.repeat(np.arange(count), np.diff(part.indptr))
    assert (types[part.indices] == ends[relation, 0]).all() and (types[into] == ends[relation, 1]).all()
    features = [{row.tobytes(): n for n, row in enumerate(table)} for table in whole.features if table.shape[1]]
    if kind == "plain":
        ids = np.array([features[0][row.tobytes()] for row in part.features[0]])
        assert (np.diff(ids) > 0).all() and (part.labels == whole.labels[ids]).all()
        place = np.full(whole.num_nodes, -1)
        place[ids] = np.arange(count)
        destination = np.repeat(np.arange(whole.num_nodes), np.diff(whole.indptr))
        kept = (place[whole.indices] >= 0) & (place[destination] >= 0)
        assert (place[whole.indices][kept] == part.indices).all() and (place[destination][kept] == into).all()
