"""An exported model gives the logits of ``sargnn predict`` within 1e-9 in fp64, in a process without sargnn."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sargnn.graph.dataset import Dataset, open_dataset
from sargnn.graph.edge_columns import ATTR, WEIGHT
from sargnn.models import MODELS
from sargnn.resolve import resolve
from sargnn.training.checkpoint import open_checkpoint
from tests.in_process import sargnn_here as run
from tests.parity.covering import only
from tests.processes import started_command
from tests.sources.own.given import save_arrays

pytest.importorskip("torch_geometric")
pytest.importorskip("safetensors")
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")

N = 90
LOADS = """
import importlib, sys
sys.modules["sargnn"] = None  # whoever imports it fails
import numpy as np, torch
for line in sys.stdin:
    folder = line.rstrip("\\n")
    given = dict(np.load(f"{folder}/given.npz"))
    edges = {name: torch.from_numpy(given[name]) for name in ("edge_weight", "edge_attr", "edge_type") if name in given}
    x = [torch.from_numpy(given[f"x{t}"]).double() for t in range(int(given["types"]))]
    x = [rows if rows.shape[1] else None for rows in x]
    sys.path[0] = f"{folder}/plain"
    sys.modules.pop("model", None)
    net = importlib.import_module("model").load()
    with torch.no_grad():
        logits = net(x if net.rows is not None else x[0], torch.from_numpy(given["edge_index"]), **edges)
    np.save(f"{folder}/logits.npy", logits.numpy())
    print("done", flush=True)
