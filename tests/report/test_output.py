"""Tables at 80 columns, the page, JSON and CSV, of 1, 2, 8 and 50 runs."""

from __future__ import annotations

import csv
import io
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from sargnn.report.charts import make_pictures
from sargnn.report.draw import draw
from sargnn.report.groups import make_groups
from sargnn.report.page import write_page
from sargnn.report.runs import Run, read_runs
from sargnn.report.table import as_csv, as_json, groups_lines, runs_lines
from tests.report.folders import write_run, write_twelve

HARMFUL = "<b>'\"&amp; $x$ _y</b>"


def fifty(place: Path) -> list[Path]:
    """Five models' worth of settings on five worlds, two seeds each; long names, and one that is markup."""
    words = ["mode=sar", "mode=one_shot", "model.hidden=64", "precision=fp64-mode=domain_parallel", "model.layers=2"]
    first = write_run(place / "template", 0)
    found = []
    for number in range(50):
        kind, world, seed = words[number % 5], 1 + number // 5 % 5, number // 25
        name = HARMFUL.replace("/", "") if number == 7 else f"sage-{kind}-w{world}-s{seed}"
        folder = place / name
        folder.mkdir()
        config = (first / "config.yaml").read_text()
        config = re.sub(r"^world: \d+", f"world: {world}", config, flags=re.M)
        config = re.sub(r"^seed: \d+", f"seed: {seed}", config, flags=re.M)
        config = re.sub(r"^  hidden: \d+", f"  hidden: {16 + number % 5}", config, flags=re.M)
        (folder / "config.yaml").write_text(config)
        for file in ("summary.json", "metrics.jsonl"):
            (folder / file).write_text((first / file).read_text())
        figures = json.loads((folder / "summary.json").read_text())
        figures |= {"world": world, "epoch_time_s": 0.5 + number / 7, "test_metric_at_best_val": 0.5 + number / 200}
        (folder / "summary.json").write_text(json.dumps(figures))
        found.append(folder)
    return found


@pytest.fixture(scope="module")
def fifty_runs(tmp_path_factory: pytest.TempPathFactory) -> list[Run]:
    runs, left_out = read_runs(fifty(tmp_path_factory.mktemp("fifty")))
    assert len(runs) == 50 and not left_out
    return runs


@pytest.fixture(scope="module")
def twelve_runs(tmp_path_factory: pytest.TempPathFactory) -> list[Run]:
    return read_runs(write_twelve(tmp_path_factory.mktemp("twelve")).values())[0]


@pytest.mark.parametrize("count", [1, 2, 8, 50])
@pytest.mark.parametrize("width", [80, 120, 200])
def test_tables_fit(fifty_runs: list[Run], count: int, width: int) -> None:
    runs = fifty_runs[:count]
    lines = runs_lines(runs, width)
    groups = make_groups(runs)
    for each in (lines, groups_lines(groups, width)):
        assert max(map(len, each)) <= width, each
    for run in runs:
        assert any(line.startswith(run.name) for line in lines), run.name
        time = f"{run.result.epoch_time_s:.3f}"
        assert any(re.search(rf"(?<![\d.]){re.escape(time)}(?!\d)", line) for line in lines), time
    marks = sum(line.count("*") for line in lines)
    assert marks == (0 if count == 1 else 2), lines  # the best one's, and what it means


def test_the_table_of_twelve(twelve_runs: list[Run]) -> None:
    lines = runs_lines(twelve_runs, 80)
    assert max(map(len, lines)) <= 80 and "13 runs on 2 datasets; * is the best" in lines[0]
    text = " ".join(" ".join(lines).split())
    usual, _, rows = text.partition("last test")
    for alike in ("hidden=256", "dataset=synthetic", "mode=sar", "threads=1"):
        assert alike in usual and alike not in rows
    for own in ("kernel=reference", "hidden=32", "mode=one_shot", "mfg=true", "threads=2", "dataset=products_like", "seed=1"):
        assert rows.count(own) == 1, own
    (marked,) = [line for line in lines[1:] if "*" in line]
    assert marked.startswith("threads")  # number 12 has the largest score


