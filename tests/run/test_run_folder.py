"""A run folder's files: read as they were written, refused with the file's name where they are damaged; and its lock."""

from __future__ import annotations

import errno
import json
import signal
import stat
from pathlib import Path
from typing import Any

import pytest

from sargnn.cli.main import main as sargnn
from sargnn.errors import ConfigError, SargnnError
from sargnn.run.job import begin, needed_files
from sargnn.run.local import Interrupted
from sargnn.run.run_folder import hold_run_dir
from sargnn.tracking import files
from sargnn.tracking.files import Inputs, read_inputs, write_inputs
from sargnn.tracking.mlflow.store import database_of, default_uri
from sargnn.tracking.summary import Summary, read_summary, write_summary
from sargnn.training import checkpoint
from tests.parity.covering import spread

FINISHED: dict[str, Any] = {
    "status": "finished", "losses": [2.0, 1.5], "model": "sage", "dataset": "synthetic", "mode": "sar", "world": 2,
    "epoch_time_s": 0.5, "comm_wait_time_s": 0, "comm_bytes_per_epoch": 100, "peak_train_bytes": [10, 20],
    "test_acc_at_best_val": None, "profile_s": {"rest": [0.1, 0.2]}, "a_later_key": {"kept": [1]},
}  # fmt: skip
ROW = {"epoch": 0, "loss": 2.0, "epoch_time_s": 0.5, "val_acc": None, "ranks": {"sent_bytes": [1, 2]}}
DEEP = "[" * 100_000
DAMAGES: dict[str, tuple[str, str]] = {
    "words for numbers": ("summary.json", json.dumps(FINISHED | {"epoch_time_s": "fast"})),
    "words in a list": ("summary.json", json.dumps(FINISHED | {"losses": [2.0, "less"]})),
    "a list for a number": ("summary.json", json.dumps(FINISHED | {"world": [2]})),
    "a list for the mapping": ("summary.json", "[1, 2]"),
    "a number for a mapping": ("summary.json", json.dumps(FINISHED | {"profile_s": 3})),
    "an unknown status": ("summary.json", json.dumps(FINISHED | {"status": "well"})),
    "finished without figures": ("summary.json", '{"status": "finished"}'),
    "deeply nested": ("summary.json", DEEP),
    "half a file": ("summary.json", '{"status": "fin'),
    "no text": ("summary.json", "\udcff"),
    "a deep line": ("metrics.jsonl", DEEP + "\n"),
    "a word for a loss": ("metrics.jsonl", json.dumps(ROW | {"loss": "small"}) + "\n"),
    "a list for an epoch": ("metrics.jsonl", "[1]\n"),
    "a list for ranks": ("metrics.jsonl", json.dumps(ROW | {"ranks": [1]}) + "\n"),
    "no loss": ("metrics.jsonl", '{"epoch": 0}\n'),
}


@pytest.fixture
def run_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    assert sargnn(["slurm", "run_dir=run", "tracking=none"]) == 0
    run_dir = tmp_path / "run"
    (run_dir / "summary.json").write_text(json.dumps(FINISHED))
    (run_dir / "metrics.jsonl").write_text(json.dumps(ROW) + "\n")
    return run_dir


