"""TensorBoard, Weights & Biases (offline) and a tracker of one's own get each epoch once, and never decide how a run ends."""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.in_process import sargnn_here as run
from tests.processes import run_command

TRAIN = ["train", "debug=tiny", "epochs=3", "world=2", "checkpoint.every=1", "eval_every=1"]
pytestmark = pytest.mark.filterwarnings("ignore")  # of the trackers' own


def done(folder: Path, *words: str) -> str:
    result = run(folder, *words)
    assert result.returncode == 0 and "warning" not in result.stderr, result.stdout + result.stderr
    return result.stdout


def losses(run_dir: Path) -> list[float]:
    return [json.loads(line)["loss"] for line in (run_dir / "metrics.jsonl").read_text().splitlines()]


def test_tensorboard(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    done(tmp_path, *TRAIN, "tracking=tensorboard", "run_dir=one")
    said = done(tmp_path, "train", "resume=one", "epochs=5")
    assert "sargnn ui" not in said
    (file,) = (tmp_path / "one" / "tensorboard").iterdir()
    events = EventAccumulator(str(file))
    events.Reload()
    sent = {name: [(event.step, event.value) for event in events.Scalars(name)] for name in events.Tags()["scalars"]}
    expected = losses(tmp_path / "one")
    assert [step for step, _ in sent["loss"]] == list(range(5))
    assert [value for _, value in sent["loss"]] == pytest.approx(expected, rel=1e-6)
    summary = json.loads((tmp_path / "one" / "summary.json").read_text())
    assert sent["val_acc"][-1][1] == pytest.approx(summary["val_metric"], rel=1e-6)
    assert sent["run/test_acc"][0][1] == pytest.approx(summary["test_metric"], rel=1e-6)
    assert b"optim.lr" in events.Tensors("settings/text_summary")[0].tensor_proto.string_val[0]


def records(content: bytes) -> Iterator[bytes]:
    """Of a file of W&B: LevelDB's log format behind a header of 7 bytes. Blocks of 32 KiB have records of a checksum (4 bytes),
    a length (2) and a type (1): whole, first, middle or last part."""
    place, parts = 7, b""
    while place + 7 <= len(content):
        if 32768 - place % 32768 < 7:
            place += 32768 - place % 32768
            continue
        length, kind = int.from_bytes(content[place + 4 : place + 6], "little"), content[place + 6]
        parts += content[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):
            yield parts
            parts = b""


@pytest.mark.long
def test_wandb_offline(tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    from wandb.proto import wandb_internal_pb2

    offline = ["tracking=wandb", "tracking.offline=true", "tracking.experiment=mine", "run_dir=one"]
    for words in ([*TRAIN, *offline], ["train", "resume=one", "epochs=5"]):  # W&B starts a server in each process
        result = run_command([sys.executable, "-m", "sargnn.cli.main", *words], tmp_path)
        assert result.returncode == 0 and "warning" not in result.stderr, result.stdout + result.stderr
    steps: dict[int, float] = {}
    config: dict[str, Any] = {}
    names, final = set[str](), dict[str, str]()
    for file in sorted((tmp_path / "one" / "wandb").glob("offline-run-*/*.wandb")):
        for data in records(file.read_bytes()):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(data)
            names |= {record.run.project} if record.HasField("run") else set()
            config |= {item.key: item.value_json for item in record.run.config.update}
            items = {"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in record.history.item}
            if "loss" in items:
                assert record.history.step.num not in steps
                steps[record.history.step.num] = items["loss"]
            final |= {"/".join(item.nested_key) or item.key: item.value_json for item in record.summary.update}
    assert [steps[step] for step in range(5)] == pytest.approx(losses(tmp_path / "one"), rel=1e-6)
    assert names == {"mine"} and json.loads(config["epochs"]) in ("3", "5") and "test_acc" in final
    assert json.loads((tmp_path / "one" / "wandb.json").read_text())["epochs"] == 5


OWN = """
    import json
    from sargnn.tracking.tracker import Tracker

    class Lines(Tracker):
        title = "my lines"

        def __init__(self, target):
            self.path = target.run_dir / "lines.txt"

        def log_epochs(self, rows):
            with self.path.open("a") as file:
                for row in rows:
                    file.write(f"{row['epoch']} {row['loss']}\\n")

        def finish(self, summary):
            with self.path.open("a") as file:
                file.write(summary.status)

    class Broken(Lines):
        def log_epochs(self, rows):
            raise RuntimeError("no room")

    class NoTracker:
        pass
"""


def test_a_tracker_of_ones_own(tmp_path: Path) -> None:
    (tmp_path / "lines.py").write_text(textwrap.dedent(OWN))
    done(tmp_path, *TRAIN, "tracking.enabled=true", "tracking.name=lines.py:Lines", "run_dir=one")
    expected = [f"{epoch} {loss}" for epoch, loss in enumerate(losses(tmp_path / "one"))]
    assert (tmp_path / "one" / "lines.txt").read_text().splitlines() == [*expected, "finished"]
    result = run(tmp_path, *TRAIN, "tracking.enabled=true", "tracking.name=lines.py:Broken", "run_dir=two")
    assert result.returncode == 0 and "my lines " in result.stderr and ": no room" in result.stderr
    result = run(tmp_path, *TRAIN, "tracking.enabled=true", "tracking.name=lines.py:NoTracker", "run_dir=three")
    assert result.returncode == 1 and "names no tracker" in result.stderr and "Traceback" not in result.stderr
    result = run(tmp_path, *TRAIN, "tracking.name=lines", "run_dir=three")
    assert result.returncode == 1 and "mlflow, tensorboard, wandb, FILE.py:NAME" in result.stderr


def test_a_package_that_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    result = run(tmp_path, *TRAIN, "tracking=wandb", "run_dir=one")
    assert result.returncode == 1 and "wandb" in result.stderr and "pip install wandb" in result.stderr
