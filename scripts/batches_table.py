"""Micro-batches by grouping, and planned memory beside measured, as Markdown tables for docs/maintainers/measured.md.

    .venv/bin/python scripts/batches_table.py groupings FOLDER [KEY=VALUE ...]
    .venv/bin/python scripts/batches_table.py planned FOLDER [KEY=VALUE ...]

Runs lie in FOLDER, and are not run again. Further settings hold for all of them, such as store_dir=FOLDER.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

_COMMON = ["tracking=none", "epochs=4", "eval_every=100", "optim.schedule=constant", "world=1"]
_GRAPHS = {
    "products_like 0.08": ["dataset=products_like", "dataset.scale=0.08"],
    "weak communities": ["dataset=synthetic", "dataset.num_nodes=200000", "dataset.mean_degree=48", "dataset.homophily=0.4"],
}
_SMALL = ["dataset=products_like", "dataset.scale=0.02"]
_SAGE = ["model=sage", "model.norm=layer"]
_LSTM = ["dataset=products_like", "dataset.scale=0.004", *_SAGE, "model.aggregator=lstm", "mode=one_shot", "model.num_layers=2",
         "model.hidden=64"]  # fmt: skip
_PLANNED = {
    "GraphSage 2 x 256": [*_SAGE, "model.num_layers=2"],
    "GraphSage 2 x 256, mfg": [*_SAGE, "model.num_layers=2", "mfg=true"],
    "GraphSage 2 x 256, K = 4": [*_SAGE, "model.num_layers=2", "batches.count=4"],
    "GraphSage 2 x 256, K = 8, random": [*_SAGE, "model.num_layers=2", "batches.count=8", "batches.by=random"],
    "GraphSage 3 x 128, K = 8": [*_SAGE, "model.hidden=128", "batches.count=8"],
    "GraphSage 3 x 256, batch norm, one kept": ["model=sage", "engine.keep_layers=2"],
    "GCN 3 x 256, K = 2": ["model=gcn", "model.norm=layer", "model.hidden=256", "batches.count=2"],
    "GAT 2 x 4 x 64, K = 8": ["model=gat", "model.norm=layer", "model.num_layers=2", "model.hidden=64", "batches.count=8"],
    "GAT 3 x 4 x 128": ["model=gat"],
    "GAT 3 x 4 x 128, mfg, two kept": ["model=gat", "mfg=true", "engine.keep_layers=2"],
    "GIN 3 x 128, K = 4": ["model=gin", "model.norm=none", "model.hidden=128", "batches.count=4"],
    "GraphSage 56 x 64, sqrt": [*_SMALL, "model=sage", "model.num_layers=56", "model.hidden=64", "model.residual=true",
                                "engine.keep_layers=sqrt"],
    "GraphSage 2 x 64, LSTM, K = 4": [*_LSTM, "batches.count=4"],
    "GraphSage 2 x 64, LSTM, K = 8": [*_LSTM, "batches.count=8"],
}  # fmt: skip


def run(folder: Path, name: str, settings: list[str]) -> dict[str, Any]:
    """A run's summary; run where it is not there."""
    run_dir = folder / "".join(one if one.isalnum() else "-" for one in name)
    summary = run_dir / "summary.json"
    if not summary.exists():
        command = ["sargnn", "train", *_COMMON, *settings, f"run_dir={run_dir}"]
        subprocess.run([str(Path(sys.executable).parent / command[0]), *command[1:]], check=False, capture_output=True)
    found: dict[str, Any] = json.loads(summary.read_text())
    print(f"{name}: {found.get('epoch_time_s')} s, {found.get('peak_train_bytes')}", file=sys.stderr, flush=True)
    return found


def groupings(folder: Path, settings: list[str]) -> None:
    """Peak, epoch and redundancy by grouping and number of micro-batches, against one view of all rows and of reached rows."""
    model = [*_SAGE, "model.num_layers=2", "model.hidden=256"]
    print("| graph | groups | K | peak, MB | / K = 1 | epoch, s | / K = 1 | redundancy |")
    print("|---|---|---|---|---|---|---|---|")
    for graph, of_graph in _GRAPHS.items():
        whole = run(folder, f"{graph} all", [*of_graph, *model, *settings])
        one = run(folder, f"{graph} mfg", [*of_graph, *model, "mfg=true", *settings])
        for name, first in (("all rows", whole), ("mfg", one)):
            peak, epoch = first["peak_train_bytes"][0] / 1e6, first["epoch_time_s"]
            print(f"| {graph} | {name} | 1 | {peak:.0f} | | {epoch:.2f} | | |")
        for by in ("star", "reg", "metis", "range", "random"):
            for count in (2, 4, 8, 16):
                batches = [f"batches.count={count}", f"batches.by={by}"]
                found = run(folder, f"{graph} {by} {count}", [*of_graph, *model, *batches, *settings])
                peak, epoch = found["peak_train_bytes"][0], found["epoch_time_s"]
                peaks, epochs = peak / one["peak_train_bytes"][0], epoch / one["epoch_time_s"]
                print(
                    f"| {graph} | {by} | {count} | {peak / 1e6:.0f} | {peaks:.2f} | {epoch:.2f} | {epochs:.2f} | "
                    f"{found['batches']['redundancy']:.2f} |"
                )


def planned(folder: Path, settings: list[str]) -> None:
    """What was planned for training beside what it held."""
    print("| run | planned, MB | measured, MB | error |")
    print("|---|---|---|---|")
    errors = []
    for name, own in _PLANNED.items():
        of_graph = [] if any(one.startswith("dataset=") for one in own) else _GRAPHS["products_like 0.08"]
        found = run(folder, name, [*of_graph, "memory_budget=900GB", *own, *settings])
        plan, peak = found["planned_train_bytes"][0], found["peak_train_bytes"][0]
        errors.append(plan / peak - 1)
        print(f"| {name} | {plan / 1e6:.0f} | {peak / 1e6:.0f} | {errors[-1]:+.1%} |")
    sizes = [abs(one) for one in errors]
    print(f"| mean, largest of absolute errors | | | {statistics.mean(sizes):.1%}, {max(sizes):.1%} |")


if __name__ == "__main__":
    kinds = {"groupings": groupings, "planned": planned}
    if len(sys.argv) < 3 or sys.argv[1] not in kinds:
        sys.exit(__doc__)
    kinds[sys.argv[1]](Path(sys.argv[2]), sys.argv[3:])
