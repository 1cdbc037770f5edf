"""Predictions: in the order of original ids, the same from any world, mode and kernel."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from sargnn.comm.group import Group
from sargnn.config.groups import LabelsConfig, SmoothConfig
from sargnn.config.run import RunConfig
from sargnn.graph.dataset import Dataset
from sargnn.training import checkpoint
from sargnn.training.evaluation import write_predictions
from tests.graphs import nasty_graph, typed_graph
from tests.parity import cases
from tests.pool import pool

GRAPHS = {"sage": nasty_graph(), "gat": nasty_graph(), "rgcn": typed_graph()}
NODES = {"sage": 300, "gat": 300, "rgcn": 148}


def train(group: Group, config: RunConfig, dataset: Dataset, run_dir: str) -> None:
    trainer = cases.trainer_of(group, config, dataset)
    trainer.run(0, checkpoint.Checkpoints(trainer, config, "some", Path(run_dir)))


def predict(group: Group, config: RunConfig, dataset: Dataset, start: str, folder: str) -> list[str]:
    trainer = cases.trainer_of(group, config, dataset)
    checkpoint.load(trainer, Path(start))
    manifest = write_predictions(trainer, Path(folder), embeddings=True)
    assert manifest["nodes"] == NODES[config.model.name]
    return list(manifest["files"])


@pytest.mark.parametrize("name", GRAPHS)
def test_anywhere_the_same(tmp_path: Path, name: str) -> None:
    config = cases.run_config(cases.model_config(name), world=2, epochs=5, labels=LabelsConfig("masked", 0.5, 1), mfg=True)
    config = dataclasses.replace(
        config,
        checkpoint=dataclasses.replace(config.checkpoint, every=5),
        smooth=SmoothConfig("cs"),
        partitioner=config.partitioner,
    )
    pool(2)(train, config, GRAPHS[name], str(tmp_path / "run"))
    start = str(checkpoint.path_of(tmp_path / "run", 5))
    found = []
    for world, mode, kernel, partitioner in (
        (1, "sar", "reference", "range"),
        (4, "sar", "fused", "random"),
        (2, "domain_parallel", "dgl", "metis"),
        (4, "one_shot", "fused", "by_type" if name == "rgcn" else "empty"),
    ):
        folder = tmp_path / f"{world}{mode}"
        folder.mkdir()
        own = cases.run_config(
            cases.model_config(name), world=world, mode=mode, kernel=kernel, partitioner=partitioner, labels=config.labels
        )
        files = pool(world)(predict, dataclasses.replace(own, smooth=config.smooth), GRAPHS[name], start, str(folder))[0]
        assert sorted(files) == ["embeddings.npy", "logits.npy", "predictions.npy", "smoothed.npy"]
        assert sorted(path.name for path in folder.iterdir()) == sorted(files)
        found.append({file: np.load(folder / file) for file in files})
    first = found[0]
    assert first["predictions.npy"].shape == (NODES[name],) and first["predictions.npy"].dtype == np.int64
    assert first["embeddings.npy"].shape == (NODES[name], 15 if name == "gat" else 10)
    assert np.array_equal(first["predictions.npy"], first["smoothed.npy"].argmax(1))
    for other in found[1:]:
        for file, values in first.items():
            np.testing.assert_allclose(other[file], values, rtol=1e-8, atol=1e-10, err_msg=file)


def test_in_the_order_of_original_ids(tmp_path: Path) -> None:
    config = cases.run_config(cases.model_config("sage"), world=4, partitioner="random", epochs=1)
    config = dataclasses.replace(config, checkpoint=dataclasses.replace(config.checkpoint, every=1))
    pool(4)(train, config, GRAPHS["sage"], str(tmp_path))
    start = checkpoint.path_of(tmp_path, 1)
    (tmp_path / "out").mkdir()
    pool(4)(predict, config, GRAPHS["sage"], str(start), str(tmp_path / "out"))
    trainer = cases.trainer_of(Group.single(), dataclasses.replace(config, world=1), GRAPHS["sage"])
    checkpoint.load(trainer, start)
    by_id = np.empty((300, 5))
    by_id[trainer.ids.numpy()] = trainer.evaluator.predictions().numpy()
    np.testing.assert_allclose(np.load(tmp_path / "out" / "logits.npy"), by_id, rtol=1e-9)
