"""Steps and samples as a person meets them: mistakes, sampled evaluation, learning rates, what a run leaves behind."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import numpy as np
import pytest

from sargnn.cli.main import main
from sargnn.comm.group import Group
from sargnn.config.groups import BatchesConfig, OptimConfig, SampleConfig
from sargnn.config.run import RunConfig
from sargnn.graph.dataset import Dataset
from sargnn.training.optim import learning_rate
from tests.graphs import nasty_graph
from tests.parity import cases
from tests.pool import pool

SMALL = ["dataset=synthetic", "dataset.num_nodes=400", "world=1", "threads=1", "tracking=none", "epochs=2"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["sample.fanouts=[10,10]"], r"a fan-out for each layer.*2: sample.fanouts=\[10,10\].*3, such as.*\[10,10,10\]"),
        (["sample.fanouts=[10,5,5,5]"], r"4: sample.fanouts=\[10,5,5,5\].*3, such as sample.fanouts=\[10,5,5\]"),
        (["sample.fanouts=[]"], r"0: sample.fanouts=\[\].*3, such as"),
        (["sample.fanouts=[10,0,5]"], r"keeps no edge.*\[10,0,5\].*whole numbers from 1, or -1"),
        (["sample.fanouts=[10,-2,5]"], r"'sample.fanouts\[1\]'.*at least -1"),
        (["sample.fanouts=[10,1.5,5]"], r"'sample.fanouts\[1\]'.*1.5.*a whole number"),
        (["sample.fanouts=10"], r"'sample.fanouts'.*10.*\[a,b,c\]"),
        (["sample.fanouts=[9,9,9]", "sample.every=day"], "'sample.every'.*'day'.*step, epoch, run"),
        (["batches.steps=0"], "'batches.steps'.*at least 1"),
        (["batches.steps=9999"], "training nodes.*batches.steps=9999.*1 to 40"),
        (["eval=sampled"], "no sample.*sample.fanouts=.*eval=full"),
        (["eval=some"], "'eval'.*'some'.*full, sampled"),
        (["model=mlp", "sample.fanouts=[5,5,5]"], "no edges.*sample.fanouts=null"),
        (["model=sgc", "sample.fanouts=[5,5,5]"], r"3: sample.fanouts=\[5,5,5\].*2, such as"),
        (["model=label_propagation", "sample.fanouts=[5]"], "all edges.*sample.fanouts=null"),
        (["model=label_propagation", "batches.steps=2"], "all nodes.*batches.steps=1"),
    ],
)
def test_mistakes(arguments: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [*SMALL, f"store_dir={tmp_path / 'stores'}", f"run_dir={tmp_path / 'run'}"]
    assert main(["train", *words, *arguments]) == 1
    assert re.search(says, " ".join(capsys.readouterr().err.split())), says
    assert not (tmp_path / "run" / "logs").exists()  # no worker was started


def drawn(epochs: int = 4, **choices: object) -> RunConfig:
    config = cases.run_config(
        cases.model_config("sage"), sample=SampleConfig(fanouts=[3, 2, 4]), batches=BatchesConfig(steps=3),
        **choices,  # type: ignore[arg-type]
    )  # fmt: skip
    return dataclasses.replace(config, epochs=epochs)


def sampled_logits(group: Group, config: RunConfig, dataset: Dataset) -> tuple[np.ndarray, np.ndarray, list[float]]:
    """Ids and predictions of all own nodes after training, and the last scores."""
    trainer = cases.trainer_of(group, config, dataset)
    trainer.run()
    logits = trainer.evaluator.predictions()
    return (
        trainer.ids.numpy(),
        logits.numpy(),
        [trainer.loop.history.scores[split] or 0.0 for split in ("train", "valid", "test")],
    )


@pytest.mark.parametrize("every", ["step", "run"])
def test_sampled_evaluation_is_the_same_anywhere(every: str) -> None:
    """Predictions too; and they are not those of the full graph, whose training is the same."""
    sample = SampleConfig(fanouts=[3, 2, 4], every=every)  # type: ignore[arg-type]
    found = []
    for world, mode, choice in (
        (1, "sar", "sampled"),
        (3, "one_shot", "sampled"),
        (2, "domain_parallel", "sampled"),
        (1, "sar", "full"),
    ):
        config = dataclasses.replace(drawn(world=world, mode=mode), eval=choice, sample=sample)  # type: ignore[arg-type]
        answers = pool(world)(sampled_logits, config, nasty_graph())
        order = np.argsort(np.concatenate([one[0] for one in answers]))
        found.append((np.concatenate([one[1] for one in answers])[order], answers[0][2]))
    for logits, scores in found[1:3]:
        np.testing.assert_allclose(logits, found[0][0], rtol=1e-7, atol=1e-9)
        assert scores == found[0][1]
    assert not np.allclose(found[3][0], found[0][0])


def test_learning_rates_go_by_steps() -> None:
    """One step an epoch is as it was; several go on within it, and come to the same where an epoch ends."""
    for schedule in ("constant", "cosine", "step"):
        config = OptimConfig("adam", 0.1, 0.0, schedule, warmup=2, step_every=2, step_factor=0.5)
        rates = [learning_rate(config, step, 6, 4) for step in range(24)]
        by_epoch = [learning_rate(config, epoch, 6) for epoch in range(6)]
        assert rates[8::4] == pytest.approx(by_epoch[2:])
        assert rates[:8] == pytest.approx([0.1 * (step + 1) / 8 for step in range(8)])
        if schedule == "step":
            assert rates[8:] == pytest.approx([0.1] * 8 + [0.05] * 8)


def one_view_kept(group: Group, config: RunConfig, dataset: Dataset) -> bool:
    trainer = cases.trainer_of(group, config, dataset)
    trainer.loop.train_epoch(0)
    first = trainer.training
    trainer.loop.train_epoch(1)
    return trainer.training is first and trainer.engine.holds_constants


def test_one_sample_of_a_run_is_made_once() -> None:
    """Its first aggregates are kept, too, as those of the full graph are."""
    config = dataclasses.replace(drawn(), batches=BatchesConfig(), sample=SampleConfig(fanouts=[3, 2, 4], every="run"))
    assert one_view_kept(Group.single(), config, nasty_graph())
    anew = dataclasses.replace(config, sample=SampleConfig(fanouts=[3, 2, 4], every="epoch"))
    assert not one_view_kept(Group.single(), anew, nasty_graph())


def test_constants_are_shared_by_steps() -> None:
    """Without sampling in the first layer each step takes its rows' aggregates from a table that is made once."""
    for fanouts, shared in ((None, True), ([-1, 2, 2], True), ([2, -1, -1], False)):
        config = dataclasses.replace(drawn(), sample=SampleConfig(fanouts=fanouts))
        trainer = cases.trainer_of(Group.single(), config, nasty_graph())
        trainer.loop.train_epoch(0)
        assert (trainer.training.flow.plans[0].constant is not None) == shared


def test_hashes() -> None:
    """Steps and samples decide losses; how often samples are drawn only where there are any; micro-batches not."""
    plain = cases.run_config(cases.model_config("sage", norm="layer"))
    sampled = dataclasses.replace(plain, sample=SampleConfig(fanouts=[3, 2, 4]))
    several = dataclasses.replace(plain, batches=BatchesConfig(steps=3))
    assert len({one.config_hash for one in (plain, sampled, several)}) == 3
    assert dataclasses.replace(plain, sample=SampleConfig(every="run")).config_hash == plain.config_hash
    rarely = dataclasses.replace(sampled, sample=SampleConfig(fanouts=[3, 2, 4], every="run"))
    assert rarely.config_hash != sampled.config_hash
    assert dataclasses.replace(several, batches=BatchesConfig(steps=3, count=4)).config_hash == several.config_hash
