"""Runs that differ each in one thing: every curve, point, bar and part that is drawn, and what matplotlib gets of them."""

from __future__ import annotations

from statistics import mean, stdev
from typing import Any

import pytest

from sargnn.report.charts import Chart, Picture, Series, make_pictures
from sargnn.report.draw import draw
from sargnn.report.groups import Group, make_groups
from sargnn.report.runs import read_runs
from sargnn.tracking.memory import PARTS
from tests.report.folders import TWELVE, figures_of, losses_of, write_twelve

NUMBERS = {name: number for number, name in enumerate(TWELVE)}
ALONE = [name for name in TWELVE if name not in ("base", "seed")]
"""Runs that share their settings with no other run; base and seed are two seeds of one group, which is called base."""


@pytest.fixture(scope="module")
def groups(tmp_path_factory: pytest.TempPathFactory) -> list[Group]:
    runs, left_out = read_runs(write_twelve(tmp_path_factory.mktemp("runs")).values())
    assert len(runs) == 13 and not left_out
    return make_groups(runs)


@pytest.fixture(scope="module")
def pictures(groups: list[Group]) -> dict[str, Picture]:
    return {one.key: one for one in make_pictures(groups, groups[0])}


def by_name(chart: Chart) -> dict[str, Series]:
    found = {one.name: one for one in chart.series}
    assert len(found) == len(chart.series)
    return found


def numbers_of(name: str) -> list[int]:
    return [0, NUMBERS["seed"]] if name == "base" else [NUMBERS[name]]


def test_only_seeds_share_a_group(groups: list[Group]) -> None:
    assert [group.name for group in groups] == ["base", *ALONE]
    assert [run.name for run in groups[0].members] == ["base", "seed"] and groups[0].seeds == [0, 1]
    shown = {
        "kernel": {"kernel": "reference"}, "hidden": {"hidden": 32}, "world": {"world": 4}, "mode": {"mode": "one_shot"},
        "dataset": {"dataset": "products_like"}, "precision": {"precision": "fp64"}, "epochs": {"epochs": 3},
        "labels": {"labels": "masked"}, "mfg": {"mfg": True}, "partitioner": {"partitioner": "random"},
        "threads": {"threads": 2},
    }  # fmt: skip
    base = groups[0].differs
    assert set(base) == set(shown) and "seed" not in base
    for group in groups[1:]:
        changed = {key: value for key, value in group.differs.items() if base[key] != value}
        assert changed == shown[group.name], group.name


@pytest.mark.parametrize("key", ["loss", "loss_seconds", "accuracy"])
def test_curves(pictures: dict[str, Picture], key: str) -> None:
    (chart,) = pictures[key].charts
    found = by_name(chart)
    assert chart.kind == "curves" and list(found) == ["base", *ALONE]
    for name, one in found.items():
        numbers = numbers_of(name)
        epochs = 3 if name == "epochs" else 4
        shown = [epoch for epoch in range(epochs) if key != "accuracy" or epoch % 2 or epoch + 1 == epochs]
        if key == "accuracy":
            values = [[0.1 * (epoch + 1) + 0.01 * number for number in numbers] for epoch in shown]
        else:
            values = [[losses_of(number)[epoch] for number in numbers] for epoch in shown]
        each = [[sum(1.0 + 0.125 * n + 0.5 * e for e in range(epoch + 1)) for n in numbers] for epoch in shown]
        assert one.xs == pytest.approx([mean(times) for times in each] if key == "loss_seconds" else [e + 1 for e in shown])
        assert one.ys == pytest.approx([mean(one) for one in values])
        assert one.spread == pytest.approx([stdev(one) if len(one) > 1 else 0 for one in values])
        assert one.members == (["base", "seed"] if name == "base" else [name]) and len(one.points[0]) == len(numbers)


@pytest.mark.parametrize("key", ["memory", "epoch_time"])
def test_points_are_joined_only_where_the_world_alone_differs(pictures: dict[str, Picture], key: str) -> None:
    (chart,) = pictures[key].charts
    found = by_name(chart)
    assert set(found) == {"base, world", *ALONE} - {"world"}

    def value(number: int, world: int = 2) -> float:
        figures = figures_of(number, world)
        return float(max(figures["peak_train_bytes"]) / 1e6 if key == "memory" else figures["epoch_time_s"])

    seeds = [value(0), value(NUMBERS["seed"])]
    line = found.pop("base, world")
    assert line.xs == [2, 4] and line.members == ["base", "seed", "world"]
    assert line.ys == pytest.approx([mean(seeds), value(NUMBERS["world"], 4)])
    assert line.spread == pytest.approx([stdev(seeds), 0]) and line.points[0] == pytest.approx(seeds)
    for name, one in found.items():
        assert (one.xs, one.spread, one.members) == ([2], [0], [name]) and one.ys == pytest.approx([value(NUMBERS[name])])


