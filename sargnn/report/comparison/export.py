"""What ``sargnn compare`` prints for scripts: one JSON document, or a CSV table with a row per run."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
from collections.abc import Sequence
from typing import Any

from sargnn.report.comparison.charts import Picture
from sargnn.report.comparison.figures import FIGURES, Group, figures_of, parts_of
from sargnn.report.comparison.runs import LeftOut, Run, differences
from sargnn.report.comparison.settings import show_value

_LOSSES = "losses_depend_on"


def as_json(runs: Sequence[Run], groups: Sequence[Group], pictures: Sequence[Picture], out: Sequence[LeftOut]) -> str:
    """The document: ``runs``, ``groups`` (mean and spread of their figures), ``pictures`` (the series that are drawn),
    ``left_out``."""
    document = {
        "runs": [run_record(run, differs) for run, differs in zip(runs, differences(runs), strict=True)],
        "groups": [
            {
                "name": group.name,
                "members": [run.name for run in group.members],
                "seeds": group.seeds,
                "differs": group.differs,
                "figures": {k: None if spread is None else dataclasses.asdict(spread) for k, spread in group.figures.items()},
            }
            for group in groups
        ],
        "pictures": {picture.key: picture.as_dict() for picture in pictures},
        "left_out": [{"folder": str(skipped.folder), "reason": skipped.reason} for skipped in out],
    }
    return json.dumps(document, indent=1, default=str)


def run_record(run: Run, differs: dict[str, Any]) -> dict[str, Any]:
    """A run: its name, folder, dataset, metric, what it differs in, its figures, its workers' memory by parts, bytes, and
    the settings that changed its losses (``tracking.summary``)."""
    return {
        "name": run.name,
        "folder": str(run.folder),
        "dataset": run.dataset,
        "metric": run.metric,
        "seed": run.seed,
        "world": run.world,
        "differs": differs,
        "figures": figures_of(run),
        "memory_bytes": parts_of(run.result),
        "losses_depend_on": run.result.losses_depend_on or [],
    }


def as_csv(runs: Sequence[Run], groups: Sequence[Group]) -> str:
    """A row per run: name, folder, the number of its group, dataset, seed, metric, a column per setting that differs, figures,
    and at the end the settings that changed its losses.

    Seconds and bytes are plain numbers; what a run has not is empty.
    """
    differing = differences(runs, seed=False)
    settings = [key for key in dict.fromkeys(key for of_run in differing for key in of_run) if key != "dataset"]
    group_of = {id(run): number for number, group in enumerate(groups) for run in group.members}
    content = io.StringIO()
    writer = csv.writer(content, lineterminator="\n")
    writer.writerow(
        ["run", "folder", "group", "dataset", "seed", *settings, "metric", *(figure.key for figure in FIGURES), _LOSSES]
    )
    for run, differs in zip(runs, differing, strict=True):
        own = [show_value(differs[key]) if key in differs else "" for key in settings]
        figures = ["" if value is None else _number(value) for value in figures_of(run).values()]
        lossy = " ".join(setting["setting"] for setting in run.result.losses_depend_on or ())
        writer.writerow([run.name, run.folder, group_of[id(run)], run.dataset, run.seed, *own, run.metric, *figures, lossy])
    return content.getvalue()


def _number(value: float) -> str:
    return str(int(value)) if value.is_integer() and abs(value) > 1000 else repr(value)
