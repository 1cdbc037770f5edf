"""The notebooks of docs/tutorials run, and are kept with the outputs that the site shows."""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from scripts import notebooks

PATHS = notebooks.notebook_paths()
NEEDS = {
    "own-graph": ["torch_geometric"],
    "own-model": ["torch_geometric", "dgl"],
}
"""Packages beside those that run any notebook."""


def code_cells(path: Path) -> list[dict[str, Any]]:
    return [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]


def texts_of(outputs: list[dict[str, Any]]) -> Iterator[str]:
    """What the outputs say, without pictures."""
    for output in outputs:
        yield "".join(output.get("text", ""))
        for kind, content in output.get("data", {}).items():
            if kind.startswith("text/"):
                yield "".join(content)


@pytest.mark.long
@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_every_cell_runs(path: Path) -> None:
    for package in ("nbclient", "ipykernel", *NEEDS.get(path.stem, [])):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    stored = code_cells(path)
    executed = [cell for cell in notebooks.execute(path).cells if cell.cell_type == "code"]
    assert len(executed) == len(stored)
    for cell, before in zip(executed, stored, strict=True):
        kinds = [output.output_type for output in cell.outputs]
        assert kinds == [output["output_type"] for output in before["outputs"]], cell.source


def test_there_are_five_of_them() -> None:
    assert {path.stem for path in PATHS} == {"own-graph", "own-model", "larger-than-memory", "cluster", "accuracy"}


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_a_notebook_is_kept_with_clean_outputs(path: Path) -> None:
    text = path.read_text()
    cells = json.loads(text)["cells"]
    assert len(text) < notebooks.LARGEST_BYTES and 8 <= len(cells) <= 30
    assert json.loads(text)["metadata"] == notebooks.METADATA
    assert not any(cell["metadata"] for cell in cells), "such as the time at which a cell ran"
    code = code_cells(path)
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1)), "executed from top to bottom"
    outputs = [output for cell in code for output in cell["outputs"]]
    assert len(outputs) >= 2
    assert not [output for output in outputs if output["output_type"] == "error" or output.get("name") == "stderr"]
    for said in texts_of(outputs):
        assert not re.search(r"/(?:tmp|home|work|root)\b|\x1b|\r", said), said


def test_outputs_are_cleaned() -> None:
    folder = Path("/tmp/tutorial-x/work")
    said = f"\x1b[1mat\x1b[0m {folder}/runs/a, {notebooks.ROOT}/docs\r\nepoch 1\repoch 2  \nin {folder}s"
    assert notebooks.clean_text(said, folder) == f"at ~/tutorial/runs/a, ~/sargnn/docs\nepoch 2\nin {folder}s"


def test_a_cell_that_fails_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for package in ("nbclient", "ipykernel"):
        pytest.importorskip(package)
    cell: dict[str, Any] = {"cell_type": "code", "id": "a", "metadata": {}, "source": "!exit 3"}
    cell |= {"execution_count": None, "outputs": []}
    text = json.dumps({"cells": [cell], "metadata": notebooks.METADATA, "nbformat": 4, "nbformat_minor": 5})
    (tmp_path / "fails.ipynb").write_text(text)
    monkeypatch.setattr(notebooks, "FOLDER", tmp_path)
    assert notebooks.main(["--check", "fails"]) == 1
    assert "exit code 3" in capsys.readouterr().err
    assert (tmp_path / "fails.ipynb").read_text() == text
