"""What changes losses without being asked to is said by the run, its summary and ``sargnn compare``, and by nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sargnn.cli.compose import compose_verb
from sargnn.comm.group import Group
from sargnn.config.groups import BatchesConfig
from sargnn.config.losses import losses_depend_on
from sargnn.config.run import RunConfig, parse
from sargnn.graph.schema import Schema
from sargnn.models.inputs import GraphShape
from sargnn.report.groups import make_groups
from sargnn.report.runs import read_runs
from sargnn.report.table import as_csv, run_record, runs_lines
from sargnn.run import local
from sargnn.tracking.summary import Summary
from sargnn.training.build import make_model
from sargnn.training.summary import measure_results
from tests.graphs import nasty_graph
from tests.parity import cases
from tests.report.folders import write_run

PRELOAD = ("world=4", "servers=2", "preload=shared", "preload.max_hop=1", "partitioner=metis")
MODULE = """from torch import nn


class Net(nn.Module):
    def __init__(self, in_size, out_size, norm="BatchNorm1d"):
        super().__init__()
        self.norm, self.linear = getattr(nn, norm)(in_size), nn.Linear(in_size, out_size)

    def forward(self, graph, h):
        return self.linear(self.norm(h[: graph.blocks[0].num_dst_nodes()]))
"""


def configured(*words: str) -> RunConfig:
    return parse(compose_verb("train", ["tracking=none", *words]))


@pytest.mark.parametrize(
    ("words", "settings"),
    [
        ((), []),
        (("mfg=true", "model.norm=layer", "batches.count=4"), []),
        (("batches.count=4",), ["batches.count=4"]),
        (("batches.count=4", "mfg=true", "precision=bf16"), ["batches.count=4", "precision=bf16"]),
        (("mfg=true",), ["mfg=true"]),
        (("batches.count=auto", "memory_budget=9GB"), []),
        (("sample.fanouts=[5,5,5]", "batches.steps=4"), []),
        (("precision=mixed", "comm.wire=bf16"), ["precision=mixed", "comm.wire=bf16"]),
        (("comm.wire=bf16", "world=1"), []),
        (("precision=fp64",), []),
        (PRELOAD, ["preload.max_hop=1"]),
        ((*PRELOAD, "preload.max_hop=3"), []),
    ],
)
def test_which_settings_change_losses(words: tuple[str, ...], settings: list[str]) -> None:
    config = configured("model=sage", *words)
    found = losses_depend_on(config, norms_over_rows=config.norms_over_rows)
    assert [one.setting for one in found] == settings and all(one.kept_by for one in found)


@pytest.mark.parametrize(
    ("words", "norms"),
    [
        (("model=sage",), True),
        (("model=sage", "model.norm=layer"), False),
        (("model=sage", "model.num_layers=1"), False),
        (("model=custom", "model.args.norm=BatchNorm1d"), True),
        (("model=custom", "model.args.norm=LayerNorm"), False),
    ],
)
def test_a_built_model_says_whether_it_norms_over_rows(words: tuple[str, ...], norms: bool, tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(MODULE)
    target = (f"model.target={tmp_path}/net.py:Net",) if "model=custom" in words else ()
    model = make_model(configured(*words, *target), GraphShape(Schema.homogeneous(100), (5,), 3))
    assert model.norms_over_rows == norms


def test_the_summary_has_them() -> None:
    for norm, expected in (("batch", ["batches.count=2"]), ("layer", [])):
        config = cases.run_config(cases.model_config("sage", norm=norm), batches=BatchesConfig(count=2))
        trainer = cases.trainer_of(Group.single(), config, nasty_graph())
        found = measure_results(trainer, Group.single())["losses_depend_on"]
        assert [one["setting"] for one in found] == expected and not trainer.remarks
        assert not found or "model.norm=layer" in found[0]["kept_by"]


@pytest.mark.parametrize("norm", ["BatchNorm1d", "LayerNorm"])
def test_the_terminal_has_them_before_workers_start(
    norm: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said: list[str] = []

    def stop(*_: object, **__: object) -> tuple[Summary, None]:
        said.append("".join(capsys.readouterr()))
        return Summary("finished"), None

    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text(MODULE)
    monkeypatch.setattr(local, "start_fork_server", lambda: None)
    monkeypatch.setattr(local, "prepare_process", lambda config: config)
    monkeypatch.setattr(local, "_run_tracked", stop)
    module = ("model=custom", "model.target=net.py:Net", f"model.args.norm={norm}")
    local.train(configured(*module, "dataset.num_nodes=100", "threads=1", "batches.count=2", "world=1"))
    title, _, below = said[0].partition("training custom-Net-sar-w1-s0")
    assert title and ("batches.count=2 changes losses: batch norm" in below) == (norm == "BatchNorm1d")
    assert ("nn.LayerNorm in the module" in below) == (norm == "BatchNorm1d")


def test_runs_side_by_side_have_them(tmp_path: Path) -> None:
    setting = {"setting": "batches.count=2", "change": "batch norm has statistics of each micro-batch", "kept_by": "none"}
    changed: dict[str, dict[str, Any]] = {
        "plain": {},
        "exact": {"losses_depend_on": []},
        "lossy": {"losses_depend_on": [setting]},
    }
    runs, _ = read_runs([write_run(tmp_path / name, number, **more) for number, (name, more) in enumerate(changed.items())])
    text = " ".join(" ".join(runs_lines(runs, 200)).split())
    assert f"lossy: batches.count=2 changes losses: {setting['change']}" in text and text.count("changes losses") == 1
    assert [json.loads(json.dumps(run_record(run, {})))["losses_depend_on"] for run in runs] == [[], [], [setting]]
    head, *rows = as_csv(runs, make_groups(runs)).splitlines()
    assert head.endswith(",losses_depend_on") and [row.rpartition(",")[2] for row in rows] == ["", "", "batches.count=2"]
