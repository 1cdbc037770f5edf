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
    """A row per run: what ran, its last loss, its metrics, its time in seconds and its largest worker's peaks in bytes.

    The rows are named as ``sargnn compare`` names runs. A run that is under way has a row, too, with what there is of it.

    Args:
        runs: runs, or what names them: a name in ``runs/``, a run folder, a sweep, a pattern.

    Raises:
        ConfigError: no run is given, a word names none, or a configuration is damaged.
        SargnnError: another file of a run is damaged.
    """
    import pandas as pd

    from sargnn.report.comparison.figures import last_loss
    from sargnn.report.comparison.runs import name_runs, read_run
    from sargnn.tracking.find_runs import find_runs

    if isinstance(runs, str | os.PathLike | Run):
        runs = [runs]
    folders = [
        folder for given in runs for folder in ([given.folder] if isinstance(given, Run) else find_runs(os.fspath(given)))
    ]
    if not folders:
        raise ConfigError("There is no run to compare.", hint='sargnn.compare([run, "runs/NAME"])')
    rows = []
    for run in name_runs([read_run(folder) for folder in folders]):
        summary = run.summary.as_dict() if run.summary is not None else {}
        named = ("dataset", "model", "mode", "kernel", "world", "status")
        scores = ("metric", "val_metric", "test_metric", "test_metric_at_best_val")
        figures = (*scores, "epoch_time_s", "comm_wait_time_s", "comm_bytes_per_epoch")
        rows.append(
            {"run": run.name}
            | {key: summary.get(key) for key in named}
            | {"seed": run.seed, "epochs": len(run.epochs)}
            | {"loss": last_loss(run)}
            | {key: summary.get(key) for key in figures}
            | {key: max(summary.get(key) or [0]) or None for key in ("peak_train_bytes", "peak_rss_bytes")}
            | {"folder": str(run.folder.resolve())}
        )
    return pd.DataFrame(rows).set_index("run")