class Reader(HTMLParser):
    """What a browser would fetch or run, which words it shows, and whether every element is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.places: list[str] = []
        self.words: list[str] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.places += [value or "" for key, value in attrs if key in ("src", "href", "action", "srcset")]
        assert not any(key.startswith("on") for key, _ in attrs)
        if tag not in ("meta", "img", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def page_of(runs: list[Run], path: Path) -> tuple[str, Reader]:
    groups = make_groups(runs)
    commands = {run.name: f"sargnn train run_name='{run.name}'" for run in runs}
    write_page(path, runs, groups, make_pictures(groups, groups[0]), commands, [])
    text = path.read_text()
    return text, Reader(text)


@pytest.mark.parametrize("count", [1, 8, 50])
def test_the_page_stands_alone(fifty_runs: list[Run], count: int, tmp_path: Path) -> None:
    text, page = page_of(fifty_runs[:count], tmp_path / "deep" / "report.html")
    assert page.open == [] and "http:" not in text and "https:" not in text
    assert all(place.startswith("data:image/svg+xml;base64,") for place in page.places) and len(page.places) == 9
    assert "link" not in page.tags and page.tags.count("script") == 1 and "addEventListener" in text
    assert "b" not in page.tags and "default-src 'none'" in text
    if count > 7:
        assert any("$x$ _y<b>" in word for word in page.words)  # the name as it is, and no element of it
    assert page.words.count("base") == 1 and "Means over seeds" in text if count == 50 else "Means over seeds" not in text
    assert len(text) < 3_000_000


def test_sorting_values_are_numbers(twelve_runs: list[Run], tmp_path: Path) -> None:
    text, _ = page_of(twelve_runs, tmp_path / "report.html")
    table = text[text.index("<tbody>") : text.index("</tbody>")]
    rows = [re.findall(r'data-value="([^"]*)"', row) for row in table.split("<tr>")[1:]]
    assert [row[0] for row in rows] == [run.name for run in twelve_runs]
    at = 2 + 6  # behind the name, the dataset and the figures before it; settings follow
    assert [float(row[at]) for row in rows] == [max(run.result.peak_rss_bytes or []) for run in twelve_runs]


def test_fifty_runs_are_drawn_without_overlap(fifty_runs: list[Run]) -> None:
    groups = make_groups(fifty_runs)
    pictures = {one.key: one for one in make_pictures(groups)}
    for key in ("loss", "epoch_time"):
        figure = draw(pictures[key])
        boxes = sorted(
            (t.get_window_extent(figure.canvas.get_renderer()) for t in figure.axes[0].texts), key=lambda box: box.y0
        )
        assert all(low.y1 <= high.y0 + 1 for low, high in zip(boxes, boxes[1:], strict=False))
        assert boxes[0].y0 >= 0 and boxes[-1].y1 <= figure.bbox.y1 + 1
    assert len(pictures["figures"].charts[0].rows) == len(groups) == 25
    assert pictures["memory_parts"].charts[0].rows == [group.name for group in groups]  # too many workers for a row each


def test_json_has_groups_and_what_is_drawn(twelve_runs: list[Run]) -> None:
    groups = make_groups(twelve_runs)
    document = json.loads(as_json(twelve_runs, groups, make_pictures(groups), []))
    assert [one["name"] for one in document["runs"]] == [run.name for run in twelve_runs]
    first = document["groups"][0]
    assert first["members"] == ["base", "seed"] and first["seeds"] == [0, 1] and "seed" not in first["differs"]
    assert first["figures"]["epoch_time_s"] == {"mean": 1.125, "std": pytest.approx(0.125 * 2**0.5), "n": 2}
    assert document["groups"][1]["differs"]["kernel"] == "reference"
    loss = document["pictures"]["loss"]["charts"][0]["series"][0]
    assert loss["name"] == "base" and loss["members"] == ["base", "seed"] and len(loss["xs"]) == len(loss["ys"]) == 4
    parts = document["runs"][0]["memory_bytes"][1]
    assert sum(parts.values()) == max(twelve_runs[0].result.peak_rss_bytes or [])


def test_csv_has_a_row_per_run(twelve_runs: list[Run]) -> None:
    rows = list(csv.DictReader(io.StringIO(as_csv(twelve_runs, make_groups(twelve_runs)))))
    assert [row["run"] for row in rows] == [run.name for run in twelve_runs]
    assert [row["group"] for row in rows[:3]] == ["0", "1", "0"] and rows[2]["seed"] == "1"
    assert (
        float(rows[1]["epoch_time_s"]) == 1.125 and rows[1]["kernel"] == "reference" and rows[0]["test_metric_smoothed"] == ""
    )
    assert int(rows[0]["peak_rss_bytes"]) == max(twelve_runs[0].result.peak_rss_bytes or [])
