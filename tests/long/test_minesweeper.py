"""A published model on a published graph: a GCN of 12 layers for PyG on minesweeper (Platonov et al., 2023)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from sargnn.cli.compose import compose_verb
from sargnn.config.models import CustomSettings
from sargnn.config.run import parse
from sargnn.graph.dataset import open_dataset
from sargnn.graph.schema import SPLITS
from sargnn.sources.prepare import prepare_dataset
from sargnn.training.optim import learning_rate
from tests.parity import cases
from tests.pool import pool

FILE = Path(__file__).parents[3] / "shared" / "data" / "minesweeper" / "minesweeper.npz"
MODULE = Path(__file__).parents[2] / "examples" / "layers" / "pyg_gcn.py"
pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not FILE.exists(), reason="needs ../shared/data/minesweeper"),
]


def test_losses_of_four_workers_are_those_of_pyg(tmp_path: Path) -> None:
    words = ["dataset=arrays", f"dataset.root={FILE}", "dataset.split_column=0", f"store_dir={tmp_path}"]
    stored = parse(compose_verb("train", words))
    dataset = open_dataset(prepare_dataset(stored.dataset, stored.store_dir), verify=False)
    model = CustomSettings("custom", target=f"{MODULE}:DeepGCN", args={"dropout": 0.0})
    config = cases.run_config(model, world=4, partitioner="metis", epochs=30)
    namespace: dict[str, type[torch.nn.Module]] = {}
    exec(MODULE.read_text(), namespace)
    torch.manual_seed(config.seed)
    x = torch.from_numpy(np.array(dataset.features[0])).double()
    module = namespace["DeepGCN"](x.shape[1], dataset.num_classes, dropout=0.0).double()
    destination = np.repeat(np.arange(dataset.num_nodes), np.diff(dataset.indptr))
    index = torch.from_numpy(np.stack([np.asarray(dataset.indices).astype(np.int64), destination]))
    rows = torch.from_numpy(np.flatnonzero(np.asarray(dataset.split) == SPLITS["train"]))
    labels = torch.from_numpy(np.array(dataset.labels))
    optimizer, wanted = torch.optim.Adam(module.parameters(), lr=config.optim.lr), []
    for epoch in range(config.epochs):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(config.optim, epoch, config.epochs)
        loss = F.cross_entropy(module(x, index)[rows], labels[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        wanted.append(loss.item())
    for answer in pool(4)(cases.curve, config, dataset):
        np.testing.assert_allclose(answer["losses"], wanted, rtol=1e-8)
