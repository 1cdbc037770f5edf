"""A run in TensorBoard: event files in ``RUN_DIR/tensorboard``, which ``tensorboard --logdir runs`` shows."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from typing import Any

from sargnn.tracking.files import MetricsTail
from sargnn.tracking.mlflow.figures import EpochFigures, settled_figures, single_figures
from sargnn.tracking.summary import Summary
from sargnn.tracking.target import Target
from sargnn.tracking.tracker import Tracker

FOLDER = "tensorboard"


class TensorboardRun(Tracker):
    """Figures of every epoch as scalars, at the epoch as step, and the settings as a text.

    A run that goes on has its events written anew from ``metrics.jsonl``: each epoch is there once, in one file.
    """

    title = "TensorBoard"

    def __init__(self, target: Target) -> None:
        from torch.utils.tensorboard import SummaryWriter

        folder = target.run_dir / FOLDER
        shutil.rmtree(folder, ignore_errors=True)
        self._ranks, self._figures, self._seen = target.ranks, EpochFigures(ranks=target.ranks), -1
        self._writer: Any = SummaryWriter(str(folder))
        self._writer.add_text("settings", "\n".join(f"    {key}: {value}" for key, value in target.settings.items()))
        self.log_epochs(list(MetricsTail(target.run_dir).new_rows()))

    def log_epochs(self, rows: Sequence[Mapping[str, Any]]) -> None:
        for row in rows:
            if (epoch := int(row["epoch"])) <= self._seen:
                continue
            self._seen = epoch
            for name, value in self._figures.add(row).items():
                self._writer.add_scalar(name, value, epoch)
        self._writer.flush()

    def finish(self, summary: Summary) -> None:
        single = settled_figures(summary) | single_figures(summary, ranks=self._ranks)
        for name, value in single.items():
            self._writer.add_scalar(f"run/{name}", value, max(self._seen, 0))
        self._writer.add_text("summary", f"    {json.dumps({'status': summary.status, 'error': summary.error} | single)}")
        self._writer.close()
