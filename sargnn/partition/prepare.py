"""From a dataset store to a partition store: reused when the key matches, made otherwise."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from sargnn.config.run import RunConfig
from sargnn.config.verbs import PartitionConfig
from sargnn.errors import ConfigError
from sargnn.graph.check import range_to_json, weight_range
from sargnn.graph.dataset import Dataset, open_dataset
from sargnn.graph.edge_columns import names_to_json
from sargnn.graph.store import StoreWriter
from sargnn.partition import PARTITIONERS
from sargnn.partition.balance import Room
from sargnn.partition.crew import Crew
from sargnn.partition.kaminpar import threads_of
from sargnn.partition.memory import available_bytes, check
from sargnn.partition.order import VERSION as ORDER_VERSION
from sargnn.partition.pairs import put_pairs
from sargnn.partition.part import offsets_of
from sargnn.partition.preload import Bounds, write_preloaded
from sargnn.partition.simple import CANDIDATES, assign_in_servers, choose
from sargnn.partition.stages import Unfinished, claim_unfinished, cut_parts, has_assignment, join_parts, order_parts
from sargnn.partition.store import ASSIGNMENT, FORMAT_VERSION, PartitionInfo, open_part, partition_info
from sargnn.resolve import resolve
from sargnn.sources.prepare import key_of
from sargnn.steps import step


def prepare_partition(config: RunConfig | PartitionConfig, dataset_path: Path) -> PartitionInfo:
    """The partition store for a dataset store, made if there is none for this dataset, partitioner and world.

    Raises:
        ConfigError: an unknown partitioner, or more workers than nodes.
        StoreError: a damaged store.
    """
    dataset = open_dataset(dataset_path, verify=False)
    config = with_choice(config, dataset, dataset_path.name)
    path, identity = partition_path(config, dataset, dataset_path.name)
    if not path.exists():
        with claim_unfinished(path) as work:
            if work is not None:
                _make(config, dataset_path, work, path, identity)
    return partition_info(path)


def _make(
    config: RunConfig | PartitionConfig, dataset_path: Path, work: Unfinished, path: Path, identity: dict[str, Any]
) -> None:
    """Make a store, or what is left to make of it."""
    dataset, settings, world = open_dataset(dataset_path, verify=False), config.partitioner, config.world
    assignment = work.find_assignment(dataset.num_nodes, world)
    cut = assignment is not None
    check(dataset, settings.choice, settings.order, world, available_bytes(), settings.coarsen, cut=cut)
    started = time.perf_counter()
    dataset = open_dataset(dataset_path, verify=True)
    new = _assign(config, dataset) if assignment is None else None
    with StoreWriter(path, "partition", FORMAT_VERSION, into=work.store) as writer:
        if new is not None:
            work.keep_assignment(new)
            del new  # it is mapped from here on
        crew = Crew(threads_of(settings), config.prepare.bytes, work.descriptors)
        threads = None  # of KaMinPar, which finds clusters where METIS might not fit, so that it has not cut the graph either
        if settings.target is None and settings.name in ("kaminpar", "stream"):
            threads = threads_of(settings) if settings.name == "kaminpar" else 1  # as repeatable as the cut
        order = order_parts(work, dataset_path, world, settings.order, threads, crew)
        if config.joined is not None:
            order = join_parts(dataset.schema, *order, config.joined)
            writer.put(ASSIGNMENT, work.open_assignment())
        stats = cut_parts(work, writer, dataset_path, *order, crew)
        pairs = {} if dataset.pairs is None else put_pairs(writer, dataset.pairs, *order)
        writer.meta = _meta(dataset, len(order[0]) - 1) | {
            **pairs,
            "partition_time_s": time.perf_counter() - started,
            "stats": dataclasses.asdict(stats),
            "made_by": identity,
        }


def with_choice(config: RunConfig | PartitionConfig, dataset: Dataset, name: str) -> RunConfig | PartitionConfig:
    """With one of the partitioners in place of ``auto``: one that has cut already, whether or not all parts are written, or the
    first that fits. ``name``: of the dataset store's folder.
    """
    settings = config.partitioner
    if settings.target is not None or settings.name != "auto":
        return config
    every = [dataclasses.replace(config, partitioner=settings.as_candidate(partitioner)) for partitioner in CANDIDATES]
    paths = [partition_path(choice, dataset, name)[0] for choice in every]
    present = [path.exists() for path in paths] + [has_assignment(path) for path in paths]
    there = next((choice for choice, here in zip(2 * every, present, strict=True) if here), None)
    return there or dataclasses.replace(config, partitioner=choose(dataset, settings, available_bytes()))


def _assign(config: RunConfig | PartitionConfig, dataset: Dataset) -> np.ndarray:
    """Each node's part, int32 [N]."""
    assign, servers = _assigner(config), config.num_servers
    into = f"{config.world}" if servers == 1 else f"{servers} servers of {config.world // servers}"
    step(f"partitioning by {config.partitioner.name} into {into}")
    if servers == 1 or not config.partitioner.cuts_servers:
        assignment = assign(dataset, config.world)
    else:
        assignment = assign_in_servers(dataset, assign, config.world, servers)
    return np.asarray(assignment, np.int32)


