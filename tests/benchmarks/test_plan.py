"""``python -m benchmarks.plan`` on a small graph: its figures are the runs' and the planner's; draws; errors."""

from __future__ import annotations

import json
import random
import socket
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest

from benchmarks.command import HERE
from benchmarks.plan import (
    TRAINING,
    WHOLE,
    BenchPlanConfig,
    Point,
    Row,
    draw_runs,
    draw_words,
    errors_of,
    markdown,
    parse_bench_plan,
)
from sargnn.cli.bench import run_of
from sargnn.cli.compose import compose_verb
from sargnn.cli.conf import find_folders
from sargnn.config.run import RunConfig, load, parse
from sargnn.errors import ConfigError
from sargnn.graph.dataset import open_dataset
from sargnn.memory import runtime
from sargnn.memory.plan_run import find_cut, plan_run
from sargnn.memory.plan_worker import Runtime
from tests.in_process import benchmark_here as run

BASE = 250_000_000
FOLDERS = find_folders(str(HERE))
TINY = [
    "dataset.scale=0.003",
    "models=[sage]",
    "modes=[sar]",
    "worlds=[2]",
    "named=[keep_layers]",
    "drawn=0",
    "model.hidden=32",
]


def settings(**changes: object) -> BenchPlanConfig:
    mapping = compose_verb("bench_plan", [], keep=("bench_dir",), folders=FOLDERS)
    return parse_bench_plan({key: mapping[key] for key in BenchPlanConfig.__dataclass_fields__} | changes)


CASES = settings().cases


def config_of(words: Sequence[str]) -> RunConfig:
    """Of a case with overrides."""
    return _parsed(tuple(words))


@cache
def _parsed(words: tuple[str, ...]) -> RunConfig:
    return parse(compose_verb("train", [*CASES[words[0]], *words[1:]]))


@pytest.mark.long
def test_a_table_is_what_runs_and_plans_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "_measure_runtime", lambda config, **_: [BASE, 0])
    monkeypatch.setattr(runtime, "cache_dir", lambda: tmp_path)
    monkeypatch.chdir(tmp_path)
    done = run(tmp_path, "plan", *TINY)
    assert done.returncode == 0, done.stderr
    table = (tmp_path / "bench" / "plan.md").read_text()
    assert table.count("\n| ") == 2 and all(line in table for line in done.stdout.splitlines() if line.startswith("| "))
    found = json.loads((tmp_path / "bench" / "plan.json").read_text())
    errors: dict[str, list[float]] = {TRAINING: [], WHOLE: []}
    folders = [("sage", "sar-world-2-1"), ("gat", "keep_layers-1")]
    for row, (case, name) in zip(found["rows"], folders, strict=True):
        run_dir = tmp_path / "bench" / "runs" / case / name
        summary = json.loads((run_dir / "summary.json").read_text())
        config = load(run_dir / "config.yaml")
        (store,) = (tmp_path / "stores" / "datasets").iterdir()
        dataset = open_dataset(store, verify=False)
        cut = find_cut(config, dataset, store.name)
        assert cut.exact and config.model.name == case
        workers = plan_run(config, dataset, cut, Runtime(BASE, 0)).workers
        assert row["planned"] == {TRAINING: [one.training for one in workers], WHOLE: [one.total for one in workers]}
        assert row["measured"][TRAINING] == summary["peak_train_bytes"]
        for quantity, of in ((TRAINING, "peak_train_bytes"), (WHOLE, "peak_rss_bytes")):
            worst = max((p / m for p, m in zip(row["planned"][quantity], summary[of], strict=True)), key=lambda x: abs(x - 1))
            assert row["ratios"][quantity] == worst and f" {worst:.3f} " in table
            errors[quantity].append(abs(worst - 1))
        assert row["phase"] in table
    for quantity, of_rows in errors.items():
        assert found["errors"][quantity]["mean"] == pytest.approx(sum(of_rows) / 2)
        assert found["errors"][quantity]["worst"] == max(of_rows)
        assert f"{quantity}: mean absolute error {sum(of_rows) / 2:.1%}, worst {max(of_rows):.1%} (" in done.stdout
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "bench" / "runs").glob("*/*.json")}
    again = run(tmp_path, "plan", *TINY)
    assert again.returncode == 0 and "2 runs" in again.stderr
    assert {path: path.stat().st_mtime_ns for path in before} == before and again.stdout == done.stdout
    with monkeypatch.context() as place:
        place.setattr("sargnn.memory.plan_run.plan_run", lambda *_: [][0])
        broken = run(tmp_path, "plan", *TINY)
    assert broken.returncode == 1 and broken.stdout.count("| not planned: the planner broke: IndexError") == 2, broken.stderr
    words = [word for word in TINY if not word.startswith("named")]
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        failing = run(tmp_path, "plan", *words, "named=[]", f"comm.port={port}", "bench_dir=other")
    assert failing.returncode == 1 and failing.stdout.count("| failed: ") == 1 and "failed: 1 of 1 runs" in failing.stdout
    assert f"comm.port={port}" in failing.stderr


