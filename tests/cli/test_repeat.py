"""The command that repeats a run composes to the run's configuration."""

from __future__ import annotations

import dataclasses
import shlex
from pathlib import Path

import pytest

from sargnn.cli.compose import compose_verb
from sargnn.cli.conf import find_folders
from sargnn.cli.resume import command_of
from sargnn.config.run import parse, save
from sargnn.report.runs import flat, read_settings

CONFIGURATIONS = {
    "defaults": ([], "sargnn train"),
    "options": (["model=gat", "mode=one_shot", "labels=masked", "tracking=none"], None),
    "settings of options": (["model=gat", "model.heads=2", "optim.lr=1e-4", "comm.prefetch_depth=3", "optim.clip=0.5"], None),
    "an experiment": (["experiment=laptop_tour", "seed=7"], None),
    "debug": (["debug=tiny", "model.hidden=12"], None),
    "a dataset with arguments": (
        ["dataset=python", "dataset.target=json:loads", "dataset.args.s='x y'", "dataset.args.n=3"],
        None,
    ),
    "a module with arguments": (
        [
            "model=custom",
            "model.target=json:loads",
            "model.args.s='x y'",
            "model.args.n=null",
            "model.args.empty={}",
            "model.args.deep={a: [1, {d: 'e f'}], b: {c: null}}",
        ],
        None,
    ),
    "a root with spaces": (["dataset=arrays", "dataset.root='/some where/graph $x'", "dataset.split=[0.6,0.2,0.2]"], None),
    "a task": (["task=multilabel", "metric=f1", "early_stopping=3", "smooth=none"], None),
    "an assignment": (["partitioner=given", "partitioner.file=/somewhere/parts.npy"], None),
    "an adamw": (["optim=adamw", "optim.schedule=cosine", "precision=fp64", "run_name=mine", "threads=3"], None),
}


@pytest.mark.parametrize("case", CONFIGURATIONS)
def test_the_command_composes_to_the_same_run(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    words, wanted = CONFIGURATIONS[case]
    config = parse(compose_verb("train", words))
    save(dataclasses.replace(config, run_dir=str(tmp_path), init_digest="abc"), tmp_path / "config.yaml")
    command = command_of(read_settings(tmp_path / "config.yaml"))
    assert command is not None and (wanted is None or command == wanted)
    program, verb, *again = shlex.split(command)
    assert (program, verb) == ("sargnn", "train") and parse(compose_verb("train", again)) == config
    assert len(again) <= 12, command


def test_options_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are found where they are; elsewhere there is no such command."""
    (tmp_path / "conf" / "model").mkdir(parents=True)
    (tmp_path / "conf" / "model" / "wide.yaml").write_text("defaults: [sage]\nhidden: 77\n")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    config = parse(compose_verb("train", ["model=wide"], folders=find_folders()))
    save(config, tmp_path / "config.yaml")
    settings = read_settings(tmp_path / "config.yaml")
    assert command_of(settings) == "sargnn train model=wide"
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert command_of(settings) == "sargnn train model.hidden=77"
    assert command_of(settings | {"model.name": "unheard-of"}) is None
    assert command_of(flat({"model": {"name": "sage"}})) is None
