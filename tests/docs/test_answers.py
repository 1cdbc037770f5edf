"""Words that people look for: each is found on the site and by ``sargnn help WORD``, with what there is or "not yet"."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sargnn.cli.conf import built_in_folder
from sargnn.cli.help import topics
from sargnn.errors import ConfigError
from tests.in_process import sargnn_here
from tests.processes import ROOT

PAGE = (ROOT / "docs" / "answers.md").read_text()
NOT_YET = (
    "onnx",
    "ONNX",
    "dynamic graphs",
    "optuna",
)
"""A change that makes one of these true changes its answer, too."""
THERE = {
    "export": "predictions",
    "wandb": "tracking=wandb",
    "new graphs": "dataset.root=FOLDER",
    "string ids": "dataset=tables",
    "link prediction": "task=links",
    "own metric": "metric=FILE.py:NAME",
    "class weights": "optim.class_weights=balanced",
    "early stopping": "early_stopping=",
    "profiling": "profile=true",
    "DistDGL": "sampled neighbours",
    "PyG's loaders": "sample.fanouts",
    "SAR's library": "GraphShardManager",
    "torch_geometric": "model.target=",
    "out of memory": "memory_budget=",
    "slurm": "torchrun",
    "GPU": "device=cuda",
    "cuda": "what is proven",
    "hetero": "HGTConv",
}


@pytest.mark.parametrize("word", NOT_YET)
def test_what_is_not_there_yet(word: str) -> None:
    assert "not yet" in topics([word], built_in_folder()).lower()


@pytest.mark.parametrize("word", THERE)
def test_what_is_there(word: str) -> None:
    text = topics(word.split(), built_in_folder())
    assert THERE[word].lower() in " ".join(text.split()).lower()
    assert max(map(len, text.splitlines())) <= 80
    assert word.lower() in PAGE.lower()  # where the site's search finds it


def test_settings_a_misspelt_word_and_nothing(tmp_path: Path) -> None:
    assert "model.dropout=0.5" in sargnn_here(tmp_path, "help", "dropout").stdout
    with pytest.raises(ConfigError, match="sargnn help link prediction"):
        topics(["link", "predicton"], built_in_folder())
    done = sargnn_here(tmp_path, "help", "zzz")
    assert done.returncode == 1 and done.stderr.splitlines()[0] == "sargnn: Nothing is known of this."


def test_every_page_that_an_answer_names_is_there() -> None:
    pages = re.findall(r"\]\(([^)#]+)\)", PAGE)
    assert len(pages) > 20
    missing = [page for page in pages if not (Path(ROOT) / "docs" / page).is_file() and not page.startswith("reference/")]
    assert not missing