def _assigner(config: RunConfig | PartitionConfig) -> Callable[[Dataset, int], np.ndarray]:
    assign = resolve("partitioner", PARTITIONERS, config.partitioner.choice)
    settings, folder = config.partitioner, Path(config.store_dir) / "partitions"
    if settings.target is not None:
        return lambda dataset, parts: assign(dataset, parts, settings)
    # Files of partitioners lie beside the stores, so that sargnn clean finds what is left of them.
    folder.mkdir(parents=True, exist_ok=True)
    room = Room(folder, config.prepare.bytes)
    return lambda dataset, parts: assign(dataset, parts, settings, room)


def prepare_preloaded(
    config: RunConfig | PartitionConfig, dataset_path: Path, partition: PartitionInfo, bounds: Bounds
) -> PartitionInfo:
    """The store of parts that hold what their servers preload, made from a partition's if there is none. Raises ``StoreError``
    for a damaged store.
    """
    identity = {"version": FORMAT_VERSION, "partition": partition.partition_hash, "preload": bounds.identity()}
    path = partition.path.parent / f"{partition.path.name}-preload-s{config.num_servers}-{key_of(identity)}"
    if not path.exists():
        started = time.perf_counter()
        dataset = open_dataset(dataset_path, verify=True)
        parts = [np.asarray(open_part(partition.path, rank).node_ids) for rank in range(config.world)]
        with StoreWriter(path, "partition", FORMAT_VERSION) as writer:
            ends = offsets_of(parts), np.concatenate(parts)
            stats, servers = write_preloaded(writer, dataset, *ends, config.num_servers, bounds)
            writer.meta = _meta(dataset, config.world) | {
                "partition_time_s": time.perf_counter() - started,
                "stats": dataclasses.asdict(stats),
                "preload": {"hops": bounds.hops, "bounds": bounds.identity(), "servers": servers},
                "made_by": identity,
            }
    return partition_info(path)


def _meta(dataset: Dataset, world: int) -> dict[str, Any]:
    return {
        "world": world,
        "num_nodes": dataset.num_nodes,
        "num_edges": dataset.num_edges,
        "schema": dataset.schema.to_json(),
        "feature_widths": dataset.feature_widths,
        "num_classes": dataset.num_classes,
        "task": dataset.task,
        **({"edge_weights": range_to_json(weights)} if (weights := weight_range(dataset)) is not None else {}),
        **names_to_json(dataset.columns.forms),
        "dataset_name": dataset.name,
        "dataset_hash": dataset.content_hash,
    }


def partition_path(config: RunConfig | PartitionConfig, dataset: Dataset, name: str) -> tuple[Path, dict[str, Any]]:
    """The folder of the partition store, which may not be there yet, and what decides its content, JSON-able.

    ``name``: of the dataset store's folder. Raises ``ConfigError`` for more workers than nodes, or a partitioner's file that
    cannot be read.
    """
    if config.world > dataset.num_nodes:
        raise ConfigError(
            "There are more workers than nodes in the graph.",
            given=f"world={config.world}",
            allowed=f"at most {dataset.num_nodes}",
        )
    joined = config.joined
    identity = {
        "version": FORMAT_VERSION,
        "order_version": ORDER_VERSION,
        "dataset": dataset.content_hash,
        "partitioner": config.partitioner.identity,
        "world": config.world,
        **({"servers": config.num_servers} if config.num_servers > 1 else {}),
        **({} if joined is None else {"joined": joined}),
    }
    into = f"w{config.world}" if joined is None else f"w{config.world}-p{joined}"
    key = f"{name}-{config.partitioner.name}-{into}-{key_of(identity)}"
    return Path(config.store_dir) / "partitions" / key, identity
