"""``sargnn compare``: what it prints and writes, what it leaves out, means over seeds, and equality of losses."""

from __future__ import annotations

import csv
import io
import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest

import sargnn
from sargnn.errors import ConfigError
from sargnn.report.groups import deviation, over_seeds
from tests.in_process import sargnn_here as run
from tests.report.folders import write_run, write_twelve


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Two seeds, and one of them in another mode on another world."""
    write_run(tmp_path / "runs" / "s0", 0)
    write_run(tmp_path / "runs" / "s1", 1, "seed=1")
    write_run(tmp_path / "runs" / "other", 2, "mode=one_shot", "world=1")
    return tmp_path


def changed(folder: Path, name: str, key: str, value: Any) -> None:
    path = folder / "runs" / name / "summary.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {key: value}))


def test_names_folders_and_patterns(place: Path) -> None:
    done = run(place, "compare")
    assert done.returncode == 0 and done.stdout.startswith("3 runs on synthetic"), done.stderr
    names = {path.name for path in (place / "compare").iterdir()}
    wanted = {"loss", "loss_seconds", "accuracy", "accuracy_seconds", "memory", "epoch_time", "figures", "memory_parts"}
    assert names == {f"{name}.png" for name in wanted}
    assert all((place / "compare" / name).read_bytes().startswith(b"\x89PNG") for name in names)
    done = run(place, "compare", "s*", "runs/other", "out=plots", "baseline=s1")
    assert done.returncode == 0 and "3 runs" in done.stdout and (place / "plots" / "baseline.png").exists(), done.stderr
    done = run(place, "compare", "s0", "--json", "baseline=other")
    assert done.returncode == 0 and not (place / "compare.html").exists()
    assert [one["name"] for one in json.loads(done.stdout)["runs"]] == ["s0", "other"]  # the baseline is compared, too


def test_means_over_seeds(place: Path) -> None:
    done = run(place, "compare", "seeds=true", "out=plots")
    assert done.returncode == 0 and "over seeds" in done.stdout, done.stderr
    both = over_seeds([2.0 / 4, 2.25 / 4])
    assert both is not None and f"{both.mean:.4f}" in done.stdout and f"±{both.std:.4f}" in done.stdout
    assert "(2 seeds)" in done.stdout and "other (1 seed)" in done.stdout
    assert max(len(line) for line in done.stdout.splitlines()) <= 80
    shutil.copytree(place / "runs" / "s1", place / "again")
    done = run(place, "compare", "s0", "s1", "again", "seeds=true")
    assert done.returncode == 1 and "same seed" in done.stderr and "again" in done.stderr


def test_json_and_csv_are_all_that_is_printed(place: Path) -> None:
    done = run(place, "compare", "--json")
    document = json.loads(done.stdout)
    assert done.returncode == 0 and not (place / "compare").exists()
    assert [one["members"] for one in document["groups"]] == [["other"], ["s0", "s1"]]
    assert document["groups"][0]["differs"] == {"mode": "one_shot", "world": 1}
    assert document["pictures"]["loss"]["charts"][0]["series"][1]["ys"][0] == 2.125
    for word in ("--csv", "csv=true"):
        rows = list(csv.DictReader(io.StringIO(run(place, "compare", word).stdout)))
        assert [(row["run"], row["group"], row["mode"]) for row in rows] == [
            ("other", "0", "one_shot"), ("s0", "1", "sar"), ("s1", "1", "sar")
        ]  # fmt: skip
    done = run(place, "compare", "--csv", "out=plots")
    assert done.returncode == 0 and (place / "plots" / "loss.png").exists() and done.stdout.startswith("run,folder,")


def test_one_page(tmp_path: Path) -> None:
    write_twelve(tmp_path / "runs")
    harmful = tmp_path / "runs" / "<b>x"
    (tmp_path / "runs" / "base").rename(harmful)
    done = run(tmp_path, "compare", "out=deep/report.html", "baseline=<b>x")
    assert done.returncode == 0 and "report: deep/report.html" in done.stderr, done.stderr
    text = (tmp_path / "deep" / "report.html").read_text()
    assert "<b>" not in text and "&lt;b&gt;x" in text and "http" not in text.replace("http-equiv", "")
    assert text.count("data:image/svg+xml") == 9
    assert "sargnn train tracking=none model.hidden=32 epochs=4 world=2 threads=1</code>" in text


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["out=report.pdf"], "out=FOLDER, out=REPORT.html"),
        (["--json", "--csv"], "--json or --csv"),
        (["baseline=nobody"], "no such run"),
        (["s00"], "s0"),
        (["--jsn"], "--json"),
        (["losses=same"], "any, equal"),
        (["seeds=perhaps"], "true or false"),
        (["s0", "losses=equal"], "at least 2"),
        (["s0", "s1", "losses=equal"], "seed: 1 instead of 0"),
        (["out=runs/s0/config.yaml/x"], "cannot be written"),
    ],
)
def test_mistakes(place: Path, words: list[str], what: str) -> None:
    done = run(place, "compare", *words)
    assert done.returncode == 1 and what in done.stderr and "Traceback" not in done.stderr, (words, done.stderr)


def test_broken_folders_are_named_and_the_rest_goes_on(place: Path) -> None:
    (place / "runs" / "other" / "summary.json").write_text("{")
    (place / "runs" / "empty").mkdir()
    write_run(place / "runs" / "unfinished", 3)
    (place / "runs" / "unfinished" / "summary.json").unlink()
    done = run(place, "compare", "out=plots")
    assert done.returncode == 0 and "2 runs" in done.stdout
    for line in (
        "left out: runs/empty (there is no config.yaml",
        "left out: runs/unfinished (not over)",
        "left out: runs/other",
    ):
        assert line in done.stderr
    assert "summary.json" in done.stderr
    done = run(place, "compare", "other", "runs/empty", "baseline=s0", "--json")
    assert done.returncode == 0 and len(json.loads(done.stdout)["left_out"]) == 2
    done = run(place, "compare", "baseline=unfinished")
    assert done.returncode == 1 and "baseline=runs/unfinished" in done.stderr
    done = run(place, "compare", "runs/empty")
    assert done.returncode == 1 and "no finished run" in done.stderr and "runs/empty" in done.stderr


def test_equal_losses(place: Path) -> None:
    both = ["s0", "other", "losses=equal", "out=plots"]
    losses = json.loads((place / "runs" / "s0" / "summary.json").read_text())["losses"]
    changed(place, "other", "losses", [*losses[:-1], losses[-1] + 0.9e-4 * losses[0]])
    done = run(place, "compare", *both)
    assert done.returncode == 0 and "within 1e-04" in done.stderr and ": equal" in done.stderr, done.stderr
    changed(place, "other", "losses", [*losses[:-1], losses[-1] + 3e-4 * losses[0]])
    done = run(place, "compare", *both)
    assert done.returncode == 1 and "BEYOND" in done.stderr and f"epoch {len(losses)}" in done.stderr, done.stderr
    shutil.copytree(place / "runs" / "s0", place / "again")
    done = run(place, "compare", "s0", "again", "losses=equal", "--csv")
    assert done.returncode == 0 and "last bit" in done.stderr, done.stderr


def test_from_python(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    (place / "runs" / "other" / "summary.json").unlink()
    table = sargnn.compare(["s*", sargnn.load("runs/other")])
    assert list(table.index) == ["s0", "s1", "other"] and list(table["seed"])[:2] == [0, 1]
    assert table.loc["s1", "loss"] == 2.25 / 4 and table.loc["s0", "peak_rss_bytes"] == 210_000_000 + 6000
    assert (
        list(table["status"])[:2] == ["finished"] * 2 and table["status"].isna()["other"] and table.loc["other", "epochs"] == 4
    )
    with pytest.raises(ConfigError, match="no such run"):
        sargnn.compare("nobody")


def test_the_contracts_tolerance() -> None:
    wanted = [4.0, 2.0, 1.0]
    found = deviation([4.0, 2.0, 1.0 + 3e-4], wanted, "fp32")
    assert found.within and not found.bits_equal and found.epoch == 3 and found.relative == pytest.approx(3e-4 / 4)
    assert not deviation([4.0, 2.0, 1.0 + 5e-4], wanted, "fp32").within  # 4e-4 is what 1e-4 of the first loss allows
    assert deviation([4.0, 2.0, 1.0 + 0.9e-8], wanted, "fp64").within
    assert not deviation([4.0, 2.0, 1.0 + 1.1e-8], wanted, "fp64").within  # of this epoch's loss, not of the first
    assert deviation([4.0, 2.0 + 0.07], wanted, "bf16").within and not deviation([4.0, 2.0 + 0.09], wanted, "bf16").within
    assert deviation(wanted, wanted[:2], "fp64").epochs == 2 and deviation(wanted, wanted, "fp64").bits_equal
    for bad in (math.nan, math.inf):
        assert not deviation([4.0, bad], wanted[:2], "fp32").within
        assert not deviation([4.0, bad], [4.0, bad], "fp32").within
    with pytest.raises(ConfigError, match="no epoch"):
        deviation([], wanted, "fp32")
    with pytest.raises(ConfigError, match="precision"):
        deviation(wanted, wanted, "fp16")


def test_mean_and_deviation() -> None:
    found = over_seeds([1.0, 2.0, 3.0])
    assert found is not None and (found.mean, found.std, found.n) == (2.0, 1.0, 3)
    assert (one := over_seeds([1.0])) is not None and (one.mean, one.std, one.n) == (1.0, 0.0, 1)
    assert over_seeds([1.0, None]) is None and over_seeds([]) is None
