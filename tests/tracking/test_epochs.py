"""What is said while a run trains: its best stays in sight, what is left comes true, a line fits."""

from __future__ import annotations

import io
import re
from typing import Any

import pytest
from rich.console import Console

from sargnn.tracking import progress as shown
from sargnn.tracking.progress import EpochProgress, ProgressFigures, human_seconds


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def row(epoch: int, **more: Any) -> dict[str, Any]:
    return {
        "epoch": epoch,
        "loss": 2.0 / (epoch + 1),
        "epoch_time_s": 1.0,
        "ranks": {"peak_train_bytes": [3_000_000, 40_200_000]},
    } | more


def val(score: float, metric: str = "accuracy") -> dict[str, Any]:
    return {"val_metric": score, "metric": metric}


def test_the_last_and_the_best_validation_stay() -> None:
    figures = ProgressFigures(100, clock := Clock())
    figures.take(row(0))
    assert figures.line(80) == "loss 2.0000  1.000 s  peak 40.2 MB  99 s left"
    figures.take(row(1, **val(0.7)))
    figures.take(row(2, **val(0.6)))
    clock.now += 1
    figures.take(row(3))
    assert "val 0.6000 best 0.7000" in figures.line(80)


def test_of_errors_the_smallest_is_the_best() -> None:
    figures = ProgressFigures(100, Clock())
    figures.take(row(1, **val(0.7, "mse")), before=True)
    figures.take(row(2, **val(0.9, "mse")))
    assert "val mse 0.9 best 0.7 " in figures.line(80)


def test_what_is_left_comes_true() -> None:
    figures = ProgressFigures(10, clock := Clock())
    for epoch in range(5):
        clock.now += 2.0 if epoch else 9.0  # an epoch of 1 s with its evaluation; workers start before the first
        figures.take(row(epoch))
    assert figures.seconds_left() == 10.0
    clock.now += 1.5
    assert figures.seconds_left() == 8.5
    clock.now += 100  # this epoch takes longer: the others do not
    assert figures.seconds_left() == 8.0
    for epoch in range(5, 10):
        figures.take(row(epoch))
    assert figures.line(80).endswith("in 2 min")


def test_lines_that_are_read_at_once_say_nothing_of_the_pace() -> None:
    figures = ProgressFigures(10, Clock())
    for epoch in range(4):
        figures.take(row(epoch))
    assert figures.seconds_left() == 6.0


def test_what_matters_least_is_left_out_where_there_is_no_room() -> None:
    figures = ProgressFigures(10, Clock())
    figures.take(row(0, **val(0.7)))
    assert figures.line(80) == "loss 2.0000  val 0.7000 best 0.7000  1.000 s  peak 40.2 MB  9 s left"
    assert figures.line(62) == "loss 2.0000  val 0.7000 best 0.7000  peak 40.2 MB  9 s left"
    assert figures.line(50) == "loss 2.0000  val 0.7000 best 0.7000  9 s left"
    assert figures.line(10) == "loss 2.0000  val 0.7000  9 s left"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.2, "0 s"), (99, "99 s"), (100, "2 min"), (4830, "1 h 20 min"), (7170, "2 h 0 min"), (200_000, "2.3 days")],
)
def test_seconds(seconds: float, text: str) -> None:
    assert human_seconds(seconds) == text


def said(progress: EpochProgress) -> list[str]:
    assert isinstance(progress.console.file, io.StringIO)
    return progress.console.file.getvalue().splitlines()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(shown.time, "monotonic", clock)
    return clock


def test_a_pipe_gets_a_line_every_few_seconds(clock: Clock) -> None:
    with EpochProgress(20, every_s=5.0) as progress:
        progress.console = Console(file=io.StringIO(), soft_wrap=True)
        for epoch in range(12):
            clock.now += 1.0
            progress.update(row(epoch))
    assert [re.match(r"epoch (\d+)/20 ", line)[1] for line in said(progress)] == ["1", "6", "11", "12"]  # type: ignore[index]
    assert all(len(line) <= 80 for line in said(progress))


def test_a_pipe_is_told_that_an_epoch_is_under_way(clock: Clock) -> None:
    with EpochProgress(20) as progress:
        progress.console = Console(file=io.StringIO(), soft_wrap=True)
        for _ in range(200):
            clock.now += 1.0
            progress.tick()
        assert [line.split(",")[1].partition(" the ")[0] for line in said(progress)] == [
            " 30 s since",
            " 60 s since",
            " 2 min since",
        ]
        progress.update(row(0))
        clock.now += 29.0
        progress.tick()
    assert len(said(progress)) == 4


def test_a_bar_fits_a_terminal(clock: Clock) -> None:
    terminal = Console(file=io.StringIO(), force_terminal=True, width=80)
    progress = EpochProgress(500)
    progress.console = terminal
    with progress:
        for epoch in range(499):
            clock.now += 0.3
            progress.update(row(epoch, **val(0.5)))
    last = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", terminal.file.getvalue()).splitlines()[-1].split("\r")[-1]  # type: ignore[attr-defined]
    assert "499/500" in last and "best 0.5000" in last and "s left" in last and len(last.rstrip()) <= 80