@pytest.mark.parametrize("key", ["figures", "baseline"])
def test_bars(pictures: dict[str, Picture], key: str, groups: list[Group]) -> None:
    worlds = {group.name: group.first.world for group in groups}
    read = {
        "median epoch time, s": lambda f: f["epoch_time_s"],
        "peak training memory, MB": lambda f: max(f["peak_train_bytes"]) / 1e6,
        "resident memory, MB": lambda f: max(f["peak_rss_bytes"]) / 1e6,
        "sent in an epoch, MB": lambda f: f["comm_bytes_per_epoch"] / 1e6,
        "test accuracy": lambda f: f["test_metric_at_best_val"],
    }  # fmt: skip
    titles = list(read) if key == "figures" else [
        "epoch time, ratio", "peak training memory, ratio", "resident memory, ratio", "sent in an epoch, ratio"
    ]  # fmt: skip
    charts = pictures[key].charts
    assert [chart.title for chart in charts] == titles
    for chart, reading in zip(charts, read.values(), strict=False):
        assert chart.rows == ["base", *ALONE] and chart.kind == ("dots" if "accuracy" in chart.title else "bars")
        of = {name: [reading(figures_of(n, worlds[name])) for n in numbers_of(name)] for name in chart.rows}
        unit = 1.0 if key == "figures" else mean(of["base"])
        for row, one in enumerate(chart.series):
            values = [value / unit for value in of[one.name]]
            assert one.xs == [row] and one.name == chart.rows[row]
            assert one.ys == pytest.approx([mean(values)]) and one.points[0] == pytest.approx(values)
            assert one.spread == pytest.approx([stdev(values) if len(values) > 1 else 0])
        assert chart.line == (None if key == "figures" else 1.0)


def test_memory_is_stacked_by_worker(pictures: dict[str, Picture], groups: list[Group]) -> None:
    (chart,) = pictures["memory_parts"].charts
    rows = [(group.name, rank) for group in groups for rank in range(group.first.world)]
    assert chart.rows == [f"{name}, rank {rank}" for name, rank in rows]
    found = by_name(chart)
    assert list(found) == list(PARTS)
    for part, one in found.items():
        values = [[figures_of(n, 4)["memory_bytes"][part][rank] / 1e6 for n in numbers_of(name)] for name, rank in rows]
        assert one.xs == list(range(len(rows))) and one.ys == pytest.approx([mean(each) for each in values])
    totals = [sum(one.ys[row] for one in chart.series) for row in range(len(rows))]
    assert totals[0] == pytest.approx(mean(figures_of(n, 2)["peak_rss_bytes"][0] for n in (0, NUMBERS["seed"])) / 1e6)


def drawn_curves(axes: Any) -> dict[str, tuple[list[float], list[float]]]:
    return {line.get_label(): (list(line.get_xdata()), list(line.get_ydata())) for line in axes.lines}


@pytest.mark.parametrize("key", ["loss", "loss_seconds", "accuracy", "memory", "epoch_time"])
def test_curves_are_drawn_as_they_are(pictures: dict[str, Picture], key: str) -> None:
    (chart,) = pictures[key].charts
    figure = draw(pictures[key])
    (axes,) = figure.axes
    drawn = drawn_curves(axes)
    for one in chart.series:
        assert drawn[one.name] == (one.xs, one.ys)
    markers = {line.get_label(): line.get_marker() for line in axes.lines}
    assert all(markers[one.name] not in ("", "None") for one in chart.series if len(one.xs) == 1)  # one point is seen
    texts = [text.get_text().replace("\n", " ") for text in axes.texts]
    said = " = ".join(texts)
    assert all(one.name in said for one in chart.series)
    line = next(one for one in chart.series if any(one.spread))
    if key in ("loss", "loss_seconds"):
        (band,) = [one for one in axes.collections if type(one).__name__ == "FillBetweenPolyCollection"]
        edges = band.get_paths()[0].vertices[:, 1]
        assert edges.max() == pytest.approx(line.ys[0] + line.spread[0])
        assert edges.min() == pytest.approx(line.ys[-1] - line.spread[-1])
    boxes = [text.get_window_extent(figure.canvas.get_renderer()) for text in axes.texts]
    boxes.sort(key=lambda box: box.y0)
    assert all(low.y1 <= high.y0 + 1 for low, high in zip(boxes, boxes[1:], strict=False)), "labels overlap"
    assert max(box.x1 for box in boxes) <= figure.bbox.x1 and min(box.y0 for box in boxes) >= 0


@pytest.mark.parametrize("key", ["figures", "baseline", "memory_parts"])
def test_bars_are_drawn_as_they_are(pictures: dict[str, Picture], key: str) -> None:
    for chart, axes in zip(pictures[key].charts, draw(pictures[key]).axes, strict=True):
        names = [text.get_text().replace("\n", " ") for text in axes.get_yticklabels()]
        assert axes is not axes.figure.axes[0] or names == chart.rows
        if chart.kind == "dots":
            assert [drawn_curves(axes)[one.name] for one in chart.series] == [(one.ys, one.xs) for one in chart.series]
            continue
        bars = [bar for container in axes.containers if hasattr(container, "patches") for bar in container.patches]
        assert [bar.get_width() for bar in bars] == pytest.approx([y for one in chart.series for y in one.ys])
        assert [bar.get_y() + bar.get_height() / 2 for bar in bars] == pytest.approx(
            [x for one in chart.series for x in one.xs]
        )
        if chart.kind == "stack":
            ends = [0.0] * len(chart.rows)
            for one, container in zip(chart.series, axes.containers, strict=True):
                assert [bar.get_x() for bar in container.patches] == pytest.approx(ends)
                ends = [end + value for end, value in zip(ends, one.ys, strict=True)]
        else:
            seeds = [list(line.get_xdata()) for line in axes.lines if line.get_label() == "_seeds"]
            assert seeds == [one.points[0] for one in chart.series if len(one.points[0]) > 1]
