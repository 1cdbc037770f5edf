"""A run for another process, which asks for it in a file and finds the answer in another (``sargnn.api.process``).

    python -m sargnn.run.child REQUEST.json ANSWER.json

So the asking process, a notebook or a script, needs no guard around its main part, keeps its environment and its signals, and
may go on with torch as it likes. Standard input is a pipe that closes when the asking process ends, however it ends: the run is
then ended as by SIGTERM, with a checkpoint.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

from sargnn.config.run import parse
from sargnn.errors import SargnnError
from sargnn.tracking.files import write_json

BEGUN = "begun.json"
"""Beside the request: what a run's folder is, once it has one."""


def main() -> int:
    """Do what the request says; 0 also where it fails in a way that the answer tells."""
    request_path, answer_path = map(Path, sys.argv[1:])

    def end_with_caller() -> None:
        while os.read(0, 1024):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=end_with_caller, name="lifeline", daemon=True).start()
    answer: dict[str, Any]
    try:
        answer = _do(json.loads(request_path.read_text()), request_path.with_name(BEGUN))
    except SargnnError as error:
        answer = {"error": type(error).__name__, "text": str(error), "signal": getattr(error, "signal_number", None)}
    except KeyboardInterrupt:
        answer = {"error": "Interrupted", "text": "Interrupted by SIGINT.", "signal": int(signal.SIGINT)}
    write_json(answer_path, answer)
    return 0


def _do(request: dict[str, Any], begun_path: Path) -> dict[str, Any]:
    """``begun_path``: gets the run's folder, its first epoch and the checkpoints that it has."""
    config = parse(request["config"])
    if request["verb"] == "train":
        from sargnn.run.local import train

        resume = request["resume"]

        def say_where(folder: Path, epoch: int) -> None:
            checkpoints = [path.name for path in (folder / "checkpoints").glob("epoch_*")]
            write_json(begun_path, {"run_dir": str(folder), "first_epoch": epoch, "checkpoints": checkpoints})

        _, run_dir = train(config, resume=Path(resume) if resume else None, on_begin=say_where)
        return {"run_dir": str(run_dir)}
    from sargnn.run.predict import predict

    folder = Path(request["folder"])
    predict(config, Path(request["run_dir"]), folder, which=request["which"], **request["how"], **request["asked"])
    return {"folder": str(folder)}


if __name__ == "__main__":
    sys.exit(main())
