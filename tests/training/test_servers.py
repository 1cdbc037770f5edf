"""Servers as a person meets them: mistakes, what a run reports, going on with others, and whether preloading pays."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sargnn.cli.compose import compose_verb
from sargnn.cli.main import main
from sargnn.comm.group import Group
from sargnn.comm.rates import Rates
from sargnn.config.groups import PreloadConfig
from sargnn.config.run import RunConfig, parse
from sargnn.graph.dataset import Dataset
from sargnn.training import preload
from tests.parity import cases
from tests.parity.covering import spread
from tests.pool import pool
from tests.processes import run_command, sargnn_command

SMALL = ["dataset=synthetic", "dataset.num_nodes=400", "world=4", "threads=1", "tracking=none", "epochs=3"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["servers=3"], "world=4 servers=3.*servers=1, servers=2, servers=4"),
        (["servers=0"], "'servers'.*at least 1"),
        (["preload=shared"], "One server.*servers=null.*preload=none"),
        (["servers=2", "preload=half"], "'preload' has no option 'half'"),
        (["servers=2", "preload.max_hop=1"], "Nothing is preloaded.*preload.max_hop=1.*preload=shared"),
        (["servers=2", "preload=auto", "preload.fanout=3"], "changes no loss.*preload.fanout=3.*preload=shared"),
        (["servers=2", "preload=shared", "preload.max_hop=0"], "'preload.max_hop'.*at least 1"),
        (["servers=2", "preload=shared", "preload.fanout=0"], "'preload.fanout'.*at least 1"),
        (["servers=2", "preload=shared", "model=label_propagation"], "Label propagation.*hops.*preload=none"),
        (
            ["servers=2", "preload=shared", "model=custom", "model.target=examples/layers/dgl_sage.py:Sage"],
            "module of your own.*preload=none",
        ),
        (
            ["servers=2", "preload=shared", "preload.max_hop=1", "sample.fanouts=[3,3,3]", "eval=sampled"],
            "evaluations.*full graph.*eval=full",
        ),
        (
            ["servers=2", "preload=shared", "preload.max_hop=1", "memory_budget=1GB"],
            "evaluations.*full graph.*no memory_budget",
        ),
        (["model=resgcn", "model.residual=true"], "ResGCN.*model.residual=false"),
    ],
)
def test_mistakes(arguments: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [*SMALL, f"store_dir={tmp_path / 'stores'}", f"run_dir={tmp_path / 'run'}"]
    assert main(["train", *words, *arguments]) == 1
    assert re.search(says, " ".join(capsys.readouterr().err.split())), says
    assert not (tmp_path / "run" / "logs").exists()  # no worker was started


def train(folder: Path, name: str, *words: str) -> dict[str, Any]:
    run_dir = folder / name
    assert main(["train", *SMALL, f"store_dir={folder / 'stores'}", f"run_dir={run_dir}", "model.hidden=16", *words]) == 0
    summary: dict[str, Any] = json.loads((run_dir / "summary.json").read_text())
    return summary


def test_a_run_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What is said, and what is reported."""
    words = ["precision=fp64", "profile=true", "checkpoint.every=1"]
    flat = train(tmp_path, "flat", *words, "servers=2")
    capsys.readouterr()
    own = train(tmp_path, "own", *words, "servers=2", "preload=shared", "smooth=cs")
    shown = capsys.readouterr()
    said = shown.out + shown.err
    assert "metis into 2 servers of 2" in said and re.search(r"server 1: 2\d\d nodes and .*\d+ \(", said)
    assert "bytes between servers" in said and "wait between servers" in said
    assert own["losses"] == pytest.approx(flat["losses"], rel=1e-12) and own["test_acc"] == flat["test_acc"]
    assert (own["preload"], flat["preload"]) == ({"chosen": "shared"}, {"chosen": "none"})
    assert 0 < own["between_servers_bytes_per_epoch"] < flat["between_servers_bytes_per_epoch"]
    gradients = 8 * own["num_params"] * 2  # each server sends its sums to the other
    assert gradients < own["between_servers_bytes_per_epoch"] < 1.5 * gradients + 20_000
    rows = [json.loads(line) for line in (tmp_path / "own" / "metrics.jsonl").read_text().splitlines()]
    assert all(row["between_servers_bytes"] == own["between_servers_bytes_per_epoch"] for row in rows)
    assert sum(own["profile_s"]["wait between servers"]) == 0 < sum(flat["profile_s"]["wait between servers"])

    assert main(["compare", str(tmp_path / "flat"), str(tmp_path / "own"), f"out={tmp_path / 'compare'}"]) == 0
    assert (tmp_path / "compare" / "epoch_parts.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.long
def test_a_run_goes_on_with_other_servers_and_workers(tmp_path: Path) -> None:
    words = ["precision=fp64", "checkpoint.every=1"]
    train(tmp_path, "own", *words, "servers=2", "preload=shared", "smooth=cs")
    run = str(tmp_path / "own")
    resumed = ["train", f"resume={run}", "epochs=5", "world=6", "servers=3", "smooth=none"]
    assert main(resumed) == 0
    whole = train(tmp_path, "whole", *words, "epochs=5")
    again = json.loads((tmp_path / "own" / "summary.json").read_text())
    assert again["losses"] == pytest.approx(whole["losses"], rel=1e-10)
    assert main(["predict", f"run={run}", f"out={tmp_path / 'predicted'}"]) == 0
    assert np.load(tmp_path / "predicted" / "logits.npy").shape == (400, 10)


@pytest.mark.long
def test_bounded_and_chosen_runs(tmp_path: Path) -> None:
    """They predict from the full graph, whatever they preloaded; bounds that leave nothing out are no bounds."""
    shared = ["precision=fp64", "servers=2", "checkpoint.every=1"]
    bounds = ["preload=shared", "preload.max_hop=1", "preload.fanout=2"]
    bounded = train(tmp_path, "bounded", *shared, *bounds, "partitioner=random")
    exact = train(tmp_path, "exact", *shared, "partitioner=random", "preload=shared", "preload.max_hop=3")
    flat = train(tmp_path, "flat", *shared, "partitioner=random")
    assert exact["losses"] == pytest.approx(flat["losses"], rel=1e-12) != pytest.approx(bounded["losses"], rel=1e-3)
    assert exact["config_hash"] == flat["config_hash"] != bounded["config_hash"]
    for name, other in (("bounded", "world=4"), ("exact", "world=1")):
        assert main(["predict", f"run={tmp_path / name}", other]) == 0
    assert run_command(sargnn_command("evaluate", f"run={tmp_path / 'bounded'}"), tmp_path).returncode == 0
    predicted = tmp_path / "bounded" / "predictions"
    found = json.loads((predicted / "evaluation.json").read_text())["accuracy"]["predictions"]["test"]
    assert np.load(predicted / "logits.npy").shape == (400, 10) and found == pytest.approx(bounded["test_acc"], abs=1e-9)


@pytest.mark.long
def test_samples_smoothed_on_servers(tmp_path: Path) -> None:
    """Evaluated on samples, smoothed on the full graph that no server has copies of."""
    words = ["precision=fp64", "sample.fanouts=[3,3,3]", "eval=sampled", "smooth=cs", "servers=2"]
    own = train(tmp_path, "own", *words, "preload=shared")
    flat = train(tmp_path, "flat", *words)
    assert own["losses"] == pytest.approx(flat["losses"], rel=1e-12) and own["test_acc_smoothed"] == flat["test_acc_smoothed"]


def test_the_world_decides_servers_that_are_given(tmp_path: Path) -> None:
    """Where each node's worker is given, which nodes a server has depends on how many there are."""

    def hash_of(*words: str) -> str:
        return parse(compose_verb("train", [*SMALL, *words])).config_hash

    np.save(tmp_path / "given.npy", np.arange(400) % 8)
    given = ["partitioner=given", f"partitioner.file={tmp_path / 'given.npy'}"]
    bounded = ["servers=2", "preload=shared", "preload.max_hop=1"]
    assert hash_of(*given, *bounded) != hash_of(*given, *bounded, "world=8")
    assert hash_of(*bounded) == hash_of(*bounded, "world=8")
    assert hash_of(*given, "servers=2", "preload=shared") == hash_of(*given, "world=8")


def test_one_server_has_nothing_to_choose(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own = train(tmp_path, "own", "preload=auto", "epochs=1")
    assert own["preload"] == {"chosen": "none"} and own["between_servers_bytes_per_epoch"] == 0
    log = (tmp_path / "own" / "logs" / "rank_00.log").read_text()
    assert "preload=auto: none. One server" in log


@pytest.mark.long
def test_chosen_by_what_is_measured(tmp_path: Path) -> None:
    """Between workers that pretend the network is as fast as memory; the numbers are in the summary and the log."""
    own = train(tmp_path, "own", "preload=auto", "servers=2")
    flat = train(tmp_path, "flat", "servers=2")
    assert own["losses"] == pytest.approx(flat["losses"], rel=1e-5)
    found = own["preload"]
    assert found["chosen"] in ("none", "shared") and found["step_s_with"] > 0 and found["between_servers_bytes_per_s"] > 0
    assert (found["step_s_with"] < found["step_s_without"]) == (found["chosen"] == "shared")
    log = (tmp_path / "own" / "logs" / "rank_00.log").read_text()
    assert f"preload=auto: {found['chosen']}, " in log and "between servers each worker" in log


def choice(group: Group, config: RunConfig, dataset: Dataset, between: float) -> dict[str, Any]:
    """What is chosen where the network is so fast, and what the first step of the trainer without copies sends."""
    group = group.again(servers=config.num_servers)
    measured = preload.measure_rates
    preload.measure_rates = lambda group: Rates(1e12, between, 0.0)
    flat = cases.with_preload(config, PreloadConfig())
    try:
        trainer, found = preload.choose(
            group, lambda: cases.trainer_of(group, flat, dataset), lambda: cases.trainer_of(group, config, dataset)
        )  # fmt: skip
    finally:
        preload.measure_rates = measured
    started = [p.detach().numpy().copy() for p in trainer.model.parameters()]
    loss = trainer.loop.gradients().value
    other = cases.trainer_of(group, flat, dataset)
    other.loop.gradients()
    group.traffic.reset()
    other.loop.gradients()
    sent = group.traffic.sent_bytes
    with_copies = cases.trainer_of(group, config, dataset)
    traffic = with_copies.engine.group.traffic
    with_copies.loop.gradients()
    traffic.reset()
    with_copies.loop.gradients()
    return {
        "preload": found.preload, "copies": trainer.graph.copies is not None, "loss": loss, "parameters": started,
        "sent": sent, "counted": found.flat.between + found.flat.inside, "lines": found.lines(),
        "copies_sent": traffic.sent_bytes, "copies_counted": found.preloaded.copied + found.preloaded.between,
        "more": [found.preloaded.work[kind] / found.flat.work[kind] for kind in found.flat.work],
    }  # fmt: skip


@pytest.mark.parametrize(("name", "between", "chosen"), spread(["sage", "gat", "rgcn", "resgcn"], [(1e3, True), (1e12, False)]))
def test_choice(name: str, between: float, chosen: bool) -> None:
    """A slow network: shared preloading; one that costs nothing: none, for it computes less. Bytes are those that travel."""
    config = cases.run_config(cases.model_config(name), world=2, servers=2)
    graph = cases.graph_for(name)
    answers: list[dict[str, Any]] = pool(2)(choice, config, graph, between)
    assert [one["preload"] for one in answers] == [chosen, chosen] == [one["copies"] for one in answers]
    assert max(one["sent"] for one in answers) == answers[0]["counted"]
    copies = max(one["copies_sent"] for one in answers)
    assert copies == answers[0]["copies_counted"] and (copies > 0) == (name == "rgcn")  # learned rows of copies
    assert all(ratio >= 1 for ratio in answers[0]["more"])
    single = cases.trainer_of(Group.single(), cases.run_config(config.model), graph)
    assert answers[0]["loss"] == pytest.approx(single.loop.gradients().value, rel=1e-9)  # the trial has changed nothing
    assert re.match(r"preload=auto: (shared|none), .*step", answers[0]["lines"][0])
