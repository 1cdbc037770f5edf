"""Training modes against worlds, with stock DGL beside them, from one run.

    python scripts/modes_table.py [--worlds 2,4,8] [--modes sar,no_remat,one_shot,domain_parallel] [--rounds 2]
                                  [--epochs 6] [--out FOLDER] [OVERRIDE ...]

Every round runs stock DGL (as it comes, and with huge pages on) and then each mode on each world; rounds repeat the whole
sequence, so that a drift of the machine meets all alike. Figures are medians over rounds of each run's medians, with the
smallest and largest beside. For GraphSage, ``sar`` runs with and without the static first-layer aggregate. Stock DGL is run
for model=sage and model=gat. With sharded embeddings the table also has the largest peak less their optimizer state, the two
tables that are resident at any time. Writes ``modes.json``, ``modes.md`` and ``memory.png`` into FOLDER.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from composed import config_of

from sargnn.bench.report import machine
from sargnn.config import RunConfig
from sargnn.data.prepare import prepare_dataset
from sargnn.models.gat import Gat
from sargnn.models.rgcn import Rgcn
from sargnn.models.sage import Sage
from sargnn.tracking.memory import human_bytes

DEFAULTS = ["dataset=products_like", "dataset.scale=0.08", "model.dropout=0", "tracking=none"]
OPTIMIZER_TABLES = 2
"""Of the embeddings' size: Adam's two moments."""
Runs = dict[str, list[dict[str, Any]]]


def stock(config: RunConfig, store: Path, epochs: int, *, huge_pages: bool) -> dict[str, Any]:
    """One run of ``stock_dgl.py`` with as many threads as there are cores."""
    environment = {**os.environ, "THP_MEM_ALLOC_ENABLE": "1" if huge_pages else "0"}
    if not huge_pages:
        del environment["THP_MEM_ALLOC_ENABLE"]
    model = config.model
    command = [
        sys.executable, str(Path(__file__).with_name("stock_dgl.py")), str(store), f"--model={model.name}",
        f"--epochs={epochs}", f"--dropout={model.dropout}", f"--layers={model.num_layers}", f"--hidden={model.hidden}",
        f"--threads={len(os.sched_getaffinity(0))}", *(["--self-loops"] if config.add_self_loops else []),
    ]  # fmt: skip
    if isinstance(model, Gat):
        command += [f"--heads={model.heads}", f"--out-heads={model.out_heads}", f"--attn-dropout={model.attn_dropout}"]
    answer: dict[str, Any] = json.loads(subprocess.run(command, env=environment, check=True, capture_output=True).stdout)
    return {"epoch_time_s": answer["epoch_time_s"], "peak_train_bytes": [answer["peak_train_bytes"]]}


def stock_has(config: RunConfig) -> bool:
    """Whether ``stock_dgl.py`` builds this model."""
    model = config.model
    plain = (model.norm, model.activation, model.residual, model.input_dropout) == ("batch", "relu", False, 0)
    if isinstance(model, Sage):
        return plain and model.aggregator == "mean"
    return plain and isinstance(model, Gat) and not model.v2 and model.negative_slope == 0.2


def train(overrides: list[str], folder: Path) -> dict[str, Any]:
    """One ``sargnn train``; its summary."""
    command = [sys.executable, "-m", "sargnn.cli.main", "train", *overrides, f"run_dir={folder}"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stderr}")
    summary: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    return summary


def spread(values: list[float], digits: int = 2) -> str:
    """Median, and smallest to largest where there are several."""
    text = f"{median(values):.{digits}f}"
    return text if len(values) == 1 else f"{text} ({min(values):.{digits}f}-{max(values):.{digits}f})"


def table(runs: Runs) -> str:
    """The Markdown table."""
    heads = ["run", "world", "static aggregate", "epoch s", "waiting s", "exchanged per epoch", "largest peak"]
    embedded = any(any(one["sharded_params"]) for repeats in runs.values() for one in repeats if "sharded_params" in one)
    heads += [*(["less embeddings' state"] if embedded else []), "peak of each rank, MB"]
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for name, repeats in runs.items():
        label, world, static = name.split("|")
        peaks = [median(peaks) for peaks in zip(*(r["peak_train_bytes"] for r in repeats), strict=True)]
        wait = spread([r["comm_wait_time_s"] for r in repeats]) if "comm_wait_time_s" in repeats[0] else "-"
        moved = human_bytes(repeats[0]["comm_bytes_per_epoch"]) if "comm_bytes_per_epoch" in repeats[0] else "-"
        ranks = " ".join(f"{peak / 1e6:.0f}" for peak in peaks)
        epoch = spread([r["epoch_time_s"] for r in repeats])
        cells = [label, world, static, epoch, wait, moved, human_bytes(max(peaks))]
        if embedded:
            tables = (OPTIMIZER_TABLES * 4 * numbers for numbers in repeats[0]["sharded_params"])  # fp32
            cells.append(human_bytes(max(peak - table for peak, table in zip(peaks, tables, strict=True))))
        lines.append(f"| {' | '.join([*cells, ranks])} |")
    return "\n".join(lines)


def plot(path: Path, runs: Runs, title: str) -> None:
    """Largest rank's peak against the number of workers, a line per mode."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.2), dpi=110, layout="constrained")
    axes = figure.subplots()
    curves: dict[str, list[tuple[int, float]]] = {}
    for name, repeats in runs.items():
        label, world, static = name.split("|")
        peak = median(max(r["peak_train_bytes"]) for r in repeats) / 1e6
        if label == "stock DGL":
            axes.axhline(peak, color="0.5", linestyle="--", linewidth=1)
            axes.annotate("stock DGL, one process", (1, peak), (-4, -12), xycoords=("axes fraction", "data"),
                          textcoords="offset points", ha="right", fontsize=9, color="0.4")  # fmt: skip
        elif world != "1" and static != "off" and "huge" not in label:
            curves.setdefault(label, []).append((int(world), peak))
    worlds = sorted({world for curve in curves.values() for world, _ in curve})
    for number, (label, curve) in enumerate(curves.items()):
        # The first ones are drawn wider: for sums and means sar and no_remat lie on each other.
        axes.plot(*zip(*curve, strict=True), marker="o", linewidth=max(1.5, 5 - 2 * number), label=label)
    axes.set_xscale("log", base=2)
    axes.set_xticks(worlds, [str(world) for world in worlds])
    axes.set_ylim(bottom=0)
    axes.set_xlabel("workers")
    axes.set_ylabel("peak training memory of a worker, MB")
    axes.set_title(title, fontsize=10)
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--worlds", default="2,4,8")
    parser.add_argument("--modes", default="sar,no_remat,one_shot,domain_parallel")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--out", type=Path, default=Path("modes_table"))
    parser.add_argument("--no-stock", action="store_true")
    parser.add_argument("overrides", nargs="*")
    arguments = parser.parse_args()
    experiment = any(one.startswith("experiment=") for one in arguments.overrides)
    defaults = ["tracking=none"] if experiment else DEFAULTS
    shared = [*defaults, f"epochs={arguments.epochs}", f"eval_every={arguments.epochs}", *arguments.overrides]
    config = config_of(shared)
    store = prepare_dataset(config.dataset, config.store_dir)
    with_stock = not arguments.no_stock and stock_has(config)
    if not (with_stock or arguments.no_stock):
        print("stock_dgl.py does not build this model; the table has no stock DGL", flush=True)
    # Attention's rows are never constant, nor are embeddings.
    statics = ("auto",) if isinstance(config.model, Gat | Rgcn) else ("auto", "false")
    runs: Runs = {}
    with tempfile.TemporaryDirectory(prefix="modes-table-") as scratch:
        for number in range(arguments.rounds):
            if with_stock:
                for label, huge in (("stock DGL", False), ("stock DGL, huge pages", True)):
                    runs.setdefault(f"{label}|1|-", []).append(stock(config, store, arguments.epochs, huge_pages=huge))
            for world in arguments.worlds.split(","):
                for mode in arguments.modes.split(","):
                    for static in statics if mode == "sar" else ("auto",):
                        chosen = [f"mode={mode}", f"world={world}", f"engine.cache_static={static}"]
                        summary = train([*shared, *chosen], Path(scratch) / f"{number}-{mode}-{world}-{static}")
                        used = "on" if summary["cache_static"] else "off" if mode == "sar" and len(statics) > 1 else "never"
                        runs.setdefault(f"{mode}|{world}|{used}", []).append(summary)
                        print(
                            f"round {number + 1}: {mode}, world {world}, {static}: {summary['epoch_time_s']:.2f} s", flush=True
                        )
    arguments.out.mkdir(parents=True, exist_ok=True)
    text = table(runs)
    (arguments.out / "modes.md").write_text(text + "\n")
    about = {"overrides": shared, "rounds": arguments.rounds, **machine()}
    (arguments.out / "modes.json").write_text(json.dumps({"about": about, "runs": runs}, indent=1) + "\n")
    heads = f"{config.model.heads} x " if isinstance(config.model, Gat) else ""
    model = f"{config.model.name} {config.model.num_layers} x {heads}{config.model.hidden}"
    plot(arguments.out / "memory.png", runs, f"{model} on {config.dataset.name}, partitioner {config.partitioner.name}")
    print(text)


if __name__ == "__main__":
    main()
