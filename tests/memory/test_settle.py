"""Before a run is launched: what does not fit is refused with what would, what is left open is chosen, the plan is noted."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from sargnn.memory import runtime, settle
from sargnn.memory.settle import Machine
from tests.in_process import sargnn_here

GRAPH = ("dataset=products_like", "dataset.scale=0.01", "model=gat", "tracking=none", "store_dir=stores", "epochs=2")
_BASE, _LOADING = 250_000_000, 50_000_000


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Every graph is worth a plan, and what a worker takes by itself is known."""
    monkeypatch.setattr(settle, "_SMALL", 0)
    monkeypatch.setattr(runtime, "_measure_runtime", lambda config, **_: [_BASE, _LOADING])
    monkeypatch.setattr(runtime, "cache_dir", lambda: tmp_path)


def _has(monkeypatch: pytest.MonkeyPatch, free: int) -> None:
    monkeypatch.setattr(Machine, "here", classmethod(lambda cls, workers: cls(free, workers)))


@pytest.mark.usefixtures("known")
def test_what_cannot_fit_is_refused_with_what_would(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _refused(tmp_path, monkeypatch)


def _refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The mode that is named where the baseline does not fit."""
    _has(monkeypatch, 1_350_000_000)
    done = sargnn_here(tmp_path, "train", *GRAPH, "world=2", "mode=domain_parallel", "run_dir=run")
    assert done.returncode == 1 and "would not fit" in done.stderr and "Traceback" not in done.stderr, done.stderr
    assert "mode=domain_parallel world=2" in done.stderr and "1.4 GB are free for 2 workers" in done.stderr
    named = re.search(r"allowed: (mode=\w+) \(", done.stderr)
    assert named and named[1] != "mode=domain_parallel" and "memory_budget.enforce=false" in done.stderr, done.stderr
    assert not (tmp_path / "run").exists()
    return named[1]


@pytest.mark.machine
@pytest.mark.usefixtures("known")
def test_what_is_named_fits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The choice that is named trains; what is planned of it stands beside what it measured."""
    mode, words = _refused(tmp_path, monkeypatch), [*GRAPH, "world=2"]
    done = sargnn_here(tmp_path, "train", *words, mode, "run_dir=run")
    assert done.returncode == 0, done.stderr
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    for expected, measured in zip(summary["planned_train_bytes"], summary["peak_train_bytes"], strict=True):
        assert expected == pytest.approx(measured, rel=0.15, abs=30e6)
    log = (tmp_path / "run" / "logs" / "rank_00.log").read_text()
    assert "planned" in log
    done = sargnn_here(tmp_path, "train", *words, "mode=domain_parallel", "memory_budget.enforce=false", "run_dir=nonetheless")
    assert done.returncode == 0, done.stderr


@pytest.mark.usefixtures("known")
@pytest.mark.long
def test_a_mode_is_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fastest where there is room, else the leanest; nothing where not even that fits."""
    graph = [*GRAPH, "model.hidden=128", "epochs=1", "eval_every=1"]
    words = [*graph, "world=4", "mode=auto"]
    plans: dict[str, int] = {}
    for free, mode in ((10**11, "no_remat"), (None, "sar")):
        if free is None:
            assert plans["sar"] < plans["no_remat"]
            free = (plans["sar"] + plans["no_remat"]) // 2
        _has(monkeypatch, free)
        done = sargnn_here(tmp_path, "train", *words, f"run_name={mode}")
        assert done.returncode == 0 and f"mode=auto: {mode}" in done.stderr, done.stderr
        assert f"name: {mode}" in (tmp_path / "runs" / mode / "config.yaml").read_text()
        if not plans:
            shown = sargnn_here(tmp_path, "plan", *graph, "worlds=4", "modes=[no_remat,sar]")
            assert shown.returncode == 0, shown.stderr
            plans = {name: _all_of(shown.stdout, name) for name in ("no_remat", "sar")}
    _has(monkeypatch, 500_000_000)
    done = sargnn_here(tmp_path, "train", *words)
    assert done.returncode == 1 and "mode=sar world=4" in done.stderr and "tried" in done.stderr


def _all_of(table: str, mode: str) -> int:
    """All workers' bytes, in a plan's table."""
    line = next(one for one in table.splitlines() if one.split()[:1] == [mode]).split()
    return int(float(line[4]) * {"MB": 1e6, "GB": 1e9}[line[5]])


@pytest.mark.usefixtures("known")
@pytest.mark.long
def test_a_budget_is_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is free, shared out; with it the fewest workers."""
    _has(monkeypatch, 3_000_000_000)
    done = sargnn_here(tmp_path, "train", *GRAPH, "world=auto", "memory_budget=auto", "run_dir=run")
    assert done.returncode == 0, done.stderr
    assert "world=auto: 1 worker," in done.stderr and "memory_budget=auto: 3000MB" in done.stderr
    config = (tmp_path / "run" / "config.yaml").read_text()
    assert "world: 1\n" in config and "size: 3000MB" in config
    for more, says in (
        (["world=auto", "memory_budget=300MB"], "No number of workers"),
        (["memory_budget=300MB", "world=2"], "memory_budget=300.0 MB a worker"),
        (["memory_budget=some"], "'memory_budget' is no size"), (["memory_budget.enforce=maybe"], "memory_budget.enforce"),
        (["batches.count=auto", "memory_budget=6GB", "memory_budget.enforce=false"], "the memory"),
    ):  # fmt: skip
        wrong = sargnn_here(tmp_path, "train", *GRAPH, *more)
        assert wrong.returncode == 1 and says in wrong.stderr and "Traceback" not in wrong.stderr, wrong.stderr
    other = sargnn_here(tmp_path, "slurm", *GRAPH, "world=auto")
    assert other.returncode == 1 and "Only sargnn train chooses" in other.stderr


def test_workers_within_their_budgets_fit_their_machine_together() -> None:
    """Two that have room for themselves may have none side by side."""
    from sargnn.cli.compose import compose_verb
    from sargnn.config.run import parse
    from sargnn.memory.plan_run import WorldPlan
    from sargnn.memory.plan_worker import TERMS, WorkerPlan

    worker = WorkerPlan(800, 10, "layer 1 forward", dict.fromkeys(TERMS, 0) | {"runtime": 299_999_200, "working set": 800})
    plan = WorldPlan("sar", 2, [worker, worker], None, exact=True)
    for words in ([], ["memory_budget=300MB"]):
        config = parse(compose_verb("train", ["world=2", *words]))
        assert settle.fits(plan, config, Machine(600_000_000, 2))
        assert not settle.fits(plan, config, Machine(599_999_999, 2))
        assert settle.fits(plan, config, Machine(599_999_999, 1))  # the other one is on another node
    over = parse(compose_verb("train", ["world=2", "memory_budget=299MB"]))
    assert not settle.fits(plan, over, Machine(10**12, 2))


def test_a_node_of_a_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has as many workers as tasks run there."""
    from sargnn.cli.compose import compose_verb
    from sargnn.config.run import parse

    _has(monkeypatch, 8_000_000_000)
    config = parse(compose_verb("train", ["world=8"]))
    assert Machine.of_job(config, {"SLURM_TASKS_PER_NODE": "4(x2)"}) == Machine(8_000_000_000, 4)
    assert Machine.of_job(config, {}).share == 1_000_000_000


def test_a_run_of_before_has_its_budget(tmp_path: Path) -> None:
    """``memory_budget: 6GB`` in a run folder of an older version is read as a size."""
    import yaml

    from sargnn.cli.compose import compose_verb
    from sargnn.config.run import load

    mapping = compose_verb("train", [])
    for written, size in (("6GB", 6 * 10**9), (None, None)):
        path = tmp_path / "config.yaml"
        path.write_text(yaml.safe_dump(mapping | {"memory_budget": written}))
        assert load(path).budget_bytes == size
