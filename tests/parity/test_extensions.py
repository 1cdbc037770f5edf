"""A model, a reducer, a mode, a kernel, a partitioner and a dataset outside the package, in the parity tests.

Each is one file and one YAML in ``toys/``, which are copied to a folder of their own, as a user has them.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from sargnn.engine.modes import MODES
from sargnn.models import MODELS
from sargnn.resolve import resolve
from sargnn.sources import DATASETS
from tests.graphs import assign
from tests.in_process import sargnn_here
from tests.parity import cases
from tests.parity.cases import PAIRS
from tests.parity.checks import GRAPHS, check
from tests.parity.covering import spread
from tests.parity.oracle import Definition, Params, Place, Tensor

WORLDS = [1, 2, 4]
TOYS = Path(__file__).parent / "toys"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The toys, as files of somebody else."""
    target = tmp_path_factory.mktemp("outside") / "toys"
    return Path(shutil.copytree(TOYS, target, ignore=shutil.ignore_patterns("__pycache__")))


def isomorphism(place: Place, h: Tensor, params: Params) -> Tensor:
    return (h + place.matrix @ h) @ params["linear.weight"].T


def half_of_the_sum(place: Place, h: Tensor, params: Params) -> Tensor:
    return h @ params["self.weight"].T + (place.matrix @ h / 2) @ params["neigh.weight"].T


def toy_model(folder: Path) -> cases.Model:
    """With batch norm and dropouts, as the package's models are tested."""
    target = f"{folder}/toy_model.py:Toy"
    model: cases.Model = resolve("model", MODELS, "toy", target)(name="toy", target=target, **cases.MODEL_CASES["gcn"].settings)
    return model


@pytest.mark.parametrize(("mode", "kernel", "world", "mfg"), spread(PAIRS, WORLDS, [False, True]))
def test_a_model(folder: Path, mfg: bool, mode: str, kernel: str, world: int) -> None:
    check(toy_model(folder), "sage", Definition(isomorphism), mode=mode, kernel=kernel, world=world, mfg=mfg)


@pytest.mark.parametrize(("mode", "kernel", "world"), spread(PAIRS, WORLDS))
def test_a_reducer(folder: Path, mode: str, kernel: str, world: int) -> None:
    model = cases.model_config("sage", aggregator=f"{folder}/toy_reducer.py:Half")
    check(model, definition=Definition(half_of_the_sum), mode=mode, kernel=kernel, world=world)


@pytest.mark.parametrize(("name", "kernel", "world"), cases.spread_models(cases.CPU_KERNELS, WORLDS))
def test_a_mode(folder: Path, name: str, kernel: str, world: int) -> None:
    check(cases.model_config(name), mode=f"{folder}/toy_mode.py:Patient", kernel=kernel, world=world)


@pytest.mark.parametrize(("name", "mode", "world"), spread(["sage", "gcn"], list(MODES), WORLDS))
def test_a_kernel(folder: Path, name: str, mode: str, world: int) -> None:
    check(cases.model_config(name), mode=mode, kernel=f"{folder}/toy_kernel.py:Dense", world=world)


SHARDED = [mode for mode in MODES if mode != "domain_parallel"]
DENSE = ["sage", "max", "gat", "gatv2", "gcn", "rgcn"]


@pytest.mark.parametrize(("name", "mode", "world"), spread(DENSE, SHARDED, WORLDS))
def test_a_backend(folder: Path, name: str, mode: str, world: int) -> None:
    """Nothing compiled runs: edge operations, rows, folds and moves are all somebody else's."""
    model = cases.model_config("sage", aggregator="max") if name == "max" else cases.model_config(name)
    check(model, mode=mode, kernel=f"{folder}/toy_kernel.py:Dense", world=world)


@pytest.mark.parametrize(("name", "mode", "world"), cases.spread_models(list(MODES), [2, 4]))
def test_a_partitioner(folder: Path, name: str, mode: str, world: int) -> None:
    target = f"{folder}/toy_partitioner.py:in_turn"
    assert assign(GRAPHS["sage"], target, 3)[:4].tolist() == [0, 1, 2, 0]
    check(cases.model_config(name), mode=mode, partitioner=target, world=world)


@pytest.mark.parametrize(("name", "mode", "world"), spread(["sage", "gat", "gcn"], list(MODES), WORLDS))
def test_a_dataset(folder: Path, name: str, mode: str, world: int, monkeypatch: pytest.MonkeyPatch) -> None:
    target = f"{folder}/toy_dataset.py:Rings"
    settings = resolve("dataset", DATASETS, "toy", target)(name="toy", target=target, rings=4, length=30)
    monkeypatch.setitem(GRAPHS, f"rings of {name}", settings.read())
    check(cases.model_config(name), f"rings of {name}", mode=mode, partitioner="metis", world=world)


def test_one_command_trains_them_all(folder: Path) -> None:
    """And the same losses come from the package's own mode, kernel and partitioner in one process."""
    tiny = ["train", "model=toy", "dataset=toy", "epochs=4", "tracking=none", "precision=fp64"]
    losses = []
    for number, words in enumerate((["mode=toy", "kernel=toy", "partitioner=toy", "world=2"], ["world=1"])):
        run_dir = folder / f"run{number}"
        done = sargnn_here(folder, *tiny, *words, f"run_dir={run_dir}")
        assert done.returncode == 0, done.stderr
        summary = json.loads((run_dir / "summary.json").read_text())
        losses.append(summary["losses"])
        assert (summary["model"], summary["dataset"]) == ("toy", "toy")
    assert losses[0][-1] < losses[0][0]
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-8)
