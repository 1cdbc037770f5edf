"""What is drawn is what runs measured and what the paper gives, at its place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from sargnn.cli.compose import compose_verb
from sargnn.config.run import parse
from sargnn.report.drawings import DRAWINGS, caption_of, draw_figure, table_of, write_figure
from sargnn.report.study import Cell, FigureSpec, cells_of
from sargnn.report.values import VALUES, RunFigures, gather
from sargnn.tracking.memory import PARTS
from sargnn.tracking.summary import Summary
from tests.report.specs import spec_of

CONFIG = parse(compose_verb("train", ["dataset=products_like", "dataset.scale=0.01"]))


def figures(seconds: float, **more: Any) -> RunFigures:
    """A run that took so long an epoch."""
    rows = [{"epoch": e, "epoch_time_s": seconds, "loss": 1 / (e + 1), "val_metric": 0.1 * e} for e in range(3)]
    known = {
        "epoch_time_s": seconds, "peak_train_bytes": [10**9, 2 * 10**9], "peak_rss_bytes": [10**9, 3 * 10**9],
        "comm_wait_time_s": 0.25 * seconds, "comm_bytes_per_epoch": 10**9, "cpu": "a processor", "cores": 2,
        "memory_bytes": dict.fromkeys(PARTS, [0, 0]) | {"base": [1, 10**9], "training": [2, 2 * 10**9]},
        "between_servers_wait_s": 0.125 * seconds,
    }  # fmt: skip
    return RunFigures(Summary("finished", **{**known, **more}), CONFIG, rows, 100)


def runs_of(spec: FigureSpec, *, without: tuple[str, str, str] | None = None) -> dict[Cell, RunFigures]:
    """Run number n took n + 1 seconds."""
    cells = enumerate(cells_of(spec))
    return {one: figures(number + 1.0) for number, one in cells if (one.group, one.series, one.x) != without}


def drawn(spec: FigureSpec, **more: Any) -> tuple[Any, list[Any]]:
    """A picture, and the axes of panels in order."""
    panels = gather(spec, cells_of(spec), runs_of(spec, **more))
    picture = draw_figure(spec.kind, panels, title=spec.title, x=spec.x.name, caption="where", width=8)
    return picture, [axes for axes in picture.get_axes() if axes.get_visible()]


def test_bars_stand_at_their_places(tmp_path: Path) -> None:
    spec = spec_of(tmp_path)
    _, axes = drawn(spec)
    bars = [(round(bar.get_x() + bar.get_width() / 2, 2), bar.get_height(), bar.get_fill()) for bar in axes[0].patches]
    ours, paper = [(x, y) for x, y, fill in bars if fill], [(x, y) for x, y, fill in bars if not fill]
    assert ours == [(-0.21, 1), (0.79, 3), (1.79, 5), (0.21, 2), (1.21, 4), (2.21, 6)]
    assert paper == [(-0.21, 1), (1.79, 3)], "the paper's stand around the bars of their series"
    assert [tick.get_text() for tick in axes[0].get_xticklabels()] == ["1\n(p)", "2\n(q)", "4\n(r)"]
    assert axes[0].get_title() == "one" or axes[0].get_title(loc="left") == "one"


def test_a_failed_run_is_a_cross_and_has_no_bar(tmp_path: Path) -> None:
    spec = spec_of(tmp_path)
    _, axes = drawn(spec, without=("one", "b", "2"))
    heights = [bar.get_height() for bar in axes[0].patches if bar.get_fill()]
    assert heights == [1, 3, 5, 2, 6] and [text.get_text() for text in axes[0].texts].count("x") == 1
    lines = table_of(gather(spec, cells_of(spec), runs_of(spec, without=("one", "b", "2"))), "workers")
    assert sum("failed" in line for line in lines) == 1


def test_relative_to_a_series_at_the_same_x(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, ("value: epoch_time,", "value: epoch_time, relative_to: b,"))
    ((one, two),) = gather(spec, cells_of(spec), runs_of(spec))
    assert one.ours == {"a": [1 / 2, 3 / 4, 5 / 6], "b": [1.0, 1.0, 1.0]} and two.ours["a"] == [7 / 8, 9 / 10, 11 / 12]
    assert one.title == "epoch time, b = 1"


def test_the_papers_of_another_unit_have_their_own_axis(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, ("published: {", "published: {unit: GB, "))
    _, axes = drawn(spec)
    assert [one.get_height() for one in axes[0].patches] == [1, 3, 5, 2, 4, 6]
    (other,) = [one for one in axes if "GB" in one.get_ylabel()]
    assert [one.get_height() for one in other.patches] == [1, 3]


def test_lines_curves_and_shares(tmp_path: Path) -> None:
    _, axes = drawn(spec_of(tmp_path, ("kind: bars", "kind: lines")))
    assert [list(line.get_ydata()) for line in axes[0].lines] == [[1, 3, 5], [1, 3], [2, 4, 6]]
    _, axes = drawn(spec_of(tmp_path, ("kind: bars", "kind: curves"), ("value: epoch_time", "value: loss")))
    assert [list(line.get_ydata()) for line in axes[0].lines][:6] == [[1, 1 / 2, 1 / 3]] * 6
    assert [list(line.get_xdata()) for line in axes[0].lines][6:] == [[3.0], [3.0]], "where curves end"
    _, axes = drawn(spec_of(tmp_path, ("kind: bars", "kind: shares"), ("value: epoch_time", "value: waits")))
    widths = [round(bar.get_width(), 4) for bar in axes[0].patches]
    assert widths[:3] == [0.75, 0.125, 0.125], "computing, waiting inside and between servers of the first run"


def test_values_of_a_run() -> None:
    one = figures(2.0, batches={"redundancy": 1.5, "count": 2, "steps": 1, "layers": [[{"rows": 5, "input_rows": 9}]] * 2},
                  planned_train_bytes=[10**9, 10**9], test_metric_at_best_val=0.5)  # fmt: skip
    found = {name: VALUES[name].of(one) for name in VALUES}
    assert found["training_memory"] == 2.0 and found["whole_memory"] == 3.0 and found["memory_of_all"] == 3.0
    assert found["waiting"] == 0.25 and found["sent"] == 1.0 and found["test_accuracy"] == 50.0
    assert found["rows"] == 10 and found["input_rows"] == 18 and found["efficiency"] == pytest.approx(9e-6)
    assert found["redundancy"] == 1.5 and found["batches"] == 2 and found["plan_error"] == 50
    assert found["memory_parts"] == dict.fromkeys(PARTS, 0.0) | {"base": 1.0, "training": 2.0}
    assert found["val_accuracy_by_time"] == ([2.0, 4.0, 6.0], [0.0, 0.1, 0.2])
    plain = figures(2.0)
    assert VALUES["rows"].of(plain) == 300 and VALUES["input_rows"].of(plain) == 100
    assert VALUES["rows_by_layer"].of(plain) == {"layer 1": 1.0, "layer 2": 1.0, "layer 3": 1.0}
    flows = figures(2.0, mfg={"training": [{"rows": 90}, {"rows": 50}, {"rows": 10}]})
    assert VALUES["rows_by_layer"].of(flows) == {"layer 1": 0.9, "layer 2": 0.5, "layer 3": 0.1}
    nothing = RunFigures(Summary("finished"), CONFIG, [], 0)
    given = {name for name in VALUES if VALUES[name].of(nothing)}
    assert given == {"batches", "loss", "val_accuracy_by_epoch", "val_accuracy_by_time"}, "curves are empty"


@pytest.mark.parametrize("kind", DRAWINGS)
def test_files_hold_text_that_is_not_cut(kind: str, tmp_path: Path) -> None:
    value = {"curves": "loss", "shares": "memory_parts"}.get(kind, "epoch_time")
    spec = spec_of(tmp_path, ("kind: bars", f"kind: {kind}"), ("value: epoch_time", f"value: {value}"))
    cells, runs = cells_of(spec), runs_of(spec)
    caption = caption_of(spec, list(runs.values()))
    assert caption == "products_like at scale 0.01. 4 workers. 2 cores, a processor."
    lines, (path,) = write_figure("own", spec, cells, runs, tmp_path / "figures")
    assert lines[-2:] == [caption, spec.differs]
    assert path.name == "own-8in.png" and path.stat().st_size < 200_000
    assert {one.name for one in path.parent.iterdir()} == {"own-8in.png", "own-4in.png", "own.svg", "own.md"}
    text = (path.parent / "own.md").read_text()
    assert "| one | 1 (p) | a | " in text and caption in text and "nothing." in text
    for width in (4, 8):
        panels = gather(spec, cells, runs)
        picture = draw_figure(kind, panels, title=spec.title, x=spec.x.name, caption=caption, width=width)
        picture.savefig(tmp_path / "any.png")
        box = picture.get_tightbbox(FigureCanvasAgg(picture).get_renderer())
        assert -0.05 <= box.x0 and box.x1 <= width + 0.05, "nothing hangs over the edge"