"""
TRAIN = ["train", "epochs=2", "tracking=none", "precision=fp64", "checkpoint.every=2", "threads=1"]
SPLIT = "dataset.split=[0.5,0.2,0.3]"
TUNED = ["model.residual=linear", "model.input_linear=true", "model.head=linear"]
HOMOGENEOUS = {
    "sage": ["model=sage"],
    "sage max": ["model=sage", "model.aggregator=max", "model.norm=layer", "model.residual=true"],
    "sage pool": ["model=sage", "model.aggregator=pool", "model.norm=none", "model.activation=elu"],
    "sage sum, average": ["model=sage", "model.aggregator=sum", "optim.average=0.9"],
    "gcn": ["model=gcn"],
    "gcn, loops": ["model=gcn", "dataset.add_self_loops=false"],
    "gat": ["model=gat", "model.heads=2", "model.negative_slope=0.1"],
    "gat, residual": ["model=gat", "model.heads=2", "model.out_heads=2", "model.linear_residual=true", "model.attn_dst=false"],
    "gatv2": ["model=gat", "model.v2=true", "model.heads=2", "model.norm=layer", "model.linear_residual=true"],
    "gin": ["model=gin", "model.learn_eps=true", "model.mlp_layers=3"],
    "sgc": ["model=sgc", "model.steps=3"],
    "appnp": ["model=appnp", "model.norm=batch", "model.steps=3", "model.alpha=0.2"],
    "gcnii": ["model=gcnii", "model.num_layers=3", "model.alpha=0.2", "model.theta=0.7"],
    "resgcn": ["model=resgcn", "model.num_layers=3", "model.norm=layer"],
    "resgcn sage": ["model=resgcn", "model.num_layers=2", "model.conv=sage"],
    "mlp": ["model=mlp"],
    "tuned": ["model=gcn", *TUNED, "model.jumping=cat", "model.norm=batch"],
    "tuned, pre": ["model=sage", "model.residual=true", "model.pre_norm=true", "model.norm=layer", "model.head=linear"],
    "tuned, max": ["model=gat", "model.heads=2", "model.residual=linear", "model.head=linear", "model.jumping=max"],
    "tuned, sum": ["model=gin", *TUNED, "model.jumping=sum", "model.eps=0.3"],
    "reversible": ["model=sage", "model.blocks=reversible", "model.num_layers=2", "model.norm=layer"],
}  # fmt: skip
WEIGHTED = {name: HOMOGENEOUS[name] for name in ("sage", "sage sum, average", "gcn", "gin", "sgc")}
FEATURED = {
    "gat": [*HOMOGENEOUS["gat"], "dataset.loop_features=mean"],
    "gatv2": [*HOMOGENEOUS["gatv2"], "dataset.loop_features=zeros"],
    "gin": HOMOGENEOUS["gin"],
}
TYPED = {
    "rgcn": ["model=rgcn", "model.bases=2"],
    "rgcn, full": ["model=rgcn", "model.bases=null", "model.norm=layer", "model.embedding=9"],
    "rgcn, batch": ["model=rgcn", "model.norm=batch", "model.residual=true"],
    "rgat": ["model=rgat", "model.heads=2", "model.norm=batch", "model.negative_slope=0.1"],
}
CASES: dict[str, tuple[list[str], tuple[str, ...]]] = {
    **{name: (words, ()) for name, words in HOMOGENEOUS.items()},
    **{f"{name}, weighted": (words, ("edge_weight",)) for name, words in WEIGHTED.items()},
    **{f"{name}, edge features": (words, ("edge_attr",)) for name, words in FEATURED.items()},
}
SAID_OTHERWISE = {
    *("name", "target", "hidden", "init", "order"),
    *("dropout", "input_dropout", "attn_dropout", "edge_dropout"),
    *("edge_features", "symmetric_norm"),
}
"""Settings without a case: widths and layers say them, predictions drop nothing, the graph has what they read, or refused."""
FEW = ("gcn", "sage sum, average, weighted", "gat, residual", "gatv2, edge features", "tuned, max")


def graph(folder: Path, *columns: str) -> str:
    """A directed graph with repeats and loops."""
    draw = np.random.default_rng(0)
    given: dict[str, Any] = {
        "edge_index": np.concatenate([draw.integers(0, N, (2, 500)), np.tile(np.arange(0, N, 9), (2, 1))], 1),
        "x": draw.normal(size=(N, 6)).astype(np.float32),
        "y": draw.integers(0, 3, N),
    }
    count = given["edge_index"].shape[1]
    given["edge_weight"], given["edge_attr"] = draw.random(count), draw.normal(size=(count, 4)).astype(np.float32)
    folder.mkdir()
    save_arrays(folder, {name: given[name] for name in ("edge_index", "x", "y", *columns)})
    return f"dataset.root={folder}"


def given_to_pyg(dataset: Dataset, file: Path) -> None:
    """The store's graph as PyG has it."""
    destination = np.repeat(np.arange(dataset.num_nodes), np.diff(dataset.indptr))
    arrays = {"edge_index": np.stack([np.asarray(dataset.indices, np.int64), destination])}
    arrays |= {f"x{t}": np.array(rows) for t, rows in enumerate(dataset.features)} | {"types": np.array(len(dataset.features))}
    for name, column in (("edge_weight", WEIGHT), ("edge_attr", ATTR)):
        arrays |= {name: np.array(dataset.columns[column])} if column in dataset.columns else {}
    arrays |= {"edge_type": np.zeros(len(destination), np.int64)} if dataset.relation is None else {}
    arrays |= {} if dataset.relation is None else {"edge_type": np.asarray(dataset.relation, np.int64)}
    np.savez(file, **arrays)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def plain() -> Iterator[Callable[[Path], None]]:
    """Writes the logits of what was exported in a folder; one process without sargnn does it for all tests."""
    with started_command([sys.executable, "-W", "ignore", "-c", LOADS], Path.cwd(), stdin=subprocess.PIPE) as process:

        def write_logits(folder: Path) -> None:
            assert process.stdin is not None and process.stdout is not None
            process.stdin.write(f"{folder}\n")
            process.stdin.flush()
            assert process.stdout.readline() == "done\n", process.communicate()[1]

        yield write_logits


def compare(folder: Path, words: list[str], dataset: list[str], plain: Callable[[Path], None]) -> None:
    for command in ([*TRAIN, *dataset, *words, "run_name=one", "world=1"], ["predict", "one"], ["export", "one", "out=plain"]):
        done = run(folder, *command)
        assert done.returncode == 0, done.stdout + done.stderr
    assert [Path(line).name for line in done.stdout.splitlines()] == ["model.py", "parameters.safetensors"]
    (store,) = (folder / "stores" / "datasets").iterdir()
    opened = open_dataset(store, verify=False)
    given_to_pyg(opened, folder / "given.npz")
    plain(folder)
    expected, logits = np.load(folder / "runs" / "one" / "predictions" / "logits.npy"), np.load(folder / "logits.npy")
    assert expected.dtype == np.float64
    labelled = int(opened.schema.types_of(np.argmax(np.asarray(opened.split) > 0, keepdims=True))[0])
    rows = slice(*opened.schema.offsets[labelled : labelled + 2])
    np.testing.assert_allclose(logits[rows], expected, rtol=1e-9, atol=1e-9 * np.abs(expected).max())
    done = run(folder, "import-model", "plain/parameters.safetensors", *dataset, *words, "precision=fp64", "out=back")
    if "model.out_heads=2" in words:  # a residual for each head, whose mean is what PyG has
        assert done.returncode == 1 and "residual.weight: it cannot be told" in done.stderr
        return
    assert done.returncode == 0, done.stderr
    back, there = open_checkpoint(folder / "back", verify=True), folder / "runs" / "one" / "checkpoints" / "epoch_000002"
    for name in back.files:  # the way back gives the checkpoint's numbers, or their averages where these are what is used
        kept = open_checkpoint(there, verify=True)
        average = name.replace("param/", "average/")
        assert np.array_equal(back.array(name), kept.array(average if average in kept.files else name)), name


