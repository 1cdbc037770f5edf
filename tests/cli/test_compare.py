"""``sargnn compare``: means over seeds, and equality of losses."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import pytest

from sargnn.cli.compare import _label, read_runs
from sargnn.cli.compare_curves import over_seeds
from sargnn.errors import ConfigError
from sargnn.tracking.curves import deviation, mean_and_deviation
from tests.in_process import sargnn_here as run

TINY = ["debug=tiny", "tracking=none"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two seeds, and one of them in another mode on another world."""
    folder = tmp_path_factory.mktemp("runs")
    for words in (["seed=0"], ["seed=1"], ["seed=0", "mode=one_shot", "world=1"]):
        done = run(folder, "train", *TINY, *words)
        assert done.returncode == 0, done.stderr
    return folder


def changed(folder: Path, name: str, key: str, value: Any) -> None:
    path = folder / "runs" / name / "summary.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {key: value}))


def test_means_over_seeds(runs: Path, tmp_path: Path) -> None:
    folders = sorted((runs / "runs").iterdir())
    summaries = {path.name: json.loads((path / "summary.json").read_text()) for path in folders}
    rows = over_seeds(read_runs(folders))
    assert sorted(row["seeds"] for row in rows) == [[0], [0, 1]]
    (both,) = (row for row in rows if len(row["seeds"]) == 2)
    pair = [one for name, one in summaries.items() if "one_shot" not in name]
    assert both["test_acc"] == (mean(o["test_acc"] for o in pair), stdev(o["test_acc"] for o in pair))
    assert both["last_loss"] == (mean(o["losses"][-1] for o in pair), stdev(o["losses"][-1] for o in pair))
    assert both["test_acc_smoothed"] is None and "-s0" not in both["name"]
    done = run(runs, "compare", "seeds=true", f"out={tmp_path}")
    assert done.returncode == 0 and "over seeds" in done.stdout and f"{both['last_loss'][0]:.4f}" in done.stdout
    assert max(len(line) for line in done.stdout.splitlines()) <= 80


def test_the_same_seed_twice_is_no_mean(runs: Path, tmp_path: Path) -> None:
    first = sorted((runs / "runs").iterdir())[0]
    for name in ("a", "b"):
        shutil.copytree(first, tmp_path / name)
    with pytest.raises(ConfigError, match="same seed"):
        over_seeds(read_runs([tmp_path / "a", tmp_path / "b"]))


def test_equal_losses(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "runs", tmp_path / "runs")
    names = {("one_shot" in path.name, path.name[-1]): path.name for path in (tmp_path / "runs").iterdir()}
    first, other, seed = (names[key] for key in ((False, "0"), (True, "0"), (False, "1")))
    both = [f"runs/{first}", f"runs/{other}", "losses=equal"]
    done = run(tmp_path, "compare", *both)
    assert done.returncode == 0 and "within 1e-04" in done.stderr and ": equal" in done.stderr, done.stderr
    losses = json.loads((tmp_path / "runs" / other / "summary.json").read_text())["losses"]
    changed(tmp_path, other, "losses", [*losses[:-1], losses[-1] + 3e-4 * losses[0]])
    done = run(tmp_path, "compare", *both)
    assert done.returncode == 1 and "BEYOND" in done.stderr and f"epoch {len(losses)}" in done.stderr, done.stderr
    shutil.copytree(tmp_path / "runs" / first, tmp_path / "again")
    done = run(tmp_path, "compare", f"runs/{first}", "again", "losses=equal")
    assert done.returncode == 0 and "the same to the last bit" in done.stderr, done.stderr
    for words, what in (
        ([f"runs/{first}", f"runs/{seed}", "losses=equal"], "seed: 1 instead of 0"),
        ([f"runs/{first}", "losses=equal"], "at least 2"),
        (["losses=same"], "any, equal"),
        (["seeds=perhaps"], "true or false"),
    ):
        done = run(tmp_path, "compare", *words)
        assert done.returncode == 1 and what in done.stderr and "Traceback" not in done.stderr, (words, done.stderr)


def test_the_contracts_tolerance() -> None:
    wanted = [4.0, 2.0, 1.0]
    found = deviation([4.0, 2.0, 1.0 + 3e-4], wanted, "fp32")
    assert found.within and not found.bits_equal and found.epoch == 3 and found.relative == pytest.approx(3e-4 / 4)
    assert not deviation([4.0, 2.0, 1.0 + 5e-4], wanted, "fp32").within  # 4e-4 is what 1e-4 of the first loss allows
    assert deviation([4.0, 2.0, 1.0 + 0.9e-8], wanted, "fp64").within
    assert not deviation([4.0, 2.0, 1.0 + 1.1e-8], wanted, "fp64").within  # of this epoch's loss, not of the first
    assert deviation(wanted, wanted[:2], "fp64").epochs == 2 and deviation(wanted, wanted, "fp64").bits_equal
    for bad in (math.nan, math.inf):
        assert not deviation([4.0, bad], wanted[:2], "fp32").within
        assert not deviation([4.0, bad], [4.0, bad], "fp32").within
    with pytest.raises(ConfigError, match="no epoch"):
        deviation([], wanted, "fp32")
    with pytest.raises(ConfigError, match="precision"):
        deviation(wanted, wanted, "bf16")


def test_mean_and_deviation() -> None:
    assert mean_and_deviation([1.0, 2.0, 3.0]) == (2.0, 1.0)
    assert mean_and_deviation([1.0]) == (1.0, 0.0)
    assert mean_and_deviation([1.0, None]) is None and mean_and_deviation([]) is None


@pytest.mark.parametrize("content", ["[]", '{"labels": 3}', "[" * 100_000, '{"labels": ["a"]}'])
def test_a_damaged_list_of_a_sweeps_points_gives_no_label(content: str, tmp_path: Path) -> None:
    (tmp_path / "sweep.json").write_text(content)
    assert _label(tmp_path / "001") is None