def row_of(planned: list[float] | None, measured: list[float] | None, fault: str = "") -> Row:
    config = config_of(["sage", "world=2"])
    return Row(
        Point("sage", "sar, world 2", "", config), {} if planned is None else {TRAINING: planned},
        {} if measured is None else {TRAINING: measured, WHOLE: measured}, "" if planned is None else "layer 1 forward", fault,
    )  # fmt: skip


def test_the_worst_worker_counts_and_what_is_not_planned_stands_apart() -> None:
    rows = [
        row_of([110.0, 80.0], [100.0, 100.0]), row_of([101.0, 100.0], [100.0, 100.0]), row_of(None, [5e6, 7e6], "of no | kind"),
        row_of([1.0, 1.0], None, "it broke"),
    ]  # fmt: skip
    assert [one.ratio(TRAINING) for one in rows] == [0.8, 1.01, None, None]
    found = errors_of(rows, TRAINING)
    assert found is not None and found.row is rows[0] and found.count == 2
    assert found.mean == pytest.approx((0.2 + 0.01) / 2) and found.worst == pytest.approx(0.2)
    assert errors_of(rows, WHOLE) is None and errors_of([], TRAINING) is None
    text = "\n".join(markdown(rows))
    assert "not planned: of no / kind |" in text and "- not planned: 1 of 4 runs" in text and "- failed: 1 of 4 runs" in text
    assert "| 7 |  |" in text and "mean absolute error 10.5%, worst 20.0% (sage, sar, world 2), of 2 runs" in text


def test_draws_are_repeatable_and_can_run() -> None:
    """Each draw is a run that parses; what does not go together is drawn again."""
    few = settings(drawn=6, draw_seed=3)
    first, second = draw_runs(few, config_of), draw_runs(few, config_of)
    assert first == second and len({" ".join(words) for words, _ in first}) == 6
    assert draw_runs(settings(drawn=1, draw_seed=4), config_of) != first[:1]
    assert {config.mode.name for _, config in first} <= set(few.modes) and {c.world for _, c in first} <= set(few.worlds)
    assert len({config.model.name for _, config in first}) > 2
    refused = 0
    draw = random.Random(3)
    for _ in range(15):
        try:
            config_of(draw_words(draw, few))
        except ConfigError:
            refused += 1
    assert 0 < refused < 15

    def never(words: Sequence[str]) -> RunConfig:
        raise ConfigError("Nothing goes.")

    with pytest.raises(ConfigError, match=r"only 0 can run.\n.*\n.*Nothing goes"):
        draw_runs(settings(drawn=1), never)
    assert draw_runs(settings(drawn=0), never) == []


def test_a_case_with_a_graph_of_fixed_size_has_no_scale() -> None:
    def of_case(case: str, word: str) -> RunConfig:
        return run_of("bench_plan", case, CASES[case], [word], FOLDERS)

    weak = of_case("sage_weak", "dataset.scale=0.003")
    assert weak.dataset == of_case("sage_weak", "seed=1").dataset and weak.dataset.name == "synthetic"
    assert of_case("sage", "dataset.scale=0.003").dataset != of_case("sage", "seed=1").dataset
    assert of_case("sage_weak", "dataset.num_nodes=1000").dataset != weak.dataset
    with pytest.raises(ConfigError, match="scael"):
        of_case("sage_weak", "dataset.scael=0.003")


def test_mistakes_are_answered(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for words, what in (
        (["model=gat"], "models=[A,B]"),
        (["worlds=[]"], "names none"),
        (["worlds=[0]"], "at least 1"),
        (["modes=[sar,sar]"], "twice"),
        (["modes=[sra]"], "sar"),
        (["named=[bf17]"], "bf16"),
        (["drawn=-1"], "drawn"),
        (["models=[sgae]"], "sage"),
        (["epochs=1"], "first epoch"),
        (["drawn=0", "named=[]", "models=[sage]", "bench_dir=file"], "cannot be written"),
        (["drwn=1"], "drawn"),
    ):
        done = run(tmp_path, "plan", *words)
        assert done.returncode == 1 and what in done.stderr and "Traceback" not in done.stderr, (words, done.stderr)
        assert not list(tmp_path.glob("bench")) and not list(tmp_path.glob("stores")), words
