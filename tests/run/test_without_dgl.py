"""An environment without DGL: commands in a process from which DGL is hidden (``SARGNN_HIDE_DGL``)."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from sargnn.errors import ConfigError
from sargnn.interop.dgl import HIDE, DglMissingError, import_dgl, is_installed
from sargnn.report.bench.entries import STOCK, Case, reasons_without_stock
from sargnn.report.bench.table import Found, markdown, show
from tests.configs import config
from tests.graphs import nasty_graph
from tests.processes import ROOT, run_command
from tests.sources.dgl_files import write_parts

PROGRAM = """
import contextlib, io, json, sys
from benchmarks.command import call
from benchmarks.kernels import VERB
from sargnn.cli.main import main

answers = []
for words in json.loads(sys.argv[1]):
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(out):
        code = call(VERB, words[1:]) if words[0] == VERB.name else main(words)
    answers.append([code, out.getvalue()])
print(json.dumps(answers))
"""
DGLS = """from dgl.nn import GraphConv
"""
LATE = """import torch
class Net(torch.nn.Module):
    def __init__(self, in_width, num_outputs):
        super().__init__()
        import dgl.function
    def forward(self, graph, x):
        return x
def graph():
    from dgl import rand_graph
"""
SMALL = ["dataset.num_nodes=300", "world=2", "epochs=2", "tracking=none", "precision=fp64"]
TYPED = [word for word in SMALL if "num_nodes" not in word] + ["dataset=mag_like", "dataset.scale=0.001", "model.hidden=8"]
WRITTEN = f"model.target={ROOT}/examples/layers/written.py:Net"
TRAINED = {
    "sage": ["model=sage", "model.hidden=8", *SMALL],
    "gat": ["model=gat", "model.hidden=8", "model.heads=2", *SMALL],
    "rgcn": ["model=rgcn", *TYPED],
    "custom": ["model=custom", WRITTEN, *SMALL],
}
OTHERS = {"sage": "one_shot"}
RUNS = [*((name, "domain_parallel") for name in TRAINED), *OTHERS.items()]
COMMANDS: dict[str, list[str]] = {
    **{f"{name} {mode}": ["train", *TRAINED[name], f"mode={mode}", f"run_dir={name}-{mode}"] for name, mode in RUNS},
    "compare": ["compare", "sage-domain_parallel", "sage-one_shot"],
    "kernel": ["train", *SMALL, "kernel=dgl", "mode=domain_parallel"],
    "layers": ["train", *SMALL, "model=custom", "model.target=dgls.py:GraphConv"],
    "module": ["train", *SMALL, "model=custom", "model.target=dgl.nn:GraphConv"],
    "constructor": ["train", *SMALL, "model=custom", "model.target=late.py:Net"],
    "graph": ["train", "dataset=python", "dataset.target=late.py:graph", "world=2"],
    "files": ["import-dgl", "parts/mine.json"],
    "info": ["info"],
    "kernels": "benchmarks.kernels dataset.scale=0.001 widths=[8] heads=[2] head_width=4 repeats=1 threads=1".split(),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("without_dgl")


@pytest.fixture(scope="module")
def answers(folder: Path) -> dict[str, tuple[int, str]]:
    """Of each command the exit code and what it printed."""
    (folder / "dgls.py").write_text(DGLS)
    (folder / "late.py").write_text(LATE)
    write_parts(folder / "parts", nasty_graph(), 2)
    command = [sys.executable, "-c", PROGRAM, json.dumps(list(COMMANDS.values()))]
    environment = {**os.environ, HIDE: "1", "COLUMNS": "80", "PYTHONPATH": str(ROOT)}
    done = run_command(command, folder, environment=environment)
    assert done.returncode == 0, done.stderr
    return dict(zip(COMMANDS, json.loads(done.stdout), strict=True))


def summary(folder: Path, name: str, mode: str) -> dict[str, Any]:
    read: dict[str, Any] = json.loads((folder / f"{name}-{mode}" / "summary.json").read_text())
    return read


@pytest.mark.parametrize("name", TRAINED)
def test_the_baseline_runs_pytorchs_operators_and_says_so(name: str, folder: Path, answers: dict[str, tuple[int, str]]) -> None:
    code, text = answers[f"{name} domain_parallel"]
    line = "the baseline runs PyTorch's operators (kernel=reference): DGL is not installed (2.1.0 is for Python 3.10 to 3.12"
    assert code == 0 and line in text, text
    assert line in (folder / f"{name}-domain_parallel" / "logs" / "rank_00.log").read_text()
    baseline = summary(folder, name, "domain_parallel")
    assert baseline["kernel"] == "reference" and baseline["versions"]["dgl"] == "not installed"
    if name in OTHERS:
        code, text = answers[f"{name} {OTHERS[name]}"]
        ours = summary(folder, name, OTHERS[name])
        assert code == 0 and "DGL" not in text and ours["kernel"] == "fused", text
        assert ours["losses"] == pytest.approx(baseline["losses"], rel=1e-9)


def test_compare_tells_what_ran(answers: dict[str, tuple[int, str]]) -> None:
    code, text = answers["compare"]
    assert code == 0 and "reference" in text and "fused" in text, text


@pytest.mark.parametrize(
    ("command", "parts"),
    [
        ("kernel", ["No kernel can serve", "dgl: DGL is not installed", "allowed: auto, reference"]),
        ("layers", ["import dgl in", "dgls.py line 1", "without it: "]),
        ("module", ["dgl.nn", "without it: "]),
        ("constructor", ["import dgl in", "late.py line 5", "without it: "]),
        ("graph", ["import dgl in", "late.py line 9", "without it: "]),
        ("files", ["part0/graph.dgl", "dataset=stored reads those without DGL"]),
    ],
)
def test_what_needs_dgl_is_one_message(command: str, parts: list[str], answers: dict[str, tuple[int, str]]) -> None:
    code, text = answers[command]
    assert code == 1 and "Traceback" not in text, text
    for part in ["DGL is not installed (2.1.0 is for Python 3.10 to 3.12 on Linux; this is Python 3.", *parts]:
        assert part in text, text


def test_what_is_installed_is_said(answers: dict[str, tuple[int, str]]) -> None:
    code, text = answers["info"]
    assert code == 0 and "dgl not installed" in text and "DGL is not installed" in text.replace("\n", " "), text
    code, text = answers["kernels"]
    assert code == 0 and "stock: PyTorch's operators (kernel=reference); DGL is not installed" in text, text


def test_a_table_says_why_it_has_no_stock_row(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    case = Case("sage", config("model=sage"))
    assert is_installed() and not any("installed" in reason for reason in reasons_without_stock(case))
    monkeypatch.setenv(HIDE, "1")
    assert not is_installed()
    (reason,) = reasons_without_stock(case)
    assert reason.startswith("DGL is not installed")
    found = Found(case, {"mine": [{"times_s": [1.0], "peak_train_bytes": [10]}]}, {STOCK: "not installed"})
    table = markdown([found])
    assert table[-1].startswith("| sage | stock DGL: not installed | - |") and len({line.count("|") for line in table}) == 1
    show([found])
    assert "stock DGL: not" in capsys.readouterr().out
    with pytest.raises(DglMissingError, match="kernel=auto") as caught:
        import_dgl()
    assert isinstance(caught.value, ConfigError) and isinstance(caught.value, ImportError) and caught.value.name == "dgl"
