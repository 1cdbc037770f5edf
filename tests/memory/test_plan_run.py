"""``sargnn plan``: what it says beforehand is what a run measures; wrong words are answered."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from sargnn.cli.compose import compose_verb
from sargnn.config.run import parse
from sargnn.graph.dataset import open_dataset
from sargnn.memory import runtime
from sargnn.memory.plan_run import find_cut, plan_run, smallest_world
from sargnn.memory.plan_worker import TERMS, Runtime
from sargnn.sources.prepare import prepare_dataset
from tests.in_process import sargnn_here
from tests.memory.plans import planned

GRAPH = ("dataset=products_like", "dataset.scale=0.01")
TYPED = ("dataset=mag_like", "dataset.scale=0.01")
CASES = {
    "sage sar": (*GRAPH, "model=sage", "mode=sar", "world=2"),
    "gat sar": (*GRAPH, "model=gat", "mode=sar", "world=2"),
    "gat no_remat": (*GRAPH, "model=gat", "mode=no_remat", "world=2"),
    "gat one_shot": (*GRAPH, "model=gat", "mode=one_shot", "world=2"),
    "gat domain_parallel": (*GRAPH, "model=gat", "mode=domain_parallel", "world=2"),
    "rgcn sar": (*TYPED, "model=rgcn", "mode=sar", "world=2"),
    "sage bf16, kept layers": (*GRAPH, "model=sage", "precision=bf16", "engine.keep_layers=2", "world=2"),
}
_FIXED = 30_000_000
"""What libraries take more or less from run to run; of runs as small as these a good part."""
_DGL = 110_000_000
"""DGL's import, which these tests' workers do in their first step."""


@pytest.mark.machine
@pytest.mark.parametrize("name", CASES)
def test_planned_is_measured(name: str, tmp_path: Path) -> None:
    words = [*CASES[name], "epochs=2", "eval_every=10", "tracking=none", f"store_dir={tmp_path}/stores"]
    done = sargnn_here(tmp_path, "train", *words, "run_dir=run")
    assert done.returncode == 0, done.stderr
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    config, dataset, cut = planned(words)
    assert cut.exact
    plan = plan_run(config, dataset, cut, Runtime(0, 0))
    for worker, measured in zip(plan.workers, summary["peak_train_bytes"], strict=True):
        imported = _DGL if "domain_parallel" in name else 0
        assert measured * 0.85 - _FIXED - imported <= worker.training <= measured * 1.15 + _FIXED
        assert tuple(worker.terms) == TERMS and min(worker.terms.values()) >= 0
        assert worker.phase
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert plan.sent == rows[1]["comm_bytes"]


@pytest.mark.long
def test_more_workers_hold_less(tmp_path: Path) -> None:
    """Of a streamed cut; and fewer modes and workers fit a smaller budget."""
    config = parse(compose_verb("train", [*GRAPH, "model=gat", f"store_dir={tmp_path}/stores"]))
    path = prepare_dataset(config.dataset, config.store_dir, config.prepare.bytes)
    dataset = open_dataset(path, verify=False)
    plans = []
    for world in (1, 2, 4, 8):
        one = parse(compose_verb("train", [*GRAPH, "model=gat", f"store_dir={tmp_path}/stores", f"world={world}"]))
        cut = find_cut(one, dataset, path.name)
        assert not cut.exact and sum(sum(part.rows) for part in cut.parts) == dataset.num_nodes
        plans.append(plan_run(one, dataset, cut, Runtime(1000, 0)))
    peaks = [one.largest.total for one in plans]
    assert peaks == sorted(peaks, reverse=True)
    assert smallest_world(plans, "sar", peaks[1]) == 2 and smallest_world(plans, "sar", peaks[3] - 1) is None
    assert smallest_world(plans, "one_shot", peaks[0]) is None


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "_measure_runtime", lambda config, **_: [300_000_000, 20_000_000])
    monkeypatch.setattr(runtime, "cache_dir", lambda: tmp_path)
    words = ["plan", *GRAPH, "model=gat", "store_dir=stores", "worlds=[1,4]"]
    done = sargnn_here(tmp_path, *words, "memory_budget=470MB")
    assert done.returncode == 0, done.stderr
    assert max(map(len, (done.stdout + done.stderr).splitlines())) <= 128
    assert max(map(len, done.stdout.splitlines())) <= 80
    said = done.stdout + done.stderr
    assert re.search(r"sar: .* 470.0 MB: world=4", said)
    assert re.search(r"domain_parallel +~4 ", done.stdout) and "kept for backward" in said
    assert json.loads((tmp_path / "runtime.json").read_text())["gat sar auto plain several budget"] == [300_000_000, 20_000_000]
    kept = sargnn_here(tmp_path, *words, "mode=no_remat", "mode.keep=all", "comm.aggregate=least")
    assert kept.returncode == 0 and "domain_parallel" not in kept.stdout and "no_remat" in kept.stdout, kept.stderr
    for more, says in (
        ("world=auto", "Only sargnn train chooses"), ("modes=[sr]", "modes to plan"), ("worlds=[0]", "numbers of workers"),
        ("model=gta", "gat"),
    ):  # fmt: skip
        wrong = sargnn_here(tmp_path, *words, more)
        assert wrong.returncode == 1 and says in wrong.stderr, wrong.stderr


@pytest.mark.machine
def test_what_a_worker_takes_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "cache_dir", lambda: tmp_path)
    config = parse(compose_verb("train", ["world=2"]))
    found = runtime.measured_runtime(config, typed=False)
    assert 50_000_000 < found.base < 1_000_000_000 and 0 <= found.loading < 200_000_000
    monkeypatch.setattr(runtime, "_measure_runtime", lambda config, **_: pytest.fail("measured again"))
    assert runtime.measured_runtime(config, typed=False) == found
