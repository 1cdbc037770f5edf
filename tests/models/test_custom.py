"""``model=custom``: its settings, wherever settings are read, compared, sent and kept."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sargnn.cli.compose import compose_verb, sweep_points
from sargnn.cli.help import candidates
from sargnn.cli.resume import read_resumed
from sargnn.config.fields import as_mapping
from sargnn.config.run import RunConfig, flatten, load, parse, save
from sargnn.errors import ConfigError
from sargnn.report.runs import find_differing, flat, show_settings
from sargnn.run.check import check_strategies
from sargnn.tracking.target import target_of

TEXT = "from torch import nn\n\n\nclass Net(nn.Module):\n    pass\n\n\nclass Other(Net):\n    pass\n"


def config(folder: Path, *words: str, text: str = TEXT, name: str = "Net") -> RunConfig:
    folder.mkdir(exist_ok=True)
    (folder / "net.py").write_text(text)
    return parse(compose_verb("train", ["model=custom", f"model.target={folder}/net.py:{name}", *words]))


def test_arguments_of_every_kind_come_back_from_the_file(tmp_path: Path) -> None:
    words = [
        "model.args.hidden=256",
        "model.args.rate=0.5",
        "model.args.kind=mean",
        "model.args.bias=true",
        "model.args.none=null",
    ]
    run = config(tmp_path, *words, "model.args.widths=[1,2]", "model.args.deep={a: {b: [x, null]}, c: 1}")
    assert as_mapping(run.model)["args"] == {
        "hidden": 256, "rate": 0.5, "kind": "mean", "bias": True, "none": None, "widths": [1, 2],
        "deep": {"a": {"b": ["x", None]}, "c": 1},
    }  # fmt: skip
    save(run, tmp_path / "config.yaml")
    assert load(tmp_path / "config.yaml") == run


def test_what_decides_the_losses(tmp_path: Path) -> None:
    """The file's content, the class and the arguments; not where the file lies."""
    base = config(tmp_path / "a", "model.args.hidden=2")
    assert config(tmp_path / "b", "model.args.hidden=2").config_hash == base.config_hash
    others = [
        config(tmp_path / "c", "model.args.hidden=2", text=TEXT + "# another\n"),
        config(tmp_path / "d", "model.args.hidden=2", name="Other"),
        config(tmp_path / "e", "model.args.hidden=3"),
        config(tmp_path / "f", "model.args.hiden=2"),
        config(tmp_path / "g"),
        config(tmp_path / "h", "model.args.hidden=2", "model.embedding=8"),
    ]
    assert len({base.config_hash, *(one.config_hash for one in others)}) == 7


def test_a_file_that_has_changed_is_refused(tmp_path: Path) -> None:
    before = config(tmp_path)
    save(before, tmp_path / "config.yaml")
    (tmp_path / "net.py").write_text(TEXT + "# another\n")
    again = load(tmp_path / "config.yaml")
    assert again.config_hash == before.config_hash, "a run that is read has the hash that it had"
    with pytest.raises(ConfigError, match="has changed since"):
        check_strategies(again)


def test_runs_are_named_after_the_class(tmp_path: Path) -> None:
    run = config(tmp_path, "world=2")
    assert run.name == "custom-Net-sar-w2-s0" and run.model.name == "custom"


def test_figures_are_sent_with_target_and_arguments(tmp_path: Path) -> None:
    run = config(tmp_path, "model.args.hidden=2", "model.args.deep={a: {b: 1}}")
    params = target_of(run, tmp_path / "runs" / "x", None).params
    assert params["model.target"] == f"{tmp_path}/net.py:Net"
    assert params["model.args.hidden"] == "2" and params["model.args.deep.a.b"] == "1"


def test_runs_differ_in_arguments_and_content(tmp_path: Path) -> None:
    runs = [config(tmp_path / "a", "model.args.hidden=2"), config(tmp_path / "a", "model.args.hidden=3")]
    shown = [show_settings(one) for one in find_differing([flat(as_mapping(run)) for run in runs])]
    assert shown == [["hidden=2"], ["hidden=3"]]
    runs[1] = config(tmp_path / "a", "model.args.hidden=2", text=TEXT + "# another\n")
    assert [list(one) for one in find_differing([flat(as_mapping(run)) for run in runs])] == [["content"], ["content"]]


def test_a_sweep_over_an_argument(tmp_path: Path) -> None:
    points = sweep_points("train", ["model=custom", "model.target=m:N", "model.args.hidden=16,32"], multirun=True)
    assert points is not None and [point[-1] for point in points] == ["model.args.hidden=16", "model.args.hidden=32"]
    assert [compose_verb("train", point)["model"]["args"] for point in points] == [{"hidden": 16}, {"hidden": 32}]


def test_a_sweep_over_modules() -> None:
    points = sweep_points("train", ["model=custom", "model.target=a.py:N,b.py:M,'c d.py:K'"], multirun=True)
    targets = ["a.py:N", "b.py:M", "c d.py:K"]
    assert points is not None and [point[-1] for point in points[:2]] == [f"model.target={one}" for one in targets[:2]]
    assert [compose_verb("train", point)["model"]["target"] for point in points] == targets


def test_a_resumed_run_keeps_its_arguments(tmp_path: Path) -> None:
    save(config(tmp_path, "model.args.hidden=2", "model.args.deep={a: 1}"), tmp_path / "config.yaml")
    for word, said in (
        ("model.args.hidden=3", "model.args.hidden: 3 instead of 2"),
        ("model.args.deep.a=2", "model.args.deep.a: 2 instead of 1"),
        ("model.args.new=1", "model.args.new: 1 instead of None"),
    ):
        with pytest.raises(ConfigError, match=re.escape(said)):
            read_resumed([f"resume={tmp_path}", word])
    resumed = read_resumed([f"resume={tmp_path}", "world=2", "model.args.hidden=2"])
    assert resumed is not None and flatten(resumed[0])["model.args.hidden"] == 2


def test_an_option_of_ones_own_that_builds_on_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from sargnn.cli.conf import find_folders

    (tmp_path / "conf" / "model").mkdir(parents=True)
    (tmp_path / "net.py").write_text(TEXT)
    mine = "defaults: [custom, _self_]\ntarget: net.py:Net\nargs: {hidden: 7, deep: {a: 1}}\n"
    (tmp_path / "conf" / "model" / "mine.yaml").write_text(mine)
    monkeypatch.chdir(tmp_path)
    run = parse(compose_verb("train", ["model=mine", "model.args.deep.b=2"], folders=find_folders()))
    assert as_mapping(run.model)["args"] == {"hidden": 7, "deep": {"a": 1, "b": 2}}
    assert as_mapping(run.model)["target"] == f"{tmp_path}/net.py:Net"


def test_a_module_as_the_target_of_another_model(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(TEXT)
    mapping = compose_verb("train", ["model=sage"])
    mapping["model"]["target"] = f"{tmp_path}/net.py:Net"
    with pytest.raises(ConfigError, match=r"a class of settings(.|\n)*model=custom takes a torch.nn.Module"):
        parse(mapping)


def test_completion(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert "model=custom" in candidates(["train", "model=cu"])
    assert {"model.target=", "model.args=", "model.embedding="} <= set(candidates(["train", "model=custom", "model."]))