def test_every_setting_of_a_model_has_a_case() -> None:
    """One that is not written down would make the file another model, without a word."""
    cases = [*HOMOGENEOUS.values(), *TYPED.values()]
    given = {word.partition("=")[0] for words in cases for word in words}
    for name in {words[0].partition("=")[2] for words in cases}:
        settings = {field.name for field in dataclasses.fields(resolve("model", MODELS, name))} - SAID_OTHERWISE
        assert not {f"model.{setting}" for setting in settings} - given, name


@pytest.mark.parametrize("name", only(FEW, CASES))
def test_logits(tmp_path: Path, plain: Callable[[Path], None], name: str) -> None:
    words, columns = CASES[name]
    small = [] if words[0] in ("model=sgc",) else ["model.hidden=8"]
    layers = ["model.num_layers=3"] if words[0] in ("model=sage", "model=gcn", "model=gat", "model=gin", "model=mlp") else []
    compare(tmp_path, [*layers, *small, *words], ["dataset=arrays", SPLIT, graph(tmp_path / "graph", *columns)], plain)


@pytest.mark.parametrize("name", only(["rgcn, full"], TYPED))
def test_logits_of_typed_graphs(tmp_path: Path, plain: Callable[[Path], None], name: str) -> None:
    """ogbn-mag's types, of which one has features and the others learned rows."""
    done = run(tmp_path, "prepare", "dataset=mag_like", "dataset.scale=0.001")
    assert done.returncode == 0, done.stderr
    store = Path(done.stdout.strip())
    small = ["dataset=stored", f"dataset.root={tmp_path / store}", "model.hidden=8", "model.num_layers=2", "world=2"]
    trains = [*TRAIN, *small, *TYPED[name], "run_name=one"]
    for command in (trains, ["predict", "one"], ["export", "one", "out=plain"]):
        done = run(tmp_path, *command)
        assert done.returncode == 0, done.stdout + done.stderr
    opened = open_dataset(tmp_path / store, verify=False)
    given_to_pyg(opened, tmp_path / "given.npz")
    plain(tmp_path)
    expected, logits = np.load(tmp_path / "runs" / "one" / "predictions" / "logits.npy"), np.load(tmp_path / "logits.npy")
    labelled = int(opened.schema.types_of(np.argmax(np.asarray(opened.split) > 0, keepdims=True))[0])
    rows = slice(*opened.schema.offsets[labelled : labelled + 2])
    np.testing.assert_allclose(logits[rows], expected, rtol=1e-9, atol=1e-9 * np.abs(expected).max())


def test_what_is_refused(tmp_path: Path) -> None:
    data = ["dataset=arrays", SPLIT, graph(tmp_path / "graph", "edge_weight")]
    cases = {
        "gat": (["model=gat", "model.heads=2"], "no place for.*edge weights"),
        "norm": (["model=gat", "model.heads=2", "model.symmetric_norm=true", "dataset.edge_weights=false"], "symmetric_norm"),
        "label_propagation": (["model=label_propagation"], "no parameters"),
    }
    for name, (words, message) in cases.items():
        done = run(tmp_path, *TRAIN, *data, *words, f"run_name={name}")
        assert done.returncode == 0, done.stderr
        done = run(tmp_path, "export", name)
        said = " ".join(done.stderr.split())
        assert done.returncode == 1 and "Traceback" not in said
        assert all(part in said for part in message.split(".*")), said
    assert run(tmp_path, "export", "nothing").returncode == 1


def test_another_file_stays(tmp_path: Path) -> None:
    done = run(tmp_path, *TRAIN, "dataset=arrays", SPLIT, graph(tmp_path / "graph"), "model=mlp", "run_name=one")
    assert done.returncode == 0, done.stderr
    (tmp_path / "model.py").write_text("mine")
    done = run(tmp_path, "export", "one", "out=.")
    assert done.returncode == 1 and "another file" in done.stderr and (tmp_path / "model.py").read_text() == "mine"
    for _ in range(2):  # an export is written anew
        assert run(tmp_path, "export", "one", "out=again").returncode == 0
