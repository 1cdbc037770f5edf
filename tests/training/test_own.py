"""An optimizer, a loss and a metric from outside the package: PyTorch's, and those of a file."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sargnn.comm.group import Group
from sargnn.config.combinations import RUN, check
from sargnn.config.groups import OptimConfig
from sargnn.config.run import RunConfig
from sargnn.errors import ConfigError
from sargnn.graph.dataset import Dataset
from sargnn.tasks.kinds import is_better
from sargnn.tasks.nodes import NodeTask
from sargnn.training import checkpoint
from sargnn.training.loop import Rows
from sargnn.training.optim import check_optimizer
from tests.graphs import nasty_graph, with_task
from tests.in_process import sargnn_here
from tests.parity import cases
from tests.parity.covering import spread
from tests.pool import pool

FILE = '''
import torch
from torch import nn


class Slow(torch.optim.Optimizer):
    """Descent whose rate falls with a number of its groups; from the third step on it keeps an average."""

    def __init__(self, params, lr=0.1):
        super().__init__(params, {"lr": lr, "steps": 0})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            group["steps"] += 1
            for p in group["params"]:
                if p.grad is not None:
                    p.sub_(p.grad, alpha=group["lr"] / group["steps"])
                if group["steps"] >= 3:
                    average = self.state[p].setdefault("average", p.clone())
                    average.lerp_(p, 0.3)
                    p.lerp_(average, 0.5)


class Listed(torch.optim.SGD):
    def step(self):
        super().step()
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p]["all"] = [1, 2]


class Halved(torch.optim.Optimizer):
    """Plain descent whose rate halves every second step; its state is a number of Python."""

    def __init__(self, params, lr=0.1):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                steps = self.state[p].get("steps", 0)
                self.state[p]["steps"] = steps + 1
                if p.grad is not None:
                    p.sub_(p.grad, alpha=group["lr"] * 0.5 ** (steps // 2))


def order_counts(scores, labels):
    """Another value for rows in another order."""
    rows = torch.arange(1, len(scores) + 1, dtype=scores.dtype)
    return (rows[:, None] * scores).sum() / len(scores) ** 2


def off_by_error(scores, labels):
    return (scores.argmax(1) - labels).abs().double().mean()


class Weighted(nn.Module):
    """Its weights are a buffer in fp32."""

    def __init__(self, reduction):
        super().__init__()
        self.register_buffer("weights", torch.linspace(0.5, 1.5, 5))

    def forward(self, logits, labels):
        return nn.functional.cross_entropy(logits, labels, self.weights.to(logits.dtype), reduction="sum")


class Learned(Weighted):
    def __init__(self, reduction):
        super().__init__(reduction)
        self.scale = nn.Parameter(torch.ones(1))


def anything(scores, labels):
    return float(torch.rand(()))


def accuracy(scores, labels):
    return 1.0


def mean_only(logits, labels, reduction):
    return nn.functional.cross_entropy(logits, labels)


not_one = 3
'''


def optim(**changes: Any) -> OptimConfig:
    return OptimConfig(**{"name": "adam", "lr": 0.1, "weight_decay": 0.0, "schedule": "constant", **changes})


def own(target: str, **changes: Any) -> OptimConfig:
    return optim(name="custom", target=target, **changes)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "own.py"
    path.write_text(FILE)
    return path


def run_config(model: str = "sage", **changes: Any) -> RunConfig:
    config = cases.run_config(cases.model_config(model), world=changes.pop("world", 1), epochs=changes.pop("epochs", 5))
    return dataclasses.replace(config, eval_every=1, **changes)


def losses(config: RunConfig, dataset: Dataset) -> list[float]:
    found: list[float] = pool(config.world)(cases.curve, config, dataset)[0]["losses"]
    return found


def test_pytorchs_adam_by_its_name_is_ours() -> None:
    ours = losses(run_config(optim=optim(weight_decay=0.01)), nasty_graph())
    assert losses(run_config(optim=own("torch.optim:Adam", weight_decay=0.01)), nasty_graph()) == ours
    assert losses(run_config(optim=own("torch.optim:Adam", args={"betas": [0.5, 0.9]})), nasty_graph()) != ours


def _train(group: Group, config: RunConfig, dataset: Dataset, run_dir: str, start: str) -> list[float]:
    trainer = cases.trainer_of(group, config, dataset)
    first = checkpoint.load(trainer, Path(start)) if start else 0
    trainer.run(first, checkpoint.Checkpoints(trainer, config, "some", Path(run_dir)))
    return trainer.loop.history.losses


@pytest.mark.parametrize(
    ("model", "target"),
    spread(["rgcn", "sage"], ["SGD", "NAdam", "RMSprop", "Rprop", "Adafactor", "Halved", "Slow"]),
)
def test_the_same_on_all_worlds_and_after_a_resume(model: str, target: str, file: Path, tmp_path: Path) -> None:
    """Also where rows are learned, which live on different workers, and resumed on another number of them."""
    if (model, target) == ("rgcn", "Adafactor"):
        pytest.skip("its state is not by row: it is refused, below")
    args: dict[str, Any] = {"SGD": {"momentum": 0.9, "nesterov": True}, "RMSprop": {"momentum": 0.5, "centered": True}}.get(
        target, {}
    )
    settings = own(f"{file}:{target}" if target in ("Halved", "Slow") else f"torch.optim:{target}", lr=0.02, args=args)
    config = run_config(model, epochs=4, optim=settings)
    config = dataclasses.replace(config, checkpoint=dataclasses.replace(config.checkpoint, every=2, keep=9))
    dataset = cases.graph_for(model)
    alone = pool(1)(_train, config, dataset, str(tmp_path / "alone"), "")[0]
    spread = pool(3)(_train, dataclasses.replace(config, world=3), dataset, str(tmp_path / "spread"), "")[0]
    np.testing.assert_allclose(spread, alone, rtol=1e-8)
    start = str(checkpoint.path_of(tmp_path / "alone", 2))
    assert pool(1)(_train, config, dataset, str(tmp_path / "again"), start)[0] == alone
    moved = pool(3)(_train, dataclasses.replace(config, world=3), dataset, str(tmp_path / "moved"), start)[0]
    np.testing.assert_allclose(moved, alone, rtol=1e-8)


@pytest.mark.parametrize(
    ("target", "changes", "words"),
    [
        ("torch.optim:LBFGS", {}, "cannot be used(.|\n)*closure"),
        ("torch.optim:SGD", {"args": {"momentun": 0.9}}, "cannot be used(.|\n)*momentun"),
        ("torch.optim:SGD", {"args": {"momentum": -1}}, "cannot be used(.|\n)*momentum"),
        ("torch.optim:Rprop", {"weight_decay": 0.1}, "weight decay"),
        ("torch.nn:Linear", {}, "torch.optim.Optimizer"),
        ("torch.optim:Adm", {}, "Adm"),
        ("FILE:not_one", {}, "torch.optim.Optimizer"),
        ("FILE:Listed", {}, "tensors and numbers(.|\n)*'all' is a list"),
        ("torch.optim:Rprop", {"weight_decay_of": {"first": 0.1}}, "weight decay"),
    ],
)
def test_wrong_optimizers(target: str, changes: dict[str, Any], words: str, file: Path) -> None:
    with pytest.raises(ConfigError, match=words):
        check_optimizer(own(target.replace("FILE", str(file)), **changes))


def test_an_optimizer_needs_a_target_and_a_target_custom() -> None:
    for settings in ({"name": "custom"}, {"target": "torch.optim:SGD"}):
        with pytest.raises(ConfigError, match="optim=custom optim.target=FILE.py:CLASS"):
            check(dataclasses.replace(cases.run_config(cases.model_config("gat")), optim=optim(**settings)), RUN)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"args": {"betas": [0.5, 0.9]}}, "optim=custom"),
        ({"name": "custom", "target": "torch.optim:SGD", "args": {"lr": 1.0}}, "optim.lr="),
        ({"name": "custom", "target": "torch.optim:SGD", "args": {"weight_decay": 1.0}}, "optim.weight_decay="),
    ],
)
def test_arguments_that_nothing_would_read(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        check(dataclasses.replace(cases.run_config(cases.model_config("gat")), optim=optim(**settings)), RUN)


def test_state_that_is_not_by_row_is_refused_where_rows_are_learned() -> None:
    config = run_config("rgcn", optim=own("torch.optim:Adafactor"))
    with pytest.raises(ConfigError, match="not by row"):
        cases.trainer_of(Group.single(), config, cases.graph_for("rgcn"))


@pytest.mark.parametrize(
    ("kind", "loss"),
    [
        ("classes", "torch.nn.functional:cross_entropy"),
        ("classes", "torch.nn:CrossEntropyLoss"),
        ("multilabel", "torch.nn.functional:binary_cross_entropy_with_logits"),
        ("regression", "torch.nn:MSELoss"),
    ],
)
def test_pytorchs_losses_by_their_names_are_ours(kind: Any, loss: str) -> None:
    """With labels that are not known."""
    dataset = nasty_graph() if kind == "classes" else with_task(nasty_graph(), kind)
    ours = losses(run_config(), dataset)
    for world in (1, 3):
        found = losses(run_config(optim=optim(loss=loss), world=world), dataset)
        np.testing.assert_allclose(found, losses(run_config(optim=optim(), world=world), dataset), rtol=1e-12)
        assert found != ours


def test_another_loss_is_the_same_on_all_worlds() -> None:
    dataset, config = with_task(nasty_graph(), "regression"), run_config(optim=optim(loss="torch.nn.functional:huber_loss"))
    alone = losses(config, dataset)
    np.testing.assert_allclose(losses(dataclasses.replace(config, world=4), dataset), alone, rtol=1e-8)
    assert alone != losses(run_config(optim=optim()), dataset)


@pytest.mark.parametrize(
    ("loss", "changes", "words"),
    [
        ("FILE:mean_only", {}, "add up"),
        ("FILE:not_one", {}, "names no loss"),
        ("FILE:Learned", {}, "it has parameters"),
        ("torch.nn:Linear", {}, "names no loss"),
        ("torch.nn.functional:mse_loss", {}, "names no loss"),
        ("torch.nn.functional:cross_entropy", {"label_smoothing": 0.1}, "labels' own loss"),
        ("torch.nn.functional:cross_entropy", {"class_weights": "balanced"}, "labels' own loss"),
    ],
)
def test_wrong_losses(loss: str, changes: dict[str, Any], words: str, file: Path) -> None:
    config = run_config(optim=optim(loss=loss.replace("FILE", str(file)), **changes))
    with pytest.raises(ConfigError, match=words):
        NodeTask.check(config, nasty_graph())


def test_a_loss_with_constants_of_its_own(file: Path) -> None:
    """Tried out in the precision of the run."""
    for precision in ("fp32", "fp64"):
        config = run_config(optim=optim(loss=f"{file}:Weighted"), precision=precision)
        NodeTask.check(config, nasty_graph())
        assert losses(config, nasty_graph()) != losses(run_config(optim=optim(), precision=precision), nasty_graph())


def _scores(group: Group, config: RunConfig, dataset: Dataset) -> list[dict[str, Any]]:
    trainer = cases.trainer_of(group, config, dataset)
    rows: list[dict[str, Any]] = []
    trainer.run(0, Rows(rows.append))
    return rows


def test_a_metric_of_one_s_own_sees_all_rows_in_their_order(file: Path) -> None:
    config = run_config(metric=f"{file}:order_counts", epochs=3)
    alone, spread = (pool(world)(_scores, dataclasses.replace(config, world=world), nasty_graph())[0] for world in (1, 3))
    for one, other in zip(alone, spread, strict=True):
        assert one["metric"] == "order_counts"
        for split in ("train", "val", "test"):
            assert one[f"{split}_metric"] and one[f"{split}_metric"] == pytest.approx(other[f"{split}_metric"], rel=1e-9)


def test_a_metric_that_ranks_would_not_agree_on(file: Path) -> None:
    """The first rank's value counts, so that they stop together."""
    config = run_config(metric=f"{file}:anything", epochs=40, early_stopping=1, world=3)
    ended = {len(rows) for rows in pool(3)(_scores, config, nasty_graph())[:1]}
    assert ended and max(ended) < 40


