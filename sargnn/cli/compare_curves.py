"""``sargnn compare``'s options: means over seeds, and equality of losses."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sargnn.config import RunConfig, differing, flatten, load
from sargnn.errors import ConfigError
from sargnn.tracking.curves import deviation, mean_and_deviation
from sargnn.tracking.files import CONFIG

Run = dict[str, Any]
_NO_PART = ("seed", "run_name", "run_dir", "store_dir", "profile", "tracking.", "checkpoint.")
"""Settings in which runs of one row may differ."""
_DECIDES_NO_CURVE = ("epochs:", "model.order:")
_COLUMNS = ("test_metric", "test_metric_at_best_val", "test_acc_smoothed", "last_loss", "epoch_time_s")
_ACCURACIES = ("test_acc", "test_acc_at_best_val")


def over_seeds(runs: Sequence[Run]) -> list[Run]:
    """A row for runs that differ in the seed only: ``name``, ``seeds``, ``metric``, and (mean, standard deviation) or None of
    figures."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        settings = flatten(_config(run))
        kept = {key: value for key, value in settings.items() if not key.startswith(_NO_PART)}
        groups.setdefault(json.dumps(kept, sort_keys=True, default=str), []).append(run)
    rows = []
    for group in groups.values():
        seeds = sorted(_config(run).seed for run in group)
        if len(set(seeds)) < len(seeds):
            folders = ", ".join(run["run_dir"] for run in group)
            raise ConfigError("Two runs have the same settings and the same seed.", given=folders, hint="name one of them")
        figures = [{**run, "last_loss": run["losses"][-1] if run.get("losses") else None} for run in group]
        row = {key: mean_and_deviation([one.get(key) for one in figures]) for key in (*_COLUMNS, *_ACCURACIES)}
        rows.append({"name": _without_seed(group[0]["name"]), "seeds": seeds, "metric": group[0].get("metric"), **row})
    return rows


def _without_seed(name: str) -> str:
    return re.sub(r"-s\d+$|\s*\bseed=\d+", "", name).strip() or name


def seeds_table(rows: Sequence[Run]) -> None:
    """Print them to stdout: mean, and below it the standard deviation."""
    from rich.console import Console
    from rich.table import Table

    heads = {"test_metric": "test, last", "test_metric_at_best_val": "at best val", "test_acc_smoothed": "smoothed"}
    heads |= {"last_loss": "last loss", "epoch_time_s": "epoch s"}
    shown = [key for key in _COLUMNS if any(row[key] is not None for row in rows)]
    table = Table(title="mean and standard deviation over seeds")
    table.add_column("runs", overflow="fold")
    table.add_column("seeds", justify="right", no_wrap=True)
    named = any(row["metric"] not in (None, "accuracy") for row in rows)
    if named:
        table.add_column("metric", no_wrap=True)
    for key in shown:
        table.add_column(heads[key], justify="right", no_wrap=True)
    for row in rows:
        cells = ["-" if (found := row[key]) is None else f"{found[0]:.4f}\n+-{found[1]:.4f}" for key in shown]
        table.add_row(row["name"], str(len(row["seeds"])), *([row["metric"] or "-"] if named else []), *cells)
    Console().print(table)


def losses_equal(runs: Sequence[Run]) -> bool:
    """Print how far each run's losses are from the first one's; whether all are within the exactness contract.

    Raises:
        ConfigError: fewer than two runs, or runs whose settings that decide losses differ.
    """
    from sargnn.tracking.progress import say

    if len(runs) < 2:
        raise ConfigError("Losses are compared between finished runs.", given=f"{len(runs)}", allowed="at least 2")
    first, wanted = _config(runs[0]), runs[0]
    fine = True
    for run in runs[1:]:
        changed = [line for line in differing(first, _config(run)) if not line.startswith(_DECIDES_NO_CURVE)]
        if changed:
            raise ConfigError(
                "Runs differ in what decides their losses.", given=f"{run['run_dir']}: {'; '.join(changed)}",
                hint=f"compare it with runs of the settings of {wanted['run_dir']}",
            )  # fmt: skip
        found = deviation(run["losses"], wanted["losses"], first.precision)
        fine &= found.within
        same = "the same to the last bit" if found.bits_equal else f"largest difference {found.relative:.2e}"
        where = "" if found.bits_equal else (
            f" of {'its' if first.precision == 'fp64' else 'the first'} loss, in epoch {found.epoch}, "
            f"{'within' if found.within else 'BEYOND'} {found.tolerance:.0e}"
        )  # fmt: skip
        say(f"{run['name']} ({run['mode']}, world {run['world']}): {found.epochs} epochs, {same}{where}")
    say(f"losses set against {wanted['name']} ({wanted['mode']}, world {wanted['world']}): {'equal' if fine else 'NOT equal'}")
    return fine


def _config(run: Run) -> RunConfig:
    return load(Path(run["run_dir"]) / CONFIG)
