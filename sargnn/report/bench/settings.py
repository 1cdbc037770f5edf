"""What benchmarks are told, checked as ``sargnn.config.run`` checks a run; what each says about itself; stock networks."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from sargnn.config.choices import DATASETS, DatasetSettings
from sargnn.config.fields import AT_LEAST_ONE, build, gone
from sargnn.config.groups import GONE_PRECISIONS, Precision
from sargnn.errors import ConfigError, writing
from sargnn.tracking.provenance import versions


@dataclass(frozen=True)
class BenchGpuConfig:
    """``sargnn bench gpu``; ``conf/bench_gpu.yaml`` says what each setting is."""

    dataset: DatasetSettings = field(metadata=DATASETS)
    widths: list[int]
    heads: list[int]
    head_width: int = field(metadata=AT_LEAST_ONE)
    features: int = field(metadata=AT_LEAST_ONE)
    precisions: list[Precision] = field(metadata=gone(GONE_PRECISIONS))
    repeats: int = field(metadata=AT_LEAST_ONE)
    store_dir: str
    bench_dir: str


def parse_bench_gpu(mapping: dict[str, Any]) -> BenchGpuConfig:
    """Raises ``ConfigError`` with the name of the first wrong key."""
    config = build(BenchGpuConfig, mapping, "")
    if "mixed" in config.precisions:
        raise ConfigError("Kernels have no precision of products.", given="mixed", allowed="fp32, bf16, fp64")
    return config


@dataclass(frozen=True)
class BenchTableConfig:
    """``sargnn bench table``; ``conf/bench_table.yaml`` says what each setting is, ``bench.measure.measure`` what further
    commands are given and print."""

    cases: dict[str, list[str]]
    models: list[str]
    modes: list[str]
    worlds: list[int]
    rounds: int = field(metadata=AT_LEAST_ONE)
    stock: bool
    not_static: list[str]
    one_process: list[str]
    limits: bool
    others: dict[str, str]
    bench_dir: str
    precisions: list[Precision] = field(default_factory=list, metadata=gone(GONE_PRECISIONS))


def parse_bench_table(mapping: dict[str, Any]) -> BenchTableConfig:
    """Raises ``ConfigError`` with the name of the first wrong key."""
    config = build(BenchTableConfig, mapping, "")
    check_grid(config, needed=("models", "modes", "worlds"))
    return config


def check_grid(config: Any, needed: Sequence[str]) -> None:
    for name in needed:
        if not getattr(config, name):
            raise ConfigError(f"'{name}' names none.", hint=f"{name}=[A,B]")
    for name in ("models", "modes", "worlds"):
        values = getattr(config, name)
        if len(set(values)) < len(values):
            raise ConfigError(f"'{name}' names one twice.", given=values)
    if min(config.worlds) < 1:
        raise ConfigError("'worlds' must name numbers of at least 1.", given=config.worlds, allowed="[4,8]")
    if not config.bench_dir:
        raise ConfigError("'bench_dir' must be a folder.", given="''")


def machine() -> dict[str, Any]:
    # A figure means nothing without these.
    return {
        "cores": len(os.sched_getaffinity(0)),
        "memory_gb": round(psutil.virtual_memory().total / 1e9),
        "platform": f"{platform.system()} {platform.machine()}",
        "versions": versions(),
    }


def open_folder(folder: Path, names: Sequence[str]) -> None:
    """Make it and its files, before anything long is begun. Raises ``ConfigError`` where they cannot be written."""
    with writing("The folder", folder, hint="choose another bench_dir"):
        folder.mkdir(parents=True, exist_ok=True)
        for name in names:
            (folder / name).open("a").close()


DGL_MODELS = {
    "sage": "sargnn.report.bench.networks:StockSage",
    "gat": "sargnn.report.bench.networks:StockGat",
    "rgcn": "sargnn.report.bench.networks:StockRgcn",
    "custom": "sargnn.report.bench.networks:StockCustom",
}
SAMPLED_MODELS = {"sage": "sargnn.report.bench.networks:StockSampledSage"}
"""DGL's, where steps or neighbours are drawn."""
PYG_MODELS = {
    "sage": "sargnn.report.bench.networks:PygSage",
    "gat": "sargnn.report.bench.networks:PygGat",
    "rgcn": "sargnn.report.bench.networks:PygRgcn",
}
FREE_OF_LINKS = ("embedding_dim", "temperature", "margin", "mlp_hidden", "rank")
"""Settings of ``links`` that stock networks have, too, or that do not matter to them."""
FORMS = {"edge_index": "edge index", "csr": "CSR"}
"""What stock PyG is given as the graph -> what a row calls it."""