@pytest.mark.parametrize(
    ("metric", "words"),
    [
        ("FILE:accuracy", "none of .*accuracy"),
        ("torch:argmin", "a number"),
        ("FILE:not_one", "a number"),
        ("FILE:none", "none"),
    ],
)
def test_wrong_metrics(metric: str, words: str, file: Path) -> None:
    with pytest.raises(ConfigError, match=words):
        NodeTask.check(run_config(metric=metric.replace("FILE", str(file))), nasty_graph())


def test_a_metric_called_error_is_better_where_smaller(file: Path) -> None:
    config = run_config(metric=f"{file}:off_by_error", epochs=30, early_stopping=2)
    rows = pool(1)(_scores, config, nasty_graph())[0]
    values = [row["val_metric"] for row in rows]
    assert len(values) < 30 and min(values) < values[-1] and values.index(min(values)) == len(values) - 3
    assert is_better("off_by_error", 1.0, 2.0) and is_better("my_rmse", 1.0, 2.0) and is_better("order_counts", 2.0, 1.0)


def test_the_page_s_metric(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs/howto/best-accuracy.md").read_text()
    (tmp_path / "mymetric.py").write_text(page.split("`mymetric.py`:\n\n```python\n")[1].split("```")[0])
    command = next(line for line in page.splitlines() if "metric=mymetric.py" in line).split()
    done = sargnn_here(
        tmp_path, *command[1:], "dataset.num_nodes=300", "model.hidden=8", "tracking=none", "epochs=2", "world=2"
    )
    assert done.returncode == 0 and "top3" in done.stdout, done.stderr


@pytest.mark.long
def test_from_the_command_line(file: Path) -> None:
    """A run, its summary, its evaluation and the comparison say what the metric is called."""

    def sargnn(*words: str) -> str:
        run = sargnn_here(file.parent, *words)
        assert run.returncode == 0, run.stdout + run.stderr
        return run.stdout

    settings = ["dataset.num_nodes=300", "model.hidden=8", "tracking=none", "epochs=2", "world=2", "run_name=a"]
    chosen = [
        "optim=custom",
        "optim.target=own.py:Halved",
        "metric=own.py:off_by_error",
        "optim.loss=torch.nn:CrossEntropyLoss",
    ]
    sargnn("train", *settings, *chosen)
    summary = json.loads((file.parent / "runs" / "a" / "summary.json").read_text())
    assert summary["metric"] == "off_by_error" and summary["best_val_metric"] > 0
    sargnn("predict", "run=runs/a")
    assert "off_by_error" in sargnn("evaluate", "run=runs/a")
    evaluation = json.loads((file.parent / "runs" / "a" / "predictions" / "evaluation.json").read_text())
    assert evaluation["scores"]["predictions"]["test"] == pytest.approx(summary["test_metric"], rel=1e-6)
    assert "off_by_error" in sargnn("compare", "runs/a", "runs/a")
