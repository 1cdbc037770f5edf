"""Every file on the pages of own data, checks and Python is written into an empty folder, and every command there is run."""

from __future__ import annotations

import re
import shlex
import shutil
import sys
from pathlib import Path

import pytest

from sargnn.tracking.summary import read_summary
from tests.in_process import points_here, sargnn_here
from tests.parity.covering import only
from tests.processes import ROOT, run_command

OF_DATA = (
    "export",
    "own-arrays",
    "own-tables",
    "own-function",
    "edge-weights",
    "edge-features",
    "labels",
    "links",
    "knowledge-graphs",
    "queries",
)
OF_PYTHON = ("from-python", "own-loop")
SAME_GRAPH = ("sage-sar-w2-s0", "sage-sar-w2-s0-2", "sage-sar-w2-s0-3")
"""Runs of own-function.md, on a mapping, a DGLGraph and a Data."""


def files_of(text: str) -> dict[str, str]:
    return dict(re.findall(r"`(\w+\.(?:py|yaml))`:\n\n```(?:python|yaml)\n(.*?)```", text, flags=re.S))


def commands_of(text: str) -> list[str]:
    blocks = re.findall(r"^```bash\n(.*?)^```$", text, flags=re.S | re.M)
    return [line.split("  #")[0] for block in blocks for line in block.splitlines()]


def run_page(page: str, folder: Path) -> str:
    """Write the page's files into a folder and run its commands there, in order; what they print."""
    text = (ROOT / "docs" / "howto" / f"{page}.md").read_text()
    if "torch_geometric" in text:
        pytest.importorskip("torch_geometric")
    for name, content in files_of(text).items():
        (folder / name).write_text(content)
    shutil.copytree(ROOT / "examples", folder / "examples")
    assert text.count("```python\n") == sum(name.endswith(".py") for name in files_of(text)), "a block that is no file"
    printed = ""
    for command in commands_of(text):
        program, *words = shlex.split(command)
        if program == "sargnn":
            done = sargnn_here(folder, *words)
        else:
            module = {"python": [], "torchrun": ["-m", "torch.distributed.run"]}[program]
            done = run_command([sys.executable, *module, *words], folder, timeout_s=300)
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        printed += done.stdout
    return printed


@pytest.mark.parametrize("page", only(["own-arrays"], OF_DATA))
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_pages_of_own_data(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    swept = points_here(monkeypatch, tmp_path)
    printed = run_page(page, tmp_path)
    trained = len(list((tmp_path / "runs").glob("*/summary.json")))
    runs_of = {"own-function": 4, "edge-weights": 2, "labels": 2, "links": 3, "export": 2}
    assert "test " in printed and trained == runs_of.get(page, 1)
    assert len(swept) == (2 if page == "own-arrays" else 0)
    if page == "own-function":
        runs = [read_summary(tmp_path / "runs" / name) for name in SAME_GRAPH]
        assert all(run is not None for run in runs)
        graphs = {(run.dataset_hash, *run.losses) for run in runs if run is not None}
        assert len(graphs) == 1, "a mapping, a DGLGraph and a Data of one graph differ"


@pytest.mark.long
def test_the_page_that_checks_a_model(tmp_path: Path) -> None:
    printed = run_page("check-exactness", tmp_path)
    assert printed.count("All agree on 1 and on 3 workers") == 2 and len(list(tmp_path.glob("sweeps/*/*/summary.json"))) == 4


@pytest.mark.long
@pytest.mark.parametrize("page", ["predictions", "checkpoints", "own-partition"])
def test_pages_of_runs(page: str, tmp_path: Path) -> None:
    printed = run_page(page, tmp_path)
    assert printed.count("test accuracy") >= {"predictions": 1, "checkpoints": 5, "own-partition": 1}[page]


@pytest.mark.long
@pytest.mark.parametrize("page", OF_PYTHON)
def test_pages_of_python(page: str, tmp_path: Path) -> None:
    printed = run_page(page, tmp_path)
    if page == "own-loop":
        accuracies = re.findall(r"^test accuracy (0\.\d+)$", printed, flags=re.M)
        assert len(accuracies) == 2
        losses = re.findall(r"^epoch 10  loss (\d\.\d+)$", printed, flags=re.M)
        assert float(losses[0]) == pytest.approx(float(losses[1]), rel=1e-3)
    else:
        assert "test_metric" in printed and (tmp_path / "short.png").stat().st_size > 10_000
