"""The memory of one training step of a model, in a process of its own."""

from __future__ import annotations

from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch

from sargnn.comm.group import Group
from sargnn.graph.dataset import Dataset, by_destination
from sargnn.graph.schema import SPLITS
from tests.parity import cases

NODES, CLASSES = 20_000, 64
TABLE = 4 * NODES * CLASSES
"""Bytes of a table [NODES, CLASSES]."""


def random_graph() -> Dataset:
    rng = np.random.default_rng(0)
    source, destination = rng.integers(NODES, size=(2, 3 * NODES))
    indptr, indices = by_destination(source, destination, NODES)
    features, labels = rng.standard_normal((NODES, 8)).astype(np.float32), rng.integers(CLASSES, size=NODES)
    split = np.full(NODES, SPLITS["train"], np.uint8)
    return Dataset.homogeneous("random", CLASSES, features, labels, split, indptr, indices)


def send_peak(pipe: Connection, name: str, changes: dict[str, Any]) -> None:
    """Send the peak in bytes of a training step, above what is resident before it."""
    torch.set_num_threads(1)
    config = cases.run_config(cases.model_config(name, **changes), precision="fp32")
    trainer = cases.trainer_of(Group.single(), config, random_graph())
    pipe.send([trainer.loop.train_epoch(epoch).ranks.peak_train_bytes[0] for epoch in range(2)][1])
