"""Follows a run's ``metrics.jsonl`` as it grows: for the launching process, and for ``sargnn track --follow``."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

from sargnn.config import RunConfig, load
from sargnn.errors import ConfigError
from sargnn.tracking import files
from sargnn.tracking.mlflow import is_known
from sargnn.tracking.progress import EpochProgress
from sargnn.tracking.sender import Sender

_PAUSE_S = 0.5
_LAST_S = 10.0


class Follower(threading.Thread):
    """Reads ``metrics.jsonl`` as it grows: progress for the person, figures for MLflow, off the launching thread."""

    def __init__(self, config: RunConfig, run_dir: Path, sender: Sender, first_epoch: int) -> None:
        super().__init__(name="follower", daemon=True)
        self._config, self._sender = config, sender
        self._tail = files.MetricsTail(run_dir, first_epoch)
        self._ended = threading.Event()

    def run(self) -> None:
        with EpochProgress(self._config.epochs) as progress:
            while True:
                ended = self._ended.is_set()
                for row in self._tail.new_rows():
                    progress.update(row)
                    self._sender.put(row)
                if ended:
                    break
                self._ended.wait(0.1)

    def stop(self) -> None:
        """Read what is left and end the display."""
        self._ended.set()
        self.join()


def follow(run_dir: Path, ended: threading.Event) -> dict[str, Any]:
    """Send a run's figures while it trains in other processes, until its summary is there; the summary.

    Args:
        ended: set where nobody wants to wait any longer; what comes within ``_LAST_S`` is sent still.

    Raises:
        ConfigError: not a run folder, or one whose run has not begun.
    """
    if not (run_dir / files.CONFIG).is_file() or not (run_dir / files.INPUTS).is_file():
        raise ConfigError("No run has begun in this folder.", given=str(run_dir), hint="a run that has holds inputs.json")
    config, inputs = load(run_dir / files.CONFIG), files.read_json(run_dir / files.INPUTS)
    if not config.tracking.enabled:
        raise ConfigError(
            "The run's figures do not go to MLflow.", given="tracking.enabled=false", hint="sargnn track sends them later"
        )
    first_epoch = inputs.get("first_epoch", 0) if is_known(config, run_dir) else 0
    sender = Sender(config, run_dir, inputs["partition_stats"], same_run=True)
    follower = Follower(config, run_dir, sender, first_epoch)
    follower.start()
    deadline = float("inf")
    summary: dict[str, Any] = {}
    while not summary and time.monotonic() < deadline:
        ended.wait(_PAUSE_S)
        if ended.is_set() and deadline == float("inf"):
            deadline = time.monotonic() + _LAST_S
        time.sleep(_PAUSE_S if ended.is_set() else 0)
        if (run_dir / files.SUMMARY).exists():
            summary = files.read_json(run_dir / files.SUMMARY)
    follower.stop()
    sender.finish(summary or {"status": "interrupted"})
    return summary
