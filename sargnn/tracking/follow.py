"""Follows a run's ``metrics.jsonl`` as it grows, for the launching process and ``sargnn track --follow``: shows progress and
sends figures to a tracker, each from a thread of its own, so that a slow or broken server holds nothing up.

What cannot be sent stays in the run folder: ``sargnn track RUN_DIR`` sends it later.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from sargnn.config.run import load
from sargnn.errors import ConfigError, SargnnError
from sargnn.tracking import files
from sargnn.tracking.mlflow.store import absolute, known_stores
from sargnn.tracking.progress import EpochProgress, say
from sargnn.tracking.summary import INTERRUPTED, Summary, read_summary
from sargnn.tracking.target import Target, target_of
from sargnn.tracking.tracker import tracker_class

_PAUSE_S, _LAST_ROWS_S = 0.5, 10.0
_GATHER_S, _LAST_SENT_S = 1.0, 20.0


class Sender(threading.Thread):
    """Takes rows of ``metrics.jsonl`` and, at the end, the summary. Without a target it sends nothing."""

    def __init__(self, target: Target | None) -> None:
        super().__init__(name="tracker", daemon=True)
        self._target = target
        self._tracker: Any = None if target is None else tracker_class(target.tracker)
        self._rows: SimpleQueue[dict[str, Any]] = SimpleQueue()
        self._ended = threading.Event()
        self._summary: Summary | None = None
        if target is not None:
            self.start()

    def put(self, row: dict[str, Any]) -> None:
        self._rows.put(row)

    def finish(self, summary: Summary) -> None:
        """Gives up waiting after ``_LAST_SENT_S``."""
        self._summary = summary
        self._ended.set()
        if self._target is not None:
            self.join(_LAST_SENT_S)
            if self.is_alive():
                say(f"warning: {self._tracker.title} is slow; {self._tracker.later.format(self._target.run_dir)}")

    def run(self) -> None:
        assert self._target is not None
        try:
            target = self._tracker(self._target)
            while True:
                ended = self._ended.wait(_GATHER_S)
                rows = [self._rows.get_nowait() for _ in range(self._rows.qsize())]
                if rows:
                    target.log_epochs(rows)
                if ended:
                    break
            assert self._summary is not None
            target.finish(self._summary)
        except SargnnError as error:
            say(f"warning: {error}")
        except BaseException as error:  # also an end of input that a tracker asked for
            what = (str(error) or type(error).__name__).splitlines()[0]
            say(f"warning: {self._tracker.title} did not take the figures: {what}")
            say(f"  {self._tracker.later.format(self._target.run_dir)}")


class Follower(threading.Thread):
    def __init__(self, run_dir: Path, epochs: int, first_epoch: int, sender: Sender) -> None:
        super().__init__(name="follower", daemon=True)
        self._epochs, self._sender, self._first_epoch = epochs, sender, first_epoch
        self._tail = files.MetricsTail(run_dir)
        self._ended = threading.Event()

    def run(self) -> None:
        with EpochProgress(self._epochs) as progress:
            try:
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
            except SargnnError as error:  # the run itself is not ended by what became of its figures
                say(f"warning: {error}")

    def stop(self) -> None:
        self._ended.set()
        self.join()


def follow(run_dir: Path, ended: threading.Event) -> Summary | None:
    """Send a run's figures while it trains in other processes; its summary, if there is one.

    ``ended``: set once nobody wants to wait any longer; what comes within ``_LAST_ROWS_S`` is still sent. Raises
    ``ConfigError``: not a run folder, or one whose run has not begun.
    """
    if not (run_dir / files.CONFIG).is_file() or not (run_dir / files.INPUTS).is_file():
        raise ConfigError("No run has begun in this folder.", given=str(run_dir), hint="a run that has holds inputs.json")
    config, inputs = load(run_dir / files.CONFIG), files.read_inputs(run_dir)
    if not config.tracking.enabled:
        raise ConfigError(
            "The run's figures go to no tracker.", given="tracking.enabled=false", hint="sargnn track sends them later"
        )
    target = target_of(config, run_dir, inputs, same_run=True)
    of_mlflow = config.tracking.to_mlflow
    first_epoch = 0 if of_mlflow and absolute(target.uri) not in known_stores(run_dir) else inputs.first_epoch
    sender = Sender(target)
    follower = Follower(run_dir, config.epochs, first_epoch, sender)
    follower.start()
    deadline = float("inf")
    summary: Summary | None = None
    while summary is None and time.monotonic() < deadline:
        ended.wait(_PAUSE_S)
        if ended.is_set() and deadline == float("inf"):
            deadline = time.monotonic() + _LAST_ROWS_S
        time.sleep(_PAUSE_S if ended.is_set() else 0)
        summary = read_summary(run_dir)
    follower.stop()
    sender.finish(summary or Summary(INTERRUPTED))
    return summary
