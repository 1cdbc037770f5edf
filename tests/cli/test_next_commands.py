"""What is offered after a run can be run: on this machine, with these choices."""

from __future__ import annotations

from pathlib import Path

import pytest

from sargnn.cli.compose import compose_verb
from sargnn.cli.train import next_commands, show_commands
from sargnn.config.run import parse


def commands(words: list[str], folder: Path) -> list[str]:
    return [one.split("sargnn ", 1)[1] for one, _ in next_commands(parse(compose_verb("train", words)), words, folder)]


@pytest.fixture(autouse=True)
def four_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1, 2, 3})


def test_no_world_beyond_the_cores(tmp_path: Path) -> None:
    assert commands(["world=2"], tmp_path)[:2] == ["train world=4", "train world=2 mode=domain_parallel"]
    assert commands(["world=4"], tmp_path)[:2] == ["train world=4 mode=domain_parallel", "train world=4 model=gat"]


def test_what_is_refused_is_not_offered(tmp_path: Path) -> None:
    found = commands(["world=4", "kernel=fused", "mode=one_shot"], tmp_path)
    assert found[:2] == ["train world=4 kernel=fused mode=sar", "train world=4 kernel=fused mode=one_shot model=gat"]


def test_settings_of_what_is_changed_are_left_out(tmp_path: Path) -> None:
    words = ["world=4", "mode=domain_parallel", "model.hidden=32", "run_name=first", "tracking=none"]
    assert commands(words, tmp_path) == [
        "train world=4 model.hidden=32 tracking=none mode=sar",
        "train world=4 mode=domain_parallel tracking=none model=gat",
        "compare",
    ]


def test_predictions_are_offered_where_there_is_a_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sargnn.training.checkpoint.existing", lambda folder: [folder])
    assert f"predict run={tmp_path}" in commands([], tmp_path)


def test_long_commands_have_their_purpose_before_them() -> None:
    assert show_commands([("sargnn train", "short")]) == ["  sargnn train  # short"]
    long = "sargnn train " + "x" * 70
    assert show_commands([("sargnn ui", "short"), (long, "long")]) == ["  # short", "  sargnn ui", "  # long", f"  {long}"]


def test_a_broken_file_of_ones_own_costs_no_finished_run_its_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = parse(compose_verb("train", ["world=4"]))
    (tmp_path / "conf" / "model").mkdir(parents=True)
    (tmp_path / "conf" / "model" / "gat.yaml").write_text("name: gat\n")  # a name that is taken
    monkeypatch.chdir(tmp_path)
    assert next_commands(config, ["world=4"], tmp_path)[0][0].endswith("train world=4 seed=1")
