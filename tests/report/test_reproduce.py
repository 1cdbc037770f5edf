"""``sargnn reproduce``: three figures from tiny runs; the list; what goes on, and what cannot."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from sargnn.cli import sweep
from sargnn.config.run import load
from tests.in_process import points_here
from tests.in_process import sargnn_here as run

TINY = ["dataset.scale=0.002", "model.hidden=8", "tracking=none", "threads=1"]


@pytest.fixture
def runs_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """The labels of a sweep's points that have run."""
    monkeypatch.chdir(tmp_path)
    return points_here(monkeypatch, tmp_path)


@pytest.mark.long
def test_bars_relative_to_sar(runs_here: list[str], tmp_path: Path) -> None:
    words = ["reproduce", "sar.fig4", *TINY, "world=2", "epochs=2"]
    done = run(tmp_path, *words)
    assert done.returncode == 0, done.stderr
    assert len(runs_here) == 6 and done.stdout.splitlines()[-1] == "figures/sar.fig4-8in.png"
    for name in ("sar.fig4-8in.png", "sar.fig4-4in.png", "sar.fig4.svg", "sar.fig4.md"):
        assert (tmp_path / "figures" / name).stat().st_size > 500
    found = {}
    for path in (tmp_path / "sweeps").glob("*/0??"):
        config, summary = load(path / "config.yaml"), json.loads((path / "summary.json").read_text())
        assert config.model.name == "gat" and dataclasses.asdict(config.dataset)["scale"] == 0.002
        assert summary["status"] == "finished"
        found[config.world, config.mode.name, config.kernel.name] = summary
    assert set(found) == {(w, m, k) for w in (1, 2) for m, k in (("domain_parallel", "dgl"), ("sar", "dgl"), ("sar", "fused"))}
    for world in (1, 2):
        base, fused = (found[world, "sar", kernel] for kernel in ("dgl", "fused"))
        ratios = [fused["epoch_time_s"] / base["epoch_time_s"]]
        ratios.append(max(fused["peak_train_bytes"]) / max(base["peak_train_bytes"]))
        cells = " | ".join(f"{one:.3g}" for one in ratios)
        assert any(line.endswith(f"SAR + fused attention | {cells} |") for line in done.stdout.splitlines()), (
            cells,
            done.stdout,
        )
    svg = (tmp_path / "figures" / "sar.fig4.svg").read_text()
    for text in ("SAR + fused attention", "domain-parallel", "products_like at scale 0.002", "2 workers"):
        assert text in svg, text
    again = run(tmp_path, *words)
    assert again.returncode == 0 and len(runs_here) == 6, "finished runs are not run again"
    assert again.stdout == done.stdout


def test_curves(runs_here: list[str], tmp_path: Path) -> None:
    done = run(tmp_path, "reproduce", "sar.fig8", *TINY, "world=1", "epochs=4", "eval_every=2", "dataset.scale=0.00005")
    assert done.returncode == 0, done.stderr
    summaries = [json.loads(path.read_text()) for path in sorted((tmp_path / "sweeps").glob("*/*/summary.json"))]
    assert len(summaries) == 2 and [len(one["losses"]) for one in summaries] == [4, 4]
    table = (tmp_path / "figures" / "sar.fig8.md").read_text()
    for one, name in zip(summaries, ("features alone", "labels as input"), strict=True):
        assert f"| {name} | {one['losses'][-1]:.3g} | {one['val_metric']:.3g} |" in table


