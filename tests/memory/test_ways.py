"""What fits, the fastest first: the commands that ``sargnn plan what=fit`` prints are ones that keep to the budget."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from sargnn.cli.compose import compose_verb
from sargnn.config.run import RunConfig, parse
from sargnn.memory import runtime
from sargnn.memory.plan_run import WorldPlan
from sargnn.memory.settle import find_ways
from tests.in_process import sargnn_here

GRAPH = ("dataset=products_like", "dataset.scale=0.01", "model=gat", "store_dir=stores")

_BASE, _LOADING = 420_000_000, 40_000_000
"""Of a worker: what those that come from the tests' own server really have depends on what ran before."""


class _Worker:
    def __init__(self, total: int) -> None:
        self.total = self.training = total


def _made_up(config: RunConfig) -> WorldPlan:
    """More workers, sar, fewer kept layers, micro-batches and bf16 take less."""
    total = 1000 // config.world * (3 if config.mode.name == "no_remat" else 2)
    total //= 2 if config.engine.keep_layers == 2 else 1
    total //= 1 if config.batches.count == 1 else int(config.batches.count)
    total //= 2 if config.precision == "bf16" else 1
    return WorldPlan(config.mode.name, config.world, [_Worker(total)], None, exact=True)  # type: ignore[list-item]


@pytest.mark.parametrize(
    ("words", "limit", "expected"),
    [
        ([], 3000, [("mode=no_remat",), ("mode=sar",), ("mode=sar", "engine.keep_layers=2")]),
        ([], 2500, [("mode=sar",), ("mode=sar", "engine.keep_layers=2")]),
        ([], 1200, [("mode=sar", "engine.keep_layers=2")]),
        ([], 900, [("mode=sar", "world=2", "engine.keep_layers=2")]),
        (
            ["model.norm=layer"],
            600,
            [("mode=sar", "world=2", "engine.keep_layers=2"), ("mode=sar", "world=2", "batches.count=4")],
        ),
        (
            ["model.norm=batch", "engine.keep_layers=2"],
            600,
            [("mode=sar", "world=2"), ("mode=sar", "world=2", "precision=bf16")],
        ),
    ],
)
def test_the_fastest_first(words: list[str], limit: int, expected: list[tuple[str, ...]]) -> None:
    """With a norm over rows no micro-batches are offered, for they would change losses."""
    config = parse(compose_verb("train", ["world=1", *words]))
    ways = find_ways(config, _made_up, lambda plan: plan.largest.total <= limit, [1, 2, 4])
    assert [set(way.words) for way in ways][: len(expected)] == [set(one) for one in expected]
    assert not find_ways(config, _made_up, lambda plan: False, [1, 2])


@pytest.mark.long
def test_commands_that_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "cache_dir", lambda: tmp_path)
    monkeypatch.setattr(runtime, "_measure_runtime", lambda config, **_: [_BASE, _LOADING])
    words = [*GRAPH, "what=fit", "modes=sar", "memory_budget=650MB", "world=2", "mode=domain_parallel"]
    done = sargnn_here(tmp_path, "plan", *words)
    assert done.returncode == 0, done.stderr
    commands = done.stdout.splitlines()
    assert commands and all(one.startswith("sargnn train ") and "domain_parallel" not in one for one in commands)
    first = shlex.split(commands[0])[2:]
    run = sargnn_here(tmp_path, "train", *first, "epochs=2", "tracking=none", "memory_budget.enforce=false", "run_dir=run")
    assert run.returncode == 0, run.stderr
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert max(summary["peak_train_bytes"]) + _BASE + _LOADING <= 650e6 * 1.12
