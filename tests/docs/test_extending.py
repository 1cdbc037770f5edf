"""Every file on docs/EXTENDING.md is written into a folder, every command there is run; the losses are those of one worker."""

from __future__ import annotations

import dataclasses
import re
import shlex
from pathlib import Path

import numpy as np
import pytest
import torch

from sargnn.backends.block import EdgeBlock
from sargnn.cli.compose import compose_verb, sweep_points
from sargnn.comm.group import Group
from sargnn.config.run import RunConfig, parse
from sargnn.engine.aggregate import Engine, EngineSettings
from sargnn.graph.dataset import open_dataset
from sargnn.partition import PARTITIONERS
from sargnn.partition.cut import parts_of
from sargnn.report.bench.attention import whole_plan
from sargnn.resolve import resolve
from sargnn.sources.prepare import prepare_dataset
from sargnn.tracking.summary import read_summary
from sargnn.training.build import make_trainer
from tests.in_process import sargnn_here as run

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "EXTENDING.md").read_text()
FILES = dict(re.findall(r"`([\w/]+\.(?:py|yaml))`:\n\n```\w+\n(.*?)```", TEXT, flags=re.S))
COMMANDS = [shlex.split(line) for line in re.findall(r"^    sargnn (.+)$", TEXT, flags=re.M)]
SINGLE = [words[1:] for words in COMMANDS if words[0] == "train" and "-m" not in words]


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the files of the page, which is the working folder."""
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def losses_on_one_worker(words: list[str]) -> list[float]:
    """Of the run that a command line describes, in this process."""
    config = dataclasses.replace(parse(compose_verb("train", words)), world=1, threads=1)
    dataset = open_dataset(prepare_dataset(config.dataset, config.store_dir), verify=False)
    assignment = resolve("partitioner", PARTITIONERS, config.partitioner.choice)(dataset, 2, config.partitioner)
    assert assignment.dtype == np.int32 and set(assignment) == {0, 1}
    (part,) = parts_of(dataset, np.zeros(dataset.num_nodes, np.int32), 1)
    return make_trainer(config, part, dataset.num_classes, Group.single()).run().losses


def test_the_page_has_a_file_and_a_command_for_each_kind() -> None:
    kinds = {name.split("/")[1] for name in FILES if name.startswith("conf/")}
    assert kinds == {"model", "dataset", "mode", "kernel", "partitioner"}
    assert len(FILES) == TEXT.count("```") // 2 and len(SINGLE) == 13
    named = [word.partition("=")[2] for words in SINGLE for word in words]
    assert all(Path(name).stem in named for name in FILES if name.startswith("conf/"))


def test_the_modules_are_those_of_the_examples() -> None:
    examples = {name: text for name, text in FILES.items() if (ROOT / "examples" / "layers" / name).exists()}
    assert set(examples) == {"pyg_gcn.py", "pyg_flow.py", "gin.py", "edge_features.py", "written.py", "typed.py"}
    for name, text in examples.items():
        assert text == (ROOT / "examples" / "layers" / name).read_text()
    code = examples["gin.py"].split('"""')[2]
    assert len([line for line in code.splitlines() if line.strip()]) == 13


@pytest.mark.parametrize("words", SINGLE, ids=lambda words: " ".join(words[:2]))
def test_an_example_trains_in_every_mode_and_precision_alike(words: list[str], mine: Path) -> None:
    exact = [*words, "precision=fp64", "partitioner.order=original"]
    losses = losses_on_one_worker(exact)
    assert len(losses) == 2 and losses[0] != losses[1]
    np.testing.assert_allclose(losses_on_one_worker(words), losses, rtol=1e-5)
    if not any(word.startswith(("mode=", "kernel=")) for word in words):
        np.testing.assert_allclose(losses_on_one_worker([*exact, "mode=domain_parallel"]), losses, rtol=1e-8)


def test_all_of_them_together_on_two_workers(mine: Path) -> None:
    """The page's options of every kind in one command; its losses are those of one worker with the package's strategies."""
    model = ["model=sage_squares", "dataset=grid", "model.hidden=16", "epochs=2", "tracking=none", "precision=fp64"]
    done = run(mine, "train", *model, "mode=refetch", "kernel=scatter", "partitioner=by_degree", "world=2", "run_name=ours")
    assert done.returncode == 0, done.stderr
    summary = read_summary(mine / "runs" / "ours")
    assert summary is not None and summary.mode == "refetch" and summary.kernel == "scatter"
    np.testing.assert_allclose(summary.losses, losses_on_one_worker(model), rtol=1e-8)


@pytest.mark.parametrize("kernel", ["auto", "scatter.py:Scatter"])
def test_the_own_reducer_and_kernel_sum_bf16_rows_in_fp32(kernel: str, mine: Path) -> None:
    """A sum of a thousand ones, which in bf16 would stop at 256."""
    ends = torch.arange(1000, dtype=torch.int32), torch.zeros(1000, dtype=torch.int32)
    engine = Engine(Group.single(), EngineSettings(mode="sar", kernel=kernel, dtype=torch.bfloat16))
    reducer = resolve("reducer", {}, "mean_square.py:MeanSquare")()
    (out,) = engine.aggregate(whole_plan(EdgeBlock(*ends, 1000, 1000)), reducer, (torch.ones(1000, 16, dtype=torch.bfloat16),))
    assert out.dtype == torch.bfloat16 and torch.equal(out[0], torch.ones(16, dtype=torch.bfloat16))


def test_the_check_of_two_worlds_agrees(mine: Path) -> None:
    (words,) = [words for words in COMMANDS if words[0] == "check"]
    done = run(mine, *words)
    assert done.returncode == 0 and "All agree on 1 and on 2 workers" in done.stdout, done.stdout + done.stderr


def test_the_sweep_that_shows_exactness_can_be_started(mine: Path) -> None:
    (sweep,) = [words[2:] for words in COMMANDS if "-m" in words]
    points = sweep_points("train", sweep, multirun=True)
    assert points is not None and len(points) == 6
    assert all(isinstance(parse(compose_verb("train", point)), RunConfig) for point in points)
    (compare,) = [words for words in COMMANDS if words[0] == "compare"]
    assert "losses=equal" in compare
