"""The configuration's checks, each with the message a person gets."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import yaml

from sargnn.cli.compose import compose_verb
from sargnn.cli.conf_folders import conf_dir
from sargnn.config import RunConfig, load, parse, save
from sargnn.errors import ConfigError


def composed(*overrides: str) -> dict[str, Any]:
    return compose_verb("train", overrides)


def config(*overrides: str) -> RunConfig:
    return parse(composed(*overrides))


def test_every_option_of_every_group_parses() -> None:
    groups = [p for p in conf_dir().iterdir() if p.is_dir() and p.name not in ("experiment", "slurm")]
    assert len(groups) >= 8
    for group in groups:
        for option in group.glob("*.yaml"):
            root = ["dataset.root=x"] if option.stem == "ogb_dir" else []
            config(f"{group.name}={option.stem}", *root)


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("optim.lr=-1", ["optim.lr", "more than 0"]),
        ("optim.lr=nan", ["optim.lr", "nan"]),
        ("epochs=0", ["epochs", "at least 1"]),
        ("world=-2", ["world", "at least 1"]),
        ("world=2.5", ["world", "whole number"]),
        ("model.dropout=1", ["model.dropout", "less than 1"]),
        ("model.norm=layer", ["model.norm", "batch, none"]),
        ("model.hidden=many", ["model.hidden", "whole number"]),
        ("seed=4294967296", ["seed"]),
        ("+model.hiden=3", ["model.hiden", "model.hidden"]),
        ("+wrld=3", ["wrld", "world"]),
    ],
)
def test_wrong_values(override: str, words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        config(override)
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_round_trip(tmp_path: Path) -> None:
    run = config("model=gcn", "world=3")
    save(run, tmp_path / "config.yaml")
    assert load(tmp_path / "config.yaml") == run
    assert parse(yaml.safe_load((tmp_path / "config.yaml").read_text())) == run


def test_config_hash_covers_what_decides_the_losses() -> None:
    base = config()
    for same in ("world=8", "mode=one_shot", "kernel=dgl", "partitioner=random", "threads=1", "run_name=x", "comm.timeout_s=9"):
        assert config(same).config_hash == base.config_hash, same
    for other in ("seed=1", "model.hidden=8", "optim.lr=0.1", "epochs=7", "precision=fp64", "dataset.homophily=0.5"):
        assert config(other).config_hash != base.config_hash, other


def test_self_loops_follow_the_model() -> None:
    assert config("model=gcn").add_self_loops and not config("model=sage").add_self_loops
    assert config("model=sage", "dataset.add_self_loops=true").add_self_loops
    assert config("model=gcn", "dataset.add_self_loops=false").add_self_loops is False


def test_name() -> None:
    assert config("seed=5").name == "sage-sar-w4-s5"
    assert dataclasses.replace(config(), run_name="mine").name == "mine"
