"""Samples and steps, as Markdown tables and a picture for docs/maintainers/measured.md.

    .venv/bin/python scripts/steps_table.py samples FOLDER [KEY=VALUE ...]     memory of micro-batches of a sample, by grouping
    .venv/bin/python scripts/steps_table.py seeds FOLDER [KEY=VALUE ...]       accuracies beside stock DGL's sampler, five seeds
    .venv/bin/python scripts/steps_table.py time FOLDER [KEY=VALUE ...]        seconds until a validation accuracy is reached

Runs lie in FOLDER, and are not run again. Further settings hold for all of them, such as store_dir=FOLDER.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from itertools import accumulate
from pathlib import Path
from typing import Any

_BIN = Path(sys.executable).parent
_COMMON = ["tracking=none", "checkpoint.every=null", "model=sage", "optim.schedule=constant"]
_GRAPHS = {
    "products_like 0.08": ["dataset=products_like", "dataset.scale=0.08"],
    "weak communities": ["dataset=synthetic", "dataset.num_nodes=200000", "dataset.mean_degree=48", "dataset.homophily=0.4"],
}
_SMALL = ["dataset=products_like", "dataset.scale=0.02"]
_FANOUTS = "sample.fanouts=[10,10,10]"
_SEEDS = range(12)
_EPOCHS = 8
_STEPPED = ["eval_every=1", "optim.lr=0.003"]
_WAYS: dict[str, list[str]] = {
    "full batch": ["epochs=80", "eval_every=4"],
    "16 steps, all edges": ["epochs=5", "batches.steps=16", *_STEPPED],
    "16 steps, fan-outs 10": ["epochs=14", "batches.steps=16", *_STEPPED, _FANOUTS],
    "64 steps, fan-outs 10": ["epochs=8", "batches.steps=64", *_STEPPED, _FANOUTS],
}


def run(folder: Path, name: str, settings: list[str]) -> Path:
    """A run's folder; run where it is not there."""
    run_dir = folder / "".join(one if one.isalnum() else "-" for one in name)
    if not (run_dir / "summary.json").exists():
        words = [str(_BIN / "sargnn"), "train", *_COMMON, *settings, f"run_dir={run_dir}"]
        done = subprocess.run(words, check=False, capture_output=True, text=True)
        if done.returncode:
            sys.exit(done.stderr)
    return run_dir


def summary(run_dir: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run_dir / "summary.json").read_text())
    return found


def samples(folder: Path, settings: list[str]) -> None:
    """One step an epoch on a sample, in K micro-batches: peak and epoch against K = 1."""
    plain = ["world=1", "epochs=4", "eval_every=100", "model.norm=layer", "mfg=true", _FANOUTS]
    print("| graph | groups | K | peak, MB | / K = 1 | / random | epoch, s | / K = 1 | redundancy |")
    print("|---|---|---|---|---|---|---|---|---|")
    for graph, of_graph in _GRAPHS.items():
        one = summary(run(folder, f"{graph} 1", [*of_graph, *plain, *settings]))
        print(f"| {graph} | | 1 | {one['peak_train_bytes'][0] / 1e6:.0f} | | | {one['epoch_time_s']:.2f} | | |")
        first: dict[str, Any] = {}
        for by in ("random", "metis", "star"):
            batches = ["batches.count=8", f"batches.by={by}"]
            found = summary(run(folder, f"{graph} {by}", [*of_graph, *plain, *batches, *settings]))
            first = first or found
            peak, epoch = found["peak_train_bytes"][0], found["epoch_time_s"]
            print(
                f"| {graph} | `{by}` | 8 | {peak / 1e6:.0f} | {peak / one['peak_train_bytes'][0]:.2f} | "
                f"{peak / first['peak_train_bytes'][0]:.2f} | {epoch:.2f} | {epoch / one['epoch_time_s']:.2f} | "
                f"{found['batches']['redundancy']:.2f} |"
            )


