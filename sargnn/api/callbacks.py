"""Callbacks of ``sargnn.train``: what this process does after epochs and checkpoints of a run that other processes train."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from sargnn.errors import ConfigError
from sargnn.tracking.files import MetricsTail

_PAUSE_S = 0.1


class Callback:
    """What is called while ``sargnn.train`` runs; extend it. A function is a callback, too: its ``on_epoch``.

    The run goes on meanwhile. One that is to end does so after the step under way, with a checkpoint, as by Ctrl-C.
    """

    def on_epoch(self, row: dict[str, Any]) -> bool | None:
        """After an epoch.

        Args:
            row: its line of ``metrics.jsonl``: ``epoch``, ``loss``, ``val_metric`` where it was evaluated, and so on.

        Returns:
            True to end the run.
        """
        return None

    def on_checkpoint(self, folder: Path) -> bool | None:
        """After a checkpoint was written to ``folder``, if it is still there: ``checkpoint.keep`` of the newest are.

        Returns:
            True to end the run.
        """
        return None


class Callbacks(threading.Thread):
    """Calls them, ``Callback`` objects and functions, in the order in which they were given, from a thread of its own.

    Args:
        begun: the file in which the launching process writes the run's folder.
        end: ends the run.

    Attributes:
        stopped: whether a callback has ended the run.
        error: what a callback has raised, which ends the run, too.

    Raises:
        ConfigError: one of them is no callback.
    """

    def __init__(self, given: Sequence[Any], begun: Path, end: Callable[[], None]) -> None:
        super().__init__(name="callbacks", daemon=True)
        self._callbacks = [callback_of(each) for each in given]
        self._begun, self._end, self._over = begun, end, threading.Event()
        self.stopped = False
        self.error: BaseException | None = None

    def finish(self) -> None:
        """The run is over: what is left is called."""
        self._over.set()
        self.join()

    def run(self) -> None:
        try:
            while not self._begun.is_file():
                if self._over.wait(_PAUSE_S) and not self._begun.is_file():
                    return
            begun = json.loads(self._begun.read_text())
            folder, known = Path(begun["run_dir"]), set(begun["checkpoints"])
            tail = MetricsTail(folder, seen=begun["first_epoch"])
            while True:
                over = self._over.is_set()
                for row in tail.new_rows():
                    self._call("on_epoch", row)
                for path in sorted((folder / "checkpoints").glob("epoch_*")):
                    if path.name not in known:
                        known.add(path.name)
                        self._call("on_checkpoint", path)
                if over:
                    return
                self._over.wait(_PAUSE_S)
        except BaseException as error:  # it is raised where the run is asked for
            self.error = error
            self._end()

    def _call(self, name: str, value: Any) -> None:
        if self.stopped:
            return
        for callback in self._callbacks:
            if getattr(callback, name)(value) is True:
                self.stopped = True
        if self.stopped and not self._over.is_set():
            self._end()


class _Function(Callback):
    def __init__(self, function: Callable[[dict[str, Any]], Any]) -> None:
        self._function = function

    def on_epoch(self, row: dict[str, Any]) -> bool | None:
        result: bool | None = self._function(row)
        return result


def callback_of(given: Any) -> Callback:
    """A ``Callback``, from one or from a function. Raises ``ConfigError``."""
    if isinstance(given, Callback):
        return given
    if callable(given) and not isinstance(given, type):
        return _Function(given)
    raise ConfigError(
        "This is no callback.",
        given=repr(given)[:60],
        allowed="an object of a class that extends sargnn.Callback, or a function",
    )
