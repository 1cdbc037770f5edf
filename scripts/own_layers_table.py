"""Modules of DGL's layers, unmodified, against the package's own models: epoch times and peaks, run by run in turn.

    python scripts/own_layers_table.py 3 dataset=products_like dataset.scale=0.08 epochs=5
    python scripts/own_layers_table.py 2 'cases=sage;gat' worlds=4 dataset=sbm dataset.num_nodes=200000

The first argument is the number of rounds, the others are overrides of ``sargnn train``; ``cases`` chooses rows of ``CASES``,
``worlds`` the numbers of workers. Each round trains the model of the package and the module in turn, then the module on DGL's
own graph in one process with all cores. Prints a Markdown table of medians over the rounds: the module's figure over the
model's, and over stock DGL's.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from sargnn.config.run import load
from sargnn.sources.prepare import prepare_dataset

LAYERS = Path(__file__).resolve().parent.parent / "examples" / "layers"
_PLAIN = ["model.dropout=0.0", "model.norm=none"], ["model.args.dropout=0.0", "model.args.norm=false"]
CASES: dict[str, tuple[list[str], list[str]]] = {
    "sage": (["model=sage"], [f"model.target={LAYERS}/dgl_sage.py:Sage"]),
    "sage, no norm, no dropout": (["model=sage", *_PLAIN[0]], [f"model.target={LAYERS}/dgl_sage.py:Sage", *_PLAIN[1]]),
    "gat": (["model=gat"], [f"model.target={LAYERS}/dgl_gat.py:Gat", "dataset.add_self_loops=true"]),
    "gatv2": (
        ["model=gat", "model.v2=true"],
        [f"model.target={LAYERS}/dgl_gat.py:Gat", "model.args.v2=true", "dataset.add_self_loops=true"],
    ),
}  # fmt: skip
CORES = len(os.sched_getaffinity(0))
Figures = dict[str, float]


def trained(overrides: list[str], world: int, folder: Path) -> tuple[Path, Figures]:
    """One run's folder, its epoch time in s and the largest peak of a worker in bytes."""
    run_dir = Path(tempfile.mkdtemp(dir=folder)) / "run"
    command = [
        sys.executable, "-m", "sargnn.cli.main", "train", *overrides, f"world={world}", f"run_dir={run_dir}",
        f"store_dir={folder / 'stores'}", "tracking=none",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    summary = json.loads((run_dir / "summary.json").read_text())
    return run_dir, {"epoch": summary["epoch_time_s"], "peak": max(summary["peak_train_bytes"])}


def stock(run_dir: Path) -> Figures:
    """The same of a run's module on the whole graph in one process of stock DGL."""
    config = load(run_dir / "config.yaml")
    store = prepare_dataset(config.dataset, config.store_dir, config.prepare.bytes)  # which is there
    command = [sys.executable, "-m", "sargnn.report.bench.process", str(run_dir / "config.yaml"), str(store), str(CORES)]
    found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return {"epoch": median(found["times_s"][1:]), "peak": found["peak_train_bytes"]}


def main() -> None:
    """Train every case on every world in turn."""
    rounds, given = int(sys.argv[1]), sys.argv[2:]
    chosen = next((one.partition("=")[2].split(";") for one in given if one.startswith("cases=")), list(CASES))
    worlds = next((one.partition("=")[2].split(",") for one in given if one.startswith("worlds=")), ["4"])
    overrides = [one for one in given if not one.startswith(("cases=", "worlds="))]
    print(f"{CORES} cores; {' '.join(overrides)}; {rounds} rounds\n")
    print(
        "| | epoch s: model, module | ratio (each round) | peak MB: model, module | ratio | epoch / stock's | peak / stock's |"
    )
    print("|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(os.environ.get("OWN_LAYERS_FOLDER", name))
        for case in chosen:
            for world in map(int, worlds):
                found: list[tuple[Figures, Figures, Figures]] = []
                for _ in range(rounds):
                    model, module = CASES[case.strip()]
                    pair = [[*overrides, *model], [*overrides, "model=custom", *module]]
                    (_, one), (run_dir, other) = (trained(each, world, folder) for each in pair)
                    found.append((one, other, stock(run_dir)))
                print(_row(f"{case.strip()}, world {world}", found), flush=True)


def _row(name: str, found: Sequence[tuple[Figures, ...]]) -> str:
    times, peaks = ([[one[key] for one in found_at] for found_at in found] for key in ("epoch", "peak"))
    shown = [name]
    for figures, unit in ((times, 1.0), (peaks, 1e6)):
        ratios = [module / model for model, module, _ in figures]
        medians = [median(column) / unit for column in zip(*figures, strict=True)]
        shown.append(f"{medians[0]:.2f}, {medians[1]:.2f}" if unit == 1 else f"{medians[0]:.1f}, {medians[1]:.1f}")
        shown.append(
            f"{median(ratios):.2f} ({' '.join(f'{one:.2f}' for one in ratios)})" if unit == 1 else f"{median(ratios):.2f}"
        )
    shown += [f"{median(module / whole for _, module, whole in figures):.2f}" for figures in (times, peaks)]
    return f"| {' | '.join(shown)} |"


if __name__ == "__main__":
    main()
