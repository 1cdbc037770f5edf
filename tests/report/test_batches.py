"""Pictures of runs with micro-batches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sargnn.report.charts import make_pictures
from sargnn.report.groups import make_groups
from sargnn.report.runs import Run, name_runs, read_runs
from tests.report.folders import write_run


def batches(count: int, by: str, redundancy: float) -> dict[str, Any]:
    return {"batches": {"count": count, "by": by, "redundancy": redundancy}}


def read(*folders: Path) -> list[Run]:
    return name_runs(read_runs(folders)[0])


def test_a_line_for_each_grouping_begins_without_micro_batches(tmp_path: Path) -> None:
    folders = [write_run(tmp_path / "one", 0)]
    number = 1
    for by in ("star", "random"):
        for count in (8, 2):
            words = [f"batches.count={count}", f"batches.by={by}"]
            folders.append(write_run(tmp_path / f"{by}{count}", number, *words, **batches(count, by, 1 + number / 8)))
            number += 1
    pictures = {one.key: one.charts[0] for one in make_pictures(make_groups(read(*folders)))}
    memory = {one.name: (one.xs, [round(y, 3) for y in one.ys]) for one in pictures["batches_memory"].series}
    assert memory == {"by=star": ([1, 2, 8], [20.0, 20.2, 20.1]), "by=random": ([1, 2, 8], [20.0, 20.4, 20.3])}
    redundancy = {one.name: (one.xs, one.ys) for one in pictures["batches_redundancy"].series}
    assert redundancy == {"by=star": ([2, 8], [1.25, 1.125]), "by=random": ([2, 8], [1.5, 1.375])}


def test_no_such_picture_without_micro_batches(tmp_path: Path) -> None:
    runs = read(*(write_run(tmp_path / str(seed), seed, f"seed={seed}") for seed in (0, 1)))
    assert not any(one.key.startswith("batches") for one in make_pictures(make_groups(runs)))
