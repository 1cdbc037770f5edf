"""What tests of plans begin with."""

from __future__ import annotations

from sargnn.cli.compose import compose_verb
from sargnn.config.run import RunConfig, parse
from sargnn.graph.dataset import Dataset, open_dataset
from sargnn.memory.plan_run import Cut, find_cut
from sargnn.sources.prepare import prepare_dataset


def planned(words: list[str]) -> tuple[RunConfig, Dataset, Cut]:
    """What ``sargnn train`` runs on one machine, its dataset and the cut that a run has left."""
    config = parse(compose_verb("train", words)).on_one_machine
    path = prepare_dataset(config.dataset, config.store_dir, config.prepare.bytes)
    dataset = open_dataset(path, verify=False)
    return config, dataset, find_cut(config, dataset, path.name)
