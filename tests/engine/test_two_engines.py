"""Two engines in one process: neither sees the other's memory, profile, epoch or settings."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest

from sargnn.comm.group import Group
from sargnn.config.run import RunConfig
from sargnn.profile import AGGREGATION, EVALUATION, LINEAR, OPTIMIZER, Profile
from sargnn.training.trainer import Trainer
from tests.graphs import nasty_graph
from tests.parity import cases
from tests.parity.covering import spread
from tests.pool import pool

EPOCHS = 4
GRAPH = nasty_graph(seed=5)
ONE = cases.run_config(cases.model_config("gat"), mode="sar", precision="fp64", epochs=EPOCHS)
OTHERS = {
    "baseline": cases.run_config(cases.model_config("gat"), mode="domain_parallel", precision="fp32", epochs=EPOCHS, seed=7),
    "precision": cases.run_config(cases.model_config("gat"), mode="sar", precision="fp32", epochs=EPOCHS),
    "mode": cases.run_config(cases.model_config("sage"), mode="one_shot", epochs=EPOCHS, cache_static=False, prefetch_depth=0),
    "same": cases.run_config(cases.model_config("gat"), mode="sar", precision="fp64", epochs=EPOCHS),
}


def run_in_turn(group: Group, configs: Sequence[RunConfig], recording: Sequence[bool]) -> list[dict[str, Any]]:
    """Train one engine for each configuration, an epoch of each in turn, and evaluate them in the opposite order."""
    trainers: list[Trainer] = []
    for config, records in zip(configs, recording, strict=True):
        own = group.again(profile=Profile(recording=records))
        trainers.append(cases.trainer_of(own, dataclasses.replace(config, world=group.world), GRAPH))
    losses: list[list[float]] = [[] for _ in trainers]
    for epoch in range(EPOCHS):
        for found, trainer in zip(losses, trainers, strict=True):
            found.append(trainer.loop.train_epoch(epoch).loss)
    pooled = [trainer.engine.pool.most_used for trainer in trainers]  # an evaluation begins with a reset
    accuracies = [trainer.evaluator.evaluate().scores for trainer in reversed(trainers)][::-1]
    pools = [trainer.engine.pool for trainer in trainers]
    assert len({id(one) for one in pools}) == len(pools)
    return [
        {
            "losses": found,
            "accuracies": accuracy,
            "sent": trainer.engine.group.traffic.sent_bytes,
            "pooled": most,
            "events": [category for category, *_ in trainer.engine.profile.events],
            "done": {name: trainer.engine.profile.done[name] for name in (AGGREGATION, LINEAR)},
        }
        for found, accuracy, most, trainer in zip(losses, accuracies, pooled, trainers, strict=True)
    ]


@pytest.mark.parametrize(("other", "world"), spread(list(OTHERS), [1, 2]))
def test_each_trains_as_it_does_alone(other: str, world: int) -> None:
    """To the last bit: losses, accuracies, bytes sent, memory of the pool, spans and the work that is counted."""
    configs, recording = [ONE, OTHERS[other]], [True, True]
    alone = [pool(world)(run_in_turn, [config], [True]) for config in configs]
    for rank, together in enumerate(pool(world)(run_in_turn, configs, recording)):
        assert together == [alone[0][rank][0], alone[1][rank][0]]


@pytest.mark.parametrize("records", [(True, False), (False, True)])
def test_a_profile_records_its_own_engine_only(records: tuple[bool, bool]) -> None:
    ((first, second),) = pool(1)(run_in_turn, [ONE, OTHERS["baseline"]], records)
    for found, recorded in zip((first, second), records, strict=True):
        assert found["events"].count(OPTIMIZER) == EPOCHS * recorded
        assert found["events"].count(EVALUATION) == recorded
        assert (found["done"][LINEAR] > 0) == recorded


def test_only_the_engine_that_uses_its_pool_fills_it() -> None:
    ((fused, stock),) = pool(1)(run_in_turn, [ONE, OTHERS["baseline"]], [False, False])
    assert fused["pooled"] > 0 and stock["pooled"] == 0