def seeds(folder: Path, settings: list[str]) -> None:
    """Accuracies on the full graph after training on samples: here, on one and on four workers, and by stock DGL."""
    draws = [*_SMALL, f"epochs={_EPOCHS}", "eval_every=100", "batches.steps=8", _FANOUTS]
    found: dict[str, list[tuple[float, float]]] = {}
    for world in (1, 4):
        for seed in _SEEDS:
            run_dir = run(folder, f"seed {seed} world {world}", [*draws, f"world={world}", f"seed={seed}", *settings])
            scores = summary(run_dir)
            found.setdefault(f"this project, world {world}", []).append((scores["val_acc"], scores["test_acc"]))
            if world == 1:
                done = subprocess.run(
                    [sys.executable, __file__, "stock", str(run_dir)], check=True, capture_output=True, text=True
                )
                found.setdefault("stock DGL", []).append(tuple(json.loads(done.stdout.splitlines()[-1])))
    print("| | validation | test |")
    print("|---|---|---|")
    for name, each in found.items():
        cells = [f"{statistics.mean(one):.4f} ± {statistics.stdev(one):.4f}" for one in zip(*each, strict=True)]
        print(f"| {name} | {' | '.join(cells)} |")


def stock(run_dir: Path) -> None:
    """Train a run's configuration by stock DGL's sampler; print the accuracies of the full graph, validation and test."""
    import numpy as np
    import torch

    from sargnn.config.run import load
    from sargnn.graph.dataset import open_dataset
    from sargnn.graph.schema import SPLITS
    from sargnn.interop.dgl import import_dgl
    from sargnn.report.bench.networks import StockSampledSage
    from sargnn.sources.prepare import dataset_path

    config = load(run_dir / "config.yaml")
    torch.manual_seed(config.seed)
    dataset = open_dataset(dataset_path(config.dataset, config.store_dir), verify=False)
    dgl = import_dgl()
    network = StockSampledSage(config, dataset, dgl)
    network.number_of_samplers = 0
    optimizer = torch.optim.Adam(network.parameters(), lr=config.optim.lr, weight_decay=config.optim.weight_decay)
    for _ in range(config.epochs):
        network.train_epoch(optimizer)
    network.eval()
    network.dropout = 0.0
    with torch.no_grad():
        right = (network().argmax(1) == torch.from_numpy(np.asarray(dataset.labels).astype(np.int64))).numpy()
    split = np.asarray(dataset.split)
    print(json.dumps([float(right[split == SPLITS[name]].mean()) for name in ("valid", "test")]))


def time(folder: Path, settings: list[str]) -> None:
    """Training seconds until shares of the best validation accuracy that all ways reach; a picture of the curves."""
    graph = _GRAPHS["products_like 0.08"]
    curves: dict[str, list[tuple[float, float, float]]] = {}
    for name, own in _WAYS.items():
        rows = [json.loads(line) for line in (run(folder, name, [*graph, "world=1", *own, *settings]) / "metrics.jsonl").open()]
        ends = accumulate(row["epoch_time_s"] for row in rows)
        curves[name] = [
            (end, row["val_acc"], row["loss"]) for row, end in zip(rows, ends, strict=True) if row.get("val_acc") is not None
        ]
    best = min(max(value for _, value, _ in curve) for curve in curves.values())
    shares = (0.95, 0.98, 1.0)
    print(f"| way | {' | '.join(f'{share * best:.3f}' for share in shares)} | best | seconds an epoch |")
    print("|---" * (len(shares) + 3) + "|")
    for name, curve in curves.items():
        reached = [next(f"{end:.1f} s" for end, value, _ in curve if value >= share * best) for share in shares]
        epoch = summary(run(folder, name, []))["epoch_time_s"]
        print(f"| {name} | {' | '.join(reached)} | {max(value for _, value, _ in curve):.4f} | {epoch:.2f} |")
    _draw(folder / "time.png", curves)


def _draw(path: Path, curves: dict[str, list[tuple[float, float, float]]]) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.6), dpi=110, layout="constrained")
    both = figure.subplots(1, 2)
    for axes, column, title in zip(both, (2, 1), ("training loss", "validation accuracy"), strict=True):
        for name, curve in curves.items():
            axes.plot([one[0] for one in curve], [one[column] for one in curve], label=name)
        axes.set_xscale("log")
        axes.set_xlabel("seconds of training")
        axes.set_ylabel(title)
        axes.spines[["top", "right"]].set_visible(False)
    both[0].legend(frameon=False)
    figure.savefig(path)


if __name__ == "__main__":
    kinds = {"samples": samples, "seeds": seeds, "time": time}
    if len(sys.argv) == 3 and sys.argv[1] == "stock":
        stock(Path(sys.argv[2]))
    elif len(sys.argv) < 3 or sys.argv[1] not in kinds:
        sys.exit(__doc__)
    else:
        kinds[sys.argv[1]](Path(sys.argv[2]), sys.argv[3:])
