"""Options of a user's own folder: ``conf/`` in the working directory, or ``--config-dir``."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import yaml

from sargnn.cli.conf import conf_dir, find_folders
from sargnn.cli.help import candidates
from tests.cli.conftest import Sargnn
from tests.cli.own_options import write
from tests.in_process import sargnn_here as run

WIDE = """\
# A wide model of our own
defaults:
  - sage
  - _self_
hidden: 512   # our width
"""
EXPERIMENT = """\
# @package _global_
# Ours: the wide model.
defaults:
  - override /model: wide
epochs: 3
"""


@pytest.mark.parametrize("place", ["conf", "ours, with 'quotes' and ${HOME}"])
def test_an_own_option_is_composed_listed_and_completed(sargnn: Sargnn, tmp_path: Path, place: str) -> None:
    write(tmp_path / place, model__wide=WIDE, experiment__ours=EXPERIMENT)
    flag = [] if place == "conf" else ["--config-dir", place]
    done = sargnn("train", *flag, "experiment=ours", "--cfg", "job")
    assert done.returncode == 0, done.stderr
    config = yaml.safe_load(done.stdout)
    assert config["model"]["hidden"] == 512 and config["model"]["name"] == "sage" and config["epochs"] == 3
    done = sargnn("train", *flag, "--help")
    text = " ".join(done.stdout.split())
    assert max(len(line) for line in done.stdout.splitlines()) <= 80
    assert "model=wide A wide model of our own (" in text and "experiment=ours Ours: the wide model. (" in text
    done = sargnn("train", *flag, "--help", "experiment=ours")
    assert "model=wide: A wide model of our own" in done.stdout
    assert (
        "  model.hidden=512          our width" in done.stdout and "  model.aggregator=mean     mean, max, sum" in done.stdout
    )
    assert "wide" in [word.partition("=")[2] for word in candidates(["train", *flag, "model=w"])]
    assert "model.aggregator=" in candidates(["train", *flag, "model=wide", "model.a"])
    done = sargnn("train", *flag, "model=wid")
    assert done.returncode == 1 and "wide" in done.stderr.split("allowed:")[1]


def test_settings_of_a_base_file_are_shown_and_the_base_is_no_option(sargnn: Sargnn, tmp_path: Path) -> None:
    write(
        tmp_path / "conf",
        model__base__stack="norm: batch   # batch or none\nhidden: 8     # of every layer\n",
        model__deep="# Deep\ndefaults:\n  - base/stack@_here_\n  - _self_\nname: sage\nhidden: 9\n",
        model__deeper="# Deeper\ndefaults:\n  - /model/base/stack@_here_\n  - deep\nextra: 1\n",
    )
    done = sargnn("train", "--help", "model=deeper")
    assert "model.norm=batch          batch or none" in done.stdout and "  model.extra=1" in done.stdout
    assert "  model.hidden=9            of every layer" in done.stdout
    composed = yaml.safe_load(sargnn("train", "model=deeper", "--cfg", "job").stdout)["model"]
    own = {"norm": "batch", "hidden": 9, "name": "sage", "extra": 1}
    assert {key: composed[key] for key in own} == own
    assert composed["aggregator"] == "mean" and composed["num_layers"] == 3  # no file says them: GraphSage's class does
    assert "model=stack" not in sargnn("train", "--help").stdout and candidates(["train", "model=s"]) == [
        "model=sage",
        "model=sgc",
    ]


@pytest.mark.parametrize(
    ("files", "words", "messages"),
    [
        ({"model__mine": "hidden: 3\nnorm: [batch\n"}, ["model=mine"], ["no YAML", "conf/model/mine.yaml, line 3"]),
        ({"model__mine": "hidden: 3\nhidden: 4\n"}, ["model=mine"], ["duplicate key", "conf/model/mine.yaml, line 2"]),
        ({"model__mine": "- hidden\n"}, ["model=mine"], ["must hold settings", "conf/model/mine.yaml"]),
        ({"model__mine": "a: " + "[" * 2000}, ["model=mine"], ["nested too deeply", "conf/model/mine.yaml"]),
        ({"model__mine": WIDE + "hiden: 3\n"}, ["model=mine"], ["no setting 'model.hiden'", "mine.yaml, line 6"]),
        ({"model__mine": WIDE + "norm: group\n"}, ["model=mine"], ["'model.norm'", "batch, layer, none", "mine.yaml, line 6"]),
        ({"model__mine": WIDE + "norm: group\n"}, ["-m", "model=mine,gat"], ["'model.norm'", "mine.yaml, line 6"]),
        ({"model__mine": "defaults: [sagee]\n"}, ["model=mine"], ["model/sagee in conf/model/mine.yaml", "sage"]),
        ({"experiment__e": "epochs: 3\n"}, ["experiment=e"], ["@package _global_", "conf/experiment/e.yaml"]),
        ({"experiment__e": EXPERIMENT}, ["experiment=e"], ["no option 'wide'", "model=wide in conf/experiment/e.yaml"]),
        ({"experiment__e": "# @package _global_\nepochs: 0\n"}, ["experiment=e"], ["'epochs'", "e.yaml, line 2"]),
        ({"model__gat": WIDE}, ["world=2"], ["has itself", "conf/model/gat.yaml"]),
        ({"train": "world: 3\n"}, ["world=2"], ["has itself", "conf/train.yaml"]),
    ],
)
def test_mistakes_in_own_files_name_the_file(
    sargnn: Sargnn, tmp_path: Path, files: dict[str, str], words: list[str], messages: list[str]
) -> None:
    write(tmp_path / "conf", **files)
    done = sargnn("train", *words)
    assert done.returncode == 1 and len(done.stderr.splitlines()) <= 10, done.stderr
    for message in messages:
        assert message in done.stderr, done.stderr
    assert candidates(["train", "model="]) and sargnn("train", "--help").returncode == 0  # both go on


def test_files_that_are_no_text_or_have_another_suffix(sargnn: Sargnn, tmp_path: Path) -> None:
    write(tmp_path / "conf", model__good=WIDE, model__other="")
    (tmp_path / "conf" / "model" / "other.yaml").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "conf" / "model" / "late.yml").write_text(WIDE)
    done = sargnn("train", "model=other")
    assert done.returncode == 1 and "conf/model/other.yaml" in done.stderr, done.stderr
    done = sargnn("train", "model=late")
    assert done.returncode == 1 and "late.yaml" in done.stderr


def test_which_folder_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sargnn: Sargnn) -> None:
    monkeypatch.chdir(conf_dir().parent)
    assert find_folders().own is None  # the checkout's own
    shutil.copytree(conf_dir(), tmp_path / "conf")
    shutil.copytree(Path(__file__).parents[2] / "sargnn" / "cli", tmp_path / "sargnn" / "cli")
    monkeypatch.chdir(tmp_path)
    assert find_folders().own is None  # another checkout's
    write(tmp_path / "a", model__wide=WIDE)
    shutil.rmtree(tmp_path / "sargnn")
    assert find_folders().own == tmp_path / "conf" and find_folders("a").own == tmp_path / "a"
    for missing in (["--config-dir", "nowhere"], ["--config-dir"]):
        done = sargnn("train", *missing)
        assert done.returncode == 1 and "--config-dir does not exist" in done.stderr
    done = sargnn("compare", "--config-dir", "a")
    assert done.returncode == 1 and "no flag '--config-dir'" in done.stderr


@pytest.mark.long
def test_runs_sweeps_and_job_scripts_have_what_they_were_given(tmp_path: Path, sargnn: Sargnn) -> None:
    """Also where it is started again from elsewhere: a run is resumed without the folder that made it."""
    write(tmp_path / "ours", model__wide="defaults: [sage]\nhidden: 12\n", kernel__plain="# Slow\nname: reference\n")
    tiny = ["dataset.num_nodes=300", "epochs=2", "world=1", "tracking=none", "model=wide", "kernel=plain"]
    done = sargnn("slurm", "--config-dir", "ours", *tiny)
    assert done.returncode == 0, done.stderr
    assert yaml.safe_load((tmp_path / "runs" / "sage-sar-w1-s0" / "config.yaml").read_text())["model"]["hidden"] == 12
    assert f"--config-dir {tmp_path / 'ours'}" in next((tmp_path / "slurm").glob("*.sbatch")).read_text()
    done = run(tmp_path, "train", "-m", "--config-dir", "ours", *tiny, "seed=1")
    assert done.returncode == 0 and done.stdout.count("finished") == 1, done.stderr
    (sweep,) = (tmp_path / "sweeps").iterdir()
    assert json.loads((sweep / "000" / "summary.json").read_text())["kernel"] == "reference"
    shutil.rmtree(tmp_path / "ours")
    done = sargnn("predict", f"run={sweep / '000'}", "threads=1", "kernel=fused", "model.hidden=13")
    assert done.returncode == 1 and "model.hidden: 13 instead of 12" in done.stderr, done.stderr
    done = sargnn("predict", f"run={sweep / '000'}", "kernel=plain")
    assert done.returncode == 1 and "'kernel' has no option 'plain'" in done.stderr
