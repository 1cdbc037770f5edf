"""Follows a run's ``metrics.jsonl`` as it grows: for the launching process, and for ``sargnn track --follow``."""

from __future__ import annotations

import threading
import time
from pathlib import Path

from sargnn.config.run import load
from sargnn.errors import ConfigError, SargnnError
from sargnn.tracking import files
from sargnn.tracking.inputs import read_inputs
from sargnn.tracking.mlflow.store import is_known
from sargnn.tracking.mlflow.target import target_of
from sargnn.tracking.progress import EpochProgress, say
from sargnn.tracking.sender import Sender
from sargnn.tracking.summary import INTERRUPTED, Summary, read_summary

_PAUSE_S = 0.5
_LAST_S = 10.0


class Follower(threading.Thread):
    """Reads ``metrics.jsonl`` as it grows: progress for the person, figures for MLflow, off the launching thread."""

    def __init__(self, run_dir: Path, epochs: int, first_epoch: int, sender: Sender) -> None:
        super().__init__(name="follower", daemon=True)
        self._epochs, self._sender, self._first_epoch = epochs, sender, first_epoch
        self._tail = files.MetricsTail(run_dir)
        self._ended = threading.Event()

    def run(self) -> None:
        with EpochProgress(self._epochs) as progress:
            try:
                self._follow(progress)
            except SargnnError as error:  # the run itself is not ended by what became of its figures
                say(f"warning: {error}")

    def _follow(self, progress: EpochProgress) -> None:
        while True:
            ended = self._ended.is_set()
            for row in self._tail.new_rows():
                if row["epoch"] < self._first_epoch:
                    progress.begin_after(row)
                    continue
                progress.update(row)
                self._sender.put(row)
            if ended:
                break
            progress.tick()
            self._ended.wait(0.1)

    def stop(self) -> None:
        """Read what is left and end the display."""
        self._ended.set()
        self.join()


def follow(run_dir: Path, ended: threading.Event) -> Summary | None:
    """Send a run's figures while it trains in other processes, until its summary is there; the summary, if there is one.

    Args:
        ended: set once nobody wants to wait any longer; what comes within ``_LAST_S`` is still sent.

    Raises:
        ConfigError: not a run folder, or one whose run has not begun.
    """
    if not (run_dir / files.CONFIG).is_file() or not (run_dir / files.INPUTS).is_file():
        raise ConfigError("No run has begun in this folder.", given=str(run_dir), hint="a run that has holds inputs.json")
    config, inputs = load(run_dir / files.CONFIG), read_inputs(run_dir)
    if not config.tracking.enabled:
        raise ConfigError(
            "The run's figures do not go to MLflow.", given="tracking.enabled=false", hint="sargnn track sends them later"
        )
    target = target_of(config, run_dir, inputs, same_run=True)
    first_epoch = inputs.first_epoch if is_known(run_dir, target.uri) else 0
    sender = Sender(target)
    follower = Follower(run_dir, config.epochs, first_epoch, sender)
    follower.start()
    deadline = float("inf")
    summary: Summary | None = None
    while summary is None and time.monotonic() < deadline:
        ended.wait(_PAUSE_S)
        if ended.is_set() and deadline == float("inf"):
            deadline = time.monotonic() + _LAST_S
        time.sleep(_PAUSE_S if ended.is_set() else 0)
        summary = read_summary(run_dir)
    follower.stop()
    sender.finish(summary or Summary(INTERRUPTED))
    return summary
