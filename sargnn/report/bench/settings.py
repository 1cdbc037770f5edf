"""The settings of benchmarks, checked as ``sargnn.config.run`` checks those of a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from sargnn.config.fields import AT_LEAST_ONE, NOT_NEGATIVE, build, gone
from sargnn.config.groups import GONE_PRECISIONS, Precision
from sargnn.config.run import DATASETS, DatasetSettings
from sargnn.errors import ConfigError, nearest


@dataclass(frozen=True)
class BenchKernelsConfig:
    """``sargnn bench kernels``: the compiled kernel against DGL's operators, or PyTorch's without DGL.

    Attributes:
        operations: which; ``sum`` and ``mean`` of rows; forward and backward: ``weighted`` for sums with edge weights, ``gat``
            for attention, ``norm`` for what stands between two layers.
        order: of the nodes: as workers have them, or as the dataset has them.
        widths: features of the rows that are summed or normalised.
        heads: of attention, each of ``head_width`` features.
        repeats: interleaved measurements of each kernel.
        bench_dir: where results go.
    """

    dataset: DatasetSettings = field(metadata=DATASETS)
    operations: list[Literal["sum", "mean", "weighted", "gat", "norm"]]
    order: Literal["locality", "original"]
    widths: list[int]
    heads: list[int]
    head_width: int = field(metadata=AT_LEAST_ONE)
    repeats: int = field(metadata=AT_LEAST_ONE)
    threads: int | None = field(metadata=AT_LEAST_ONE)
    seed: int = field(metadata=NOT_NEGATIVE)
    store_dir: str
    bench_dir: str


def parse_bench_kernels(mapping: dict[str, Any]) -> BenchKernelsConfig:
    """Check a resolved mapping. Raises ``ConfigError`` with the name of the first wrong key."""
    config = build(BenchKernelsConfig, mapping, "")
    for name, example in (("widths", "[100,128,256]"), ("heads", "[2,4,8]")):
        if min(getattr(config, name), default=0) < 1:
            raise ConfigError(f"'{name}' must name numbers of at least 1.", given=getattr(config, name), allowed=example)
    if not config.operations:
        raise ConfigError("'operations' names none.", allowed="some of [sum,mean,weighted,gat,norm]")
    return config


@dataclass(frozen=True)
class BenchGpuConfig:
    """``sargnn bench gpu``: a GPU's kernels, checked and timed, and an attention layer beside PyG's.

    Attributes:
        widths: features of rows that are summed.
        heads: of attention, each of ``head_width`` columns.
        features: of the layer's input.
        precisions: of the rows.
        repeats: measurements of each.
        bench_dir: where results go.
    """

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
    """Check a resolved mapping. Raises ``ConfigError`` with the name of the first wrong key."""
    config = build(BenchGpuConfig, mapping, "")
    if "mixed" in config.precisions:
        raise ConfigError("Kernels have no precision of products.", given="mixed", allowed="fp32, bf16, fp64")
    return config


@dataclass(frozen=True)
class BenchTableConfig:
    """``sargnn bench table``: runs of this project beside stock DGL and stock PyG in one process.

    Attributes:
        cases: name -> overrides of a run.
        models: which of them; another name is that option of ``model``.
        modes, worlds: each mode runs on each number of workers.
        rounds: how often the whole sequence of a case is repeated.
        stock: also run stock DGL, as it comes and with huge pages on, and stock PyG on an edge index and on a CSR matrix.
        not_static: those of the modes that also run without the static aggregate of the first layer, where they have one.
        one_process: those of the modes that also run with all of a world's parts in one process, which has all cores.
        limits: also measure the machine's limits, and profile the first mode on the first world against them.
        others: name -> command of a further row (``bench.table.measure.measure`` says what it is given and prints).
        bench_dir: where results go; those that are there are kept.
        precisions: further ones, beside the runs' own: each run is also measured in them, and stock DGL in bf16.
    """

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
    """Check a resolved mapping. Raises ``ConfigError`` with the name of the first wrong key."""
    config = build(BenchTableConfig, mapping, "")
    _check_grid(config, needed=("models", "modes", "worlds"))
    return config


def _check_grid(config: BenchTableConfig | BenchPlanConfig, needed: Sequence[str]) -> None:
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


@dataclass(frozen=True)
class BenchPlanConfig:
    """``sargnn bench plan``: planned memory, and time, beside measured.

    Attributes:
        cases: name -> overrides of a run.
        models: which of them run in each of ``modes`` on each of ``worlds``; another name is that option of ``model``.
        more: name -> a case, and overrides of it.
        named: which of them run, too; ``all`` of them.
        drawn: so many further runs have settings that are drawn at random from ``draw_seed``.
        bench_dir: where results go; runs that are there are kept.
    """

    cases: dict[str, list[str]]
    models: list[str]
    modes: list[str]
    worlds: list[int]
    more: dict[str, list[str]]
    named: Literal["all"] | list[str]
    drawn: int = field(metadata=NOT_NEGATIVE)
    draw_seed: int = field(metadata=NOT_NEGATIVE)
    bench_dir: str

    @property
    def named_runs(self) -> list[str]:
        """Names of further runs."""
        return list(self.more) if self.named == "all" else list(self.named)


def parse_bench_plan(mapping: dict[str, Any]) -> BenchPlanConfig:
    """Check a resolved mapping. Raises ``ConfigError`` with the name of the first wrong key."""
    config = build(BenchPlanConfig, mapping, "")
    _check_grid(config, needed=("modes", "worlds"))
    if len(set(config.named_runs)) < len(config.named_runs):
        raise ConfigError("'named' names one twice.", given=config.named_runs)
    for name in config.named_runs:
        if name not in config.more:
            raise ConfigError("There is no such run.", given=f"named=[{name}]", allowed=nearest(name, config.more))
        if not config.more[name] or config.more[name][0] not in config.cases:
            raise ConfigError(f"'more.{name}' begins with a case.", given=config.more[name], allowed=list(config.cases))
    return config