@pytest.mark.parametrize(("verb", "damage"), spread(["compare", "track", "status", "end"], list(DAMAGES)))
def test_a_damaged_file_is_named_in_one_message(
    run_dir: Path, damage: str, verb: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from sargnn.run import job

    name, content = DAMAGES[damage]
    (run_dir / name).write_text(content, errors="surrogateescape")
    capsys.readouterr()
    if verb == "end":
        monkeypatch.setattr("sys.argv", ["job", "end", str(run_dir)])
        if name == "metrics.jsonl":
            (run_dir / "summary.json").unlink()
        assert job.main() == 1
    else:
        words = {"compare": ["compare", "run"], "track": ["track", "run"], "status": ["slurm", "--status", "run"]}[verb]
        assert sargnn(words) == 1
    message = capsys.readouterr().err
    assert str(Path("run") / name) in message and "next:" in message


def test_a_summary_is_read_as_it_was_written(run_dir: Path) -> None:
    summary = read_summary(run_dir)
    assert summary is not None and summary.losses == [2.0, 1.5] and summary.comm_wait_time_s == 0
    assert summary.extra == {"a_later_key": {"kept": [1]}} and summary.test_acc is None and summary.is_measured
    write_summary(run_dir, summary)
    again = json.loads((run_dir / "summary.json").read_text())
    assert {key: again[key] for key in FINISHED} == FINISHED and "error" not in again and again["test_acc"] is None
    assert read_summary(run_dir) == summary
    write_summary(run_dir, Summary("failed", error="why"))
    assert read_summary(run_dir) == Summary("failed", error="why")
    (run_dir / "summary.json").unlink()
    assert read_summary(run_dir) is None


def test_what_lies_below_the_working_folder_moves_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So a host without a shared file system finds its stores; what lies elsewhere stays where it is."""
    here, there = tmp_path / "here", tmp_path / "there"
    (here / "runs" / "a").mkdir(parents=True)
    monkeypatch.chdir(here)
    write_inputs(here / "runs" / "a", Inputs("stores/p", 1.5, checkpoint=str(tmp_path / "elsewhere")))
    assert read_inputs(Path("runs/a")).partition == str(here / "stores" / "p")
    here.rename(there)
    monkeypatch.chdir(tmp_path)
    found = read_inputs(there / "runs" / "a")
    assert found.partition == str(there / "stores" / "p") and found.checkpoint == str(tmp_path / "elsewhere")


def test_the_files_of_a_rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own part, and the file that the model's class is in."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(
        "import torch\n\n\nclass Mean(torch.nn.Module):\n    def __init__(self, in_feats, out_feats):\n"
        "        super().__init__()\n        self.linear = torch.nn.Linear(in_feats, out_feats)\n\n"
        "    def forward(self, graph, x):\n        return self.linear(x)\n"
    )
    words = ["model=custom", "model.target=mine.py:Mean", "dataset=synthetic", "dataset.num_nodes=90", "world=2"]
    assert sargnn(["slurm", *words, "run_dir=run", "tracking=none"]) == 0
    assert begin(tmp_path / "run", {}) == 0
    found = [path.relative_to(tmp_path) for path in needed_files(tmp_path / "run", [1])]
    assert Path("mine.py") in found and all((tmp_path / path).is_file() for path in found)
    assert {path.parent.name for path in found if path.suffix == ".npy"} == {"part_001"}
    with pytest.raises(ConfigError, match="No such rank"):
        needed_files(tmp_path / "run", [2])


def test_inputs_are_read_as_they_were_written(tmp_path: Path) -> None:
    partition, checkpoint = str(tmp_path / "stores" / "p"), str(tmp_path / "checkpoints" / "epoch_000002")
    inputs = Inputs(partition, 1.5, "abc", None, checkpoint, 2, {"embeddings": True}, {"partition.cut": [1]})
    write_inputs(tmp_path, inputs)
    assert read_inputs(tmp_path) == inputs
    for content in (
        "{}",
        '{"partition": [3], "started_at": 1}',
        '{"partition": "p", "started_at": 1, "partition_stats": []}',
        "[]",
    ):
        (tmp_path / "inputs.json").write_text(content)
        with pytest.raises(SargnnError, match="inputs.json"):
            read_inputs(tmp_path)


def test_a_secret_is_for_this_user_only(tmp_path: Path) -> None:
    files.write_secret(tmp_path / ".token", "one")
    files.write_secret(tmp_path / ".token", "two")
    assert (tmp_path / ".token").read_text() == "two"
    assert stat.S_IMODE((tmp_path / ".token").stat().st_mode) == 0o600


def test_a_held_folder_is_refused_until_it_is_released(tmp_path: Path) -> None:
    lock = hold_run_dir(tmp_path)
    with pytest.raises(ConfigError, match="under way"):
        hold_run_dir(tmp_path)
    lock.release()
    hold_run_dir(tmp_path).release()


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_is_no_obstacle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], number: int
) -> None:
    def flock(fd: int, operation: int) -> None:
        raise OSError(number, "no locks here")

    monkeypatch.setattr("fcntl.flock", flock)
    for _ in range(2):
        hold_run_dir(tmp_path)
        assert "has no locks" in capsys.readouterr().err


def test_the_store_of_mlflow_is_spelled_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert database_of(default_uri()) == tmp_path / "mlflow.db" and database_of("http://somewhere") is None
    package = Path(files.__file__).parent.parent
    assert [path.name for path in package.rglob("*.py") if "mlflow.db" in path.read_text()] == ["store.py"]


def test_what_an_interrupted_run_is_offered(tmp_path: Path) -> None:
    def said() -> str:
        return str(Interrupted(signal.SIGINT, tmp_path))

    assert "no epoch" in said() and "no checkpoint" in said() and "resume" not in said()
    (tmp_path / files.METRICS).touch()
    assert "figures so far" in said() and "resume" not in said()
    (tmp_path / checkpoint.FOLDER / "epoch_000002").mkdir(parents=True)
    assert f"resume={tmp_path}" in said() and "no checkpoint" not in said()