@pytest.mark.long
def test_shares_and_a_run_that_fails(runs_here: list[str], tmp_path: Path) -> None:
    """The others are drawn, the failure is named, and the same command runs only that one again."""
    words = ["reproduce", "sar.fig9", "tracking=none", "model.hidden=8", "model.num_layers=2", "world=1"]
    whole = sweep._run

    def breaks_once(given: Sequence[str], label: str, run_dir: Path, environment: dict[str, str]) -> sweep.Outcome:
        if "mfg=true" in given and len(runs_here) < 2:
            runs_here.append(label)
            return sweep.Outcome(label, run_dir, "failed", None, "it broke")
        return whole([one.replace("0.01", "0.002").replace("0.001", "0.0001") for one in given], label, run_dir, environment)

    with pytest.MonkeyPatch.context() as place:
        place.setattr(sweep, "_run", breaks_once)
        done = run(tmp_path, *words)
        assert done.returncode == 1 and "it broke" in done.stderr and done.stdout.count("failed") == 1, done.stdout
        assert (tmp_path / "figures" / "sar.fig9-8in.png").exists() and len(runs_here) == 4
        again = run(tmp_path, *words)
    assert again.returncode == 0 and len(runs_here) == 5 and "failed" not in again.stdout
    rows = [line for line in again.stdout.splitlines() if "| all rows |" in line]
    assert len(rows) == 2 and all(line.endswith("| 2 |") for line in rows), "both layers compute all rows"


def test_the_list_and_mistakes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    listed = run(tmp_path, "reproduce")
    assert listed.returncode == 0 and all(len(line) <= 80 for line in listed.stdout.splitlines())
    names = [line.split()[0] for line in listed.stdout.splitlines() if line.split() and "." in line.split()[0][:-1]]
    order = [one for one in names if one.startswith(("sar.", "betty.", "granndis."))]
    assert order.index("betty.fig4") < order.index("betty.fig10") and len(order) == 28
    shown = run(tmp_path, "reproduce", "sar.fig6", "--dry-run")
    assert shown.returncode == 0 and "sweep of 9 points" in shown.stdout
    for words, said in (
        (["sar.fig66"], "sar.fig6"), (["sar.fig4", "sar.fig5"], "One figure"), (["sar.fig4", "mode=sar"], "varies"),
        (["sar.fig4", "model.hiden=8"], "hidden"), (["sar.fig4", "launch=there"], "launch"), (["sar.fig4", "-m"], "-m"),
        (["sar.fig4", "run_dir=x"], "run folders"),
    ):  # fmt: skip
        done = run(tmp_path, "reproduce", *words)
        assert done.returncode == 1 and said in done.stderr and "Traceback" not in done.stderr, (words, done.stderr)
    assert not list(tmp_path.iterdir()), "nothing was made"


def test_a_figure_of_ones_own(runs_here: list[str], tmp_path: Path) -> None:
    (tmp_path / "mine" / "figure").mkdir(parents=True)
    (tmp_path / "mine" / "figure" / "depth.yaml").write_text(
        "# Layers.\npaper: none\ntitle: Layers\nshows: Time by layers.\nneeds: nothing\nminutes: 1\nkind: lines\nworld: 1\n"
        "settings: [dataset=synthetic, dataset.num_nodes=300, model=sage, model.hidden=4, epochs=2, tracking=none]\n"
        "x: {name: layers, values: {'1': [model.num_layers=1], '2': [model.num_layers=2]}}\n"
        "panels: [{value: epoch_time}]\ndiffers: nothing.\n"
    )
    done = run(tmp_path, "reproduce", "depth", "--config-dir", "mine", "figures_dir=elsewhere")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "elsewhere/depth-8in.png" and len(runs_here) == 2


def test_as_jobs(runs_here: list[str], tmp_path: Path) -> None:
    """A script for each run; the sweep is the one that the command without launch goes on with."""
    words = ["reproduce", "sar.fig9", "tracking=none", "model.hidden=4"]
    done = run(tmp_path, *words, "launch=slurm", "slurm.partition=big")
    assert done.returncode == 0 and not runs_here, done.stderr
    (folder,) = (tmp_path / "slurm").iterdir()
    assert done.stdout.splitlines()[-1] == f"bash slurm/{folder.name}/submit.sh"
    scripts = sorted(folder.glob("0*.sbatch"))
    assert len(scripts) == 4 and "#SBATCH --partition=big" in scripts[0].read_text()
    assert "Written by: sargnn reproduce sar.fig9 tracking=none model.hidden=4" in scripts[0].read_text()
    shown = run(tmp_path, *words, "--dry-run")
    assert f"sweeps/{folder.name.removeprefix('sweep-')}" in shown.stdout, "the same sweep"
