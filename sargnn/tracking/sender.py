"""Sends a run's figures to MLflow from a thread of its own, so that a slow or broken server holds nothing up.

What cannot be sent stays in the run folder: ``sargnn track RUN_DIR`` sends it later.
"""

from __future__ import annotations

import threading
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

from sargnn.errors import SargnnError
from sargnn.tracking.progress import say
from sargnn.tracking.summary import Summary

if TYPE_CHECKING:
    from sargnn.tracking.mlflow.target import Target

_GATHER_S = 1.0
_LAST_S = 20.0


class Sender(threading.Thread):
    """Takes rows of ``metrics.jsonl`` and, at the end, the summary.

    Args:
        target: the run in MLflow; None to send nothing.
    """

    def __init__(self, target: Target | None) -> None:
        super().__init__(name="mlflow", daemon=True)
        self._target = target
        self._rows: SimpleQueue[dict[str, Any]] = SimpleQueue()
        self._ended = threading.Event()
        self._summary: Summary | None = None
        if target is not None:
            self.start()

    def put(self, row: dict[str, Any]) -> None:
        """One epoch's figures."""
        self._rows.put(row)

    def finish(self, summary: Summary) -> None:
        """Send what is left and the summary; gives up waiting after ``_LAST_S``."""
        self._summary = summary
        self._ended.set()
        if self._target is not None:
            self.join(_LAST_S)
            if self.is_alive():
                say(f"warning: MLflow is slow; to send what is missing there: sargnn track {self._target.run_dir}")

    def run(self) -> None:
        from sargnn.tracking.mlflow.run import MlflowRun

        assert self._target is not None
        try:
            target = MlflowRun(self._target)
            while True:
                ended = self._ended.wait(_GATHER_S)
                rows = self._waiting()
                if rows:
                    target.log_epochs(rows)
                if ended:
                    break
            assert self._summary is not None
            target.finish(self._summary)
        except SargnnError as error:
            say(f"warning: {error}")
        except Exception as error:
            say(f"warning: MLflow did not take the figures: {(str(error) or type(error).__name__).splitlines()[0]}")
            say(f"  send them later: sargnn track {self._target.run_dir}")

    def _waiting(self) -> list[dict[str, Any]]:
        rows = []
        while True:
            try:
                rows.append(self._rows.get_nowait())
            except Empty:
                return rows
