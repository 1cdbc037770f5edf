"""Bytes that an epoch sends, known beforehand: to the byte what a run counts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sargnn.cli.compose import compose_verb
from sargnn.comm.group import Group
from sargnn.config.run import RunConfig, parse
from sargnn.graph.dataset import open_dataset
from sargnn.partition.prepare import prepare_partition
from sargnn.partition.quality import quality_of
from sargnn.partition.store import open_part
from sargnn.partition.trial import Trial
from sargnn.report.partitions import compared
from sargnn.sources.prepare import prepare_dataset
from sargnn.training.build import make_trainer
from tests.parity.covering import only
from tests.pool import pool

GRAPH = ("dataset=products_like", "dataset.scale=0.002")
TYPED = ("dataset=mag_like", "dataset.scale=0.002")
CASES = {
    "sage": (*GRAPH, "model=sage"),
    "sage, labels": (*GRAPH, "model=sage", "labels=masked", "comm.aggregate=pre"),
    "gat": (*GRAPH, "model=gat"),
    "gat, kept": (*GRAPH, "model=gat", "mode=no_remat", "precision=bf16"),
    "gat, rows": (*GRAPH, "model=gat", "mode=one_shot", "comm.aggregate=post"),
    "sage, autograd": (*GRAPH, "model=sage", "mode=domain_parallel"),
    "rgcn": (*TYPED, "model=rgcn"),
    "rgcn, autograd": (*TYPED, "model=rgcn", "mode=domain_parallel"),
}


def sent_in_the_second_epoch(group: Group, config: RunConfig, folder: str, num_classes: int) -> int:
    trainer = make_trainer(config, open_part(Path(folder), group.rank), num_classes, group)
    for epoch in range(2):
        group.traffic.reset()
        trainer.loop.train_epoch(epoch)
    return group.traffic.sent_bytes


@pytest.mark.parametrize("name", only(["sage, labels", "gat, kept", "rgcn"], CASES))
def test_bytes_of_an_epoch(name: str, tmp_path: Path) -> None:
    words = [*CASES[name], "world=3", f"store_dir={tmp_path}/stores"]
    config = parse(compose_verb("train", words))
    path = prepare_dataset(config.dataset, config.store_dir, config.prepare.bytes)
    dataset, info = open_dataset(path, verify=False), prepare_partition(config, path)
    sent = pool(3)(sent_in_the_second_epoch, config, str(info.path), dataset.num_classes)
    part = np.empty(dataset.num_nodes, np.int32)
    for rank in range(3):
        part[open_part(info.path, rank).node_ids] = rank
    trial = Trial("metis", 0.0, 0, quality_of(dataset, part, 3), part)
    assert compared(trial, dataset, config).epoch_bytes == sum(sent) > 0
