"""The compiled kernel against stock operators: ``python -m benchmarks.kernels``; ``operators`` and ``attention`` measure."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from benchmarks.command import call
from sargnn.cli.command_line import CommandLine
from sargnn.cli.compose import compose_verb
from sargnn.cli.verb import Verb
from sargnn.config.choices import DATASETS, DatasetSettings
from sargnn.config.fields import AT_LEAST_ONE, NOT_NEGATIVE, build
from sargnn.errors import ConfigError
from sargnn.interop.dgl import NOT_INSTALLED, is_installed
from sargnn.run.env import default_threads, worker_environment
from sargnn.tracking.memory import human_bytes
from sargnn.tracking.progress import say
from sargnn.tracking.tables import show_table

VERB = Verb(
    "benchmarks.kernels",
    "compiled sums, attention and norms against other operators",
    usage="[key=value ...] [dataset=option]",
    text="Compiled sums, means and attention against DGL's operators (PyTorch's where there is no DGL), what stands "
    "between layers against PyTorch's, interleaved in one process: medians with quartiles, JSON, a table, plots.",
    entry="benchmarks.kernels:main",
    examples=(
        ("benchmarks.kernels", ""),
        ("benchmarks.kernels 'operations=[sum]' 'widths=[64,256]'", ""),
        ("benchmarks.kernels 'operations=[gat]' dataset.scale=0.04", ""),
    ),
    config="bench_kernels",
    program="python -m",
)


@dataclass(frozen=True)
class BenchKernelsConfig:
    """``python -m benchmarks.kernels``: the compiled kernel against DGL's operators, or PyTorch's without DGL.

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


def main(line: CommandLine) -> int:
    """Measure; prints the tables."""
    config = parse_bench_kernels(compose_verb("bench_kernels", line.overrides, keep=("bench_dir",), folders=line.folders))
    # As workers have it; before torch is imported.
    os.environ.update(worker_environment(config.threads or default_threads(1)))
    from benchmarks.operators import run

    results = run(config)
    shown = {"rows": sums_table, "weighted": weighted_table, "attention": attention_table, "norms": norms_table}
    for name, table in shown.items():
        if results[name]:
            table(results[name])
    say("stock: DGL's operators" if is_installed() else f"stock: PyTorch's operators (kernel=reference); {NOT_INSTALLED}")
    say(f"figures and plots: {Path(config.bench_dir)}")
    return 0


def _ms(figure: dict[str, Any], digits: int = 0) -> str:
    return f"{figure['median_s'] * 1e3:.{digits}f}"


def sums_table(rows: Sequence[dict[str, Any]]) -> None:
    """Print sums and means: medians with quartiles, and how many times faster the compiled kernel is."""

    def with_quartiles(figure: dict[str, Any]) -> str:
        low, high = figure["quartiles_s"]
        return f"{_ms(figure)} ({low * 1e3:.0f}-{high * 1e3:.0f})"

    cells = [
        [
            row["operation"],
            str(row["width"]),
            *(with_quartiles(row[name]) for name in ("stock", "fused")),
            *(f"{row[name]:.2f}" for name in ("speedup", "speedup_fold", "speedup_fresh")),
        ]
        for row in rows
    ]
    heads = ("", "width", "stock", "fused", "faster", "folded", "new")
    show_table(heads, cells, title="Stock sums and the compiled kernel: median ms (quartiles)", words=("",))
    say("faster: stock / fused, which adds into the destination rows; folded: stock's added")
    say("to them too; new: both into a new tensor")


def weighted_table(rows: Sequence[dict[str, Any]]) -> None:
    """Print sums with edge weights: medians, beside sums without and stock ones."""
    cells = [
        (
            str(row["width"]),
            _ms(row["sum"]),
            _ms(row["weighted"]),
            f"{row['ratio']:.2f}",
            _ms(row["stock"]),
            f"{row['speedup']:.2f}",
        )
        for row in rows
    ]
    heads = ("width", "sum", "weighted", "weighted / sum", "stock, weighted", "stock / ours")
    show_table(heads, cells, title="Sums with edge weights, forward and backward: median ms")


def attention_table(rows: Sequence[dict[str, Any]]) -> None:
    """Print attention: medians, how many times faster the compiled kernel is, and peak memory."""
    cells: list[Sequence[str] | None] = []
    for row in rows:
        for heads, part in zip((str(row["heads"]), "", ""), ("forward", "backward", "total"), strict=True):
            cells.append((heads, part, *(_ms(row[side][part]) for side in ("stock", "fused")), f"{row['speedup'][part]:.1f}"))
        stock, fused = (row[side]["peak_bytes"] for side in ("stock", "fused"))
        cells += [("", "peak memory", human_bytes(stock), human_bytes(fused), f"{fused / stock:.2f} of it"), None]
    title = "Attention, stock operators and the compiled kernel: median ms"
    show_table(("heads", "pass", "stock", "fused", "faster"), cells, title=title, words=("pass",))
    say("from rows and scores to the output and all gradients; peak above these and the")
    say("graph, the output let go after forward")


def norms_table(rows: Sequence[dict[str, Any]]) -> None:
    """Print norms: medians of batch norm and layer norm, and PyTorch's times as multiples of them."""
    cells = [
        [
            str(row["width"]),
            *(_ms(row[name], 1) for name in ("batch", "layer")),
            *(f"{row[name]:.2f}" for name in ("layer_ratio", "batch_speedup", "layer_speedup")),
        ]
        for row in rows
    ]
    heads = ("width", "batch", "layer", "layer / batch", "torch / batch", "torch / layer")
    show_table(heads, cells, title="Norm, ReLU and dropout, forward and backward: median ms")
    say("batch, layer: compiled, with a mask drawn by id; torch: PyTorch's operators")


if __name__ == "__main__":
    sys.exit(call(VERB, sys.argv[1:]))
