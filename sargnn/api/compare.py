"""``sargnn.compare``: runs side by side, as a table of pandas."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING

from sargnn.api.run import Run
from sargnn.errors import ConfigError

if TYPE_CHECKING:
    import pandas as pd


def compare(runs: Iterable[Run | str | os.PathLike[str]]) -> pd.DataFrame:
    """A row per run: what ran, its last loss, its metrics, its time in seconds and its largest worker's peak in bytes.

    Args:
        runs: runs, or their folders.

    Raises:
        ConfigError: no run is given, or a folder holds none.
    """
    import pandas as pd

    if isinstance(runs, str | os.PathLike | Run):
        runs = [runs]
    found = [run if isinstance(run, Run) else Run(run) for run in runs]
    if not found:
        raise ConfigError("There is no run to compare.", hint='sargnn.compare([run, "runs/NAME"])')
    rows = []
    for run in found:
        summary, losses = run.summary, run.losses
        named = ("dataset", "model", "mode", "kernel", "world", "status")
        scores = ("metric", "val_metric", "test_metric", "test_metric_at_best_val")
        figures = (*scores, "epoch_time_s", "comm_wait_time_s", "comm_bytes_per_epoch")
        rows.append(
            {"run": run.name} | {key: summary.get(key) for key in named} | {"epochs": len(losses)}
            | {"loss": losses[-1] if losses else None} | {key: summary.get(key) for key in figures}
            | {"peak_train_bytes": max(summary.get("peak_train_bytes") or [0]) or None, "folder": str(run.folder)}
        )  # fmt: skip
    return pd.DataFrame(rows).set_index("run")
