"""The process that launches a run for this one: started, listened to, interrupted, ended.

It is a process of its own so that a script needs no guard around its main part, code from standard input and notebooks work,
and neither this process's environment nor its signal handlers change. What it says goes to standard error, in a notebook to the
cell. It ends when this process ends, however that happens.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from sargnn import errors
from sargnn.errors import ConfigError, SargnnError
from sargnn.run.child import BEGUN
from sargnn.tracking.files import MetricsTail
from sargnn.tracking.progress import EVERY_S

_OF_A_LAUNCHER = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
_OF_A_TERMINAL = ("FORCE_COLOR", "CLICOLOR_FORCE", "TTY_COMPATIBLE", "TTY_INTERACTIVE")
"""A notebook's process has some of them; a bar that is drawn over and over would be a line of the cell each time."""


def ask(request: dict[str, Any], *, quiet: bool, callbacks: Sequence[Any] = ()) -> dict[str, Any]:
    """Have a run, or predictions, made; the answer, or where a callback has ended the run, its folder.

    Args:
        request: as ``sargnn.run.child`` reads it.
        callbacks: what is called while a run trains (``Callback``).

    Raises:
        SargnnError: what went wrong there, of the same class.
        KeyboardInterrupt: this process was interrupted; the run has written a checkpoint where it could.
    """
    with tempfile.TemporaryDirectory(prefix="sargnn-") as scratch:
        asked, answered = Path(scratch) / "request.json", Path(scratch) / "answer.json"
        asked.write_text(json.dumps(request))
        command = [sys.executable, "-m", "sargnn.run.child", str(asked), str(answered)]
        called: list[Callbacks] = []

        def listen(process: subprocess.Popen[str]) -> Callbacks:
            called.append(Callbacks(callbacks, Path(scratch) / BEGUN, lambda: process.send_signal(signal.SIGTERM)))
            return called[0]

        shown = None if quiet else sys.stdout if in_notebook() else sys.stderr
        code, interrupted = _run(command, shown, listen if callbacks else None)
        if called and called[0].error is not None:
            raise called[0].error
        if not answered.exists():
            if interrupted:
                raise KeyboardInterrupt("Interrupted before the run had begun.")
            raise SargnnError("The process that launches the run ended without an answer.", given=f"exit code {code}")
        answer: dict[str, Any] = json.loads(answered.read_text())
        if called and called[0].stopped and answer.get("signal") == signal.SIGTERM:
            return {"run_dir": json.loads((Path(scratch) / BEGUN).read_text())["run_dir"]}
    if "error" not in answer:
        return answer
    if answer.get("signal") == signal.SIGINT:
        raise KeyboardInterrupt(answer["text"])
    known = getattr(errors, answer["error"], SargnnError)
    error: SargnnError = (known if isinstance(known, type) and issubclass(known, SargnnError) else SargnnError)("")
    error.args = (answer["text"],)
    raise error


def _run(
    command: list[str], shown: IO[str] | None, listen: Callable[[subprocess.Popen[str]], Callbacks] | None = None
) -> tuple[int, bool]:
    """Its exit code, and whether there was an interrupt: at the first it gets the signal, at the second it is killed.
    ``listen`` makes what is called meanwhile, which is started here and finished.
    """
    directly = shown is not None and _has_terminal(shown)
    # Its own session: Ctrl-C reaches it through this process only. Its standard input closes with this process.
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=None if directly else subprocess.PIPE,
        start_new_session=True,
        env=environment(os.environ, directly=directly),
        text=True,
        errors="replace",
    )
    interrupted = over = False
    callbacks = listen(process) if listen is not None else None
    if callbacks is not None:
        callbacks.start()
    try:
        while True:
            try:
                for line in process.stderr or ():
                    if shown is not None:
                        over = show_line(line, shown, over)
                if over:
                    print(file=shown)
                return process.wait(), interrupted
            except KeyboardInterrupt:
                if interrupted:
                    raise
                interrupted = True
                process.send_signal(signal.SIGINT)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        if callbacks is not None:
            callbacks.finish()
        for pipe in (process.stdin, process.stderr):
            if pipe is not None:
                pipe.close()


def show_line(line: str, shown: IO[str], over: bool) -> bool:
    """Print a line; in a notebook an epoch's line takes the place of the epoch before. Whether the next one may do so.
    ``over``: the line before is an epoch's, and not ended.
    """
    epoch = in_notebook() and line.startswith("epoch ")
    begin = ("\r" if epoch else "\n") if over else ""
    print(f"{begin}{line.rstrip() if epoch else line}", end="", file=shown, flush=True)
    return epoch


def environment(given: Mapping[str, str], *, directly: bool) -> dict[str, str]:
    """This process's, with the modules that it finds, and without what says that it is a worker of something.

    ``directly``: what is said goes to a terminal; else nothing says that it does.
    """
    left_out = (*_OF_A_LAUNCHER, *(() if directly else _OF_A_TERMINAL))
    kept = {name: value for name, value in given.items() if name not in left_out}
    places = [os.path.abspath(path) for path in sys.path if path and os.path.isdir(path)]
    often = {EVERY_S: "0.5"} if in_notebook() else {}
    return kept | {"PYTHONPATH": os.pathsep.join(places), "PYTHONUNBUFFERED": "1"} | often


def _has_terminal(stream: IO[str]) -> bool:
    """Whether the child may write there itself, with a progress bar: a terminal that is this process's standard error."""
    try:
        return stream.isatty() and stream.fileno() == 2
    except (OSError, ValueError, AttributeError):
        return False


def in_notebook() -> bool:
    """Whether a cell of a notebook shows what is printed."""
    shell = sys.modules.get("IPython")
    ipython = shell.get_ipython() if shell is not None else None
    return ipython is not None and hasattr(ipython, "kernel")


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
