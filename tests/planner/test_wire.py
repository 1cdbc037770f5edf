"""Bytes that an epoch sends, known beforehand: to the byte what a run counts."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from sargnn.cli.compose import compose_verb
from sargnn.comparison.partitions import compared
from sargnn.config import parse
from sargnn.data.dataset import open_dataset
from sargnn.data.prepare import prepare_dataset
from sargnn.partition.prepare import prepare_partition
from sargnn.partition.quality import quality_of
from sargnn.partition.store import open_part
from sargnn.partition.trial import Trial
from tests.in_process import sargnn_here

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


LONG = ("sage, labels", "gat, kept", "gat, rows", "rgcn, autograd", "sage, autograd")


@pytest.mark.parametrize("name", [pytest.param(one, marks=pytest.mark.long if one in LONG else ()) for one in CASES])
def test_bytes_of_an_epoch(name: str, tmp_path: Path) -> None:
    words = [*CASES[name], "world=3", "epochs=2", "eval_every=10", "tracking=none", f"store_dir={tmp_path}/stores"]
    done = sargnn_here(tmp_path, "train", *words, "run_dir=run")
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    config = parse(compose_verb("train", words))
    path = prepare_dataset(config.dataset, config.store_dir, config.prepare.bytes)
    dataset, info = open_dataset(path, verify=False), prepare_partition(config, path)
    part = np.empty(dataset.num_nodes, np.int32)
    for rank in range(3):
        part[open_part(info.path, rank).node_ids] = rank
    trial = Trial("metis", 0.0, 0, quality_of(dataset, part, 3), part)
    assert compared(trial, dataset, config).epoch_bytes == rows[1]["comm_bytes"] > 0
