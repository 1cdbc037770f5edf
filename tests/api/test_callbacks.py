"""Callbacks of ``sargnn.train`` get every epoch and checkpoint once, and may end the run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import sargnn

TINY = ("debug=tiny", "world=2", "tracking=none", "checkpoint.every=2")


class Watch(sargnn.Callback):
    def __init__(self, last: int | None = None) -> None:
        self.epochs: list[tuple[int, float]] = []
        self.checkpoints: list[str] = []
        self.last = last

    def on_epoch(self, row: dict[str, Any]) -> bool | None:
        self.epochs.append((row["epoch"], row["loss"]))
        return row["epoch"] == self.last

    def on_checkpoint(self, folder: Path) -> None:
        assert folder.is_dir()
        self.checkpoints.append(folder.name)


def test_every_epoch_and_checkpoint_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    watch, seen = Watch(), []
    run = sargnn.train(*TINY, epochs=4, quiet=True, callbacks=[watch, lambda row: seen.append(row["epoch"])])
    assert watch.epochs == list(enumerate(run.losses)) and seen == [0, 1, 2, 3]
    assert sorted(watch.checkpoints) == sorted(path.name for path in (run.folder / "checkpoints").iterdir())
    later = Watch()
    run = sargnn.train(resume=run, epochs=6, quiet=True, callbacks=[later])
    assert later.epochs == list(enumerate(run.losses))[4:] and later.checkpoints == ["epoch_000006"]


@pytest.mark.long
def test_a_callback_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    watch = Watch(last=1)
    run = sargnn.train(*TINY, epochs=100_000, quiet=True, callbacks=[watch])
    assert run.summary["status"] == "interrupted" and 2 <= len(run.losses) < 100_000
    assert watch.epochs == list(enumerate(run.losses))[:2]
    assert list((run.folder / "checkpoints").iterdir())


@pytest.mark.long
def test_what_a_callback_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    def fail(row: dict[str, Any]) -> None:
        raise ZeroDivisionError(f"after epoch {row['epoch']}")

    with pytest.raises(ZeroDivisionError, match="after epoch 0"):
        sargnn.train(*TINY, epochs=100_000, quiet=True, callbacks=[fail])
    with pytest.raises(sargnn.SargnnError, match="no callback"):
        sargnn.train(*TINY, quiet=True, callbacks=[Watch])
