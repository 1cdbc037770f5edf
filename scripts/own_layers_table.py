"""Modules of DGL's layers, unmodified, against the package's own models: epoch times and peaks, run by run in turn.

    python scripts/own_layers_table.py 3 dataset=products_like dataset.scale=0.08 epochs=5
    python scripts/own_layers_table.py 2 'cases=sage;gat' worlds=4 dataset=sbm dataset.num_nodes=200000

The first argument is the number of rounds, the others are overrides of ``sargnn train``; ``cases`` chooses rows of ``CASES``,
``worlds`` the numbers of workers. Each round trains the model of the package and the module in turn. Prints a Markdown table of
medians over the rounds: the module's figure over the model's.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

LAYERS = Path(__file__).resolve().parent.parent / "examples" / "layers"
_PLAIN = ["model.dropout=0.0", "model.norm=none"], ["model.args.dropout=0.0", "model.args.norm=false"]
CASES: dict[str, tuple[list[str], list[str]]] = {
    "sage": (["model=sage"], [f"model.target={LAYERS}/dgl_sage.py:Sage"]),
    "sage, no norm, no dropout": (["model=sage", *_PLAIN[0]], [f"model.target={LAYERS}/dgl_sage.py:Sage", *_PLAIN[1]]),
    "gat": (["model=gat"], [f"model.target={LAYERS}/dgl_gat.py:Gat", "dataset.add_self_loops=true"]),
    "gatv2": (["model=gat", "model.v2=true"], [f"model.target={LAYERS}/dgl_gat.py:Gat", "model.args.v2=true", "dataset.add_self_loops=true"]),
}  # fmt: skip
Figures = dict[str, float]


def trained(overrides: list[str], world: int, folder: Path) -> Figures:
    """One run's epoch time in s and largest peak of a worker in bytes."""
    run_dir = Path(tempfile.mkdtemp(dir=folder)) / "run"
    command = [
        sys.executable, "-m", "sargnn.cli.main", "train", *overrides, f"world={world}", f"run_dir={run_dir}",
        f"store_dir={folder / 'stores'}", "tracking=none",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    summary = json.loads((run_dir / "summary.json").read_text())
    return {"epoch": summary["epoch_time_s"], "peak": max(summary["peak_train_bytes"]), "loss": summary["losses"][-1]}


def main() -> None:
    """Train every case on every world in turn."""
    rounds, given = int(sys.argv[1]), sys.argv[2:]
    chosen = next((one.partition("=")[2].split(";") for one in given if one.startswith("cases=")), list(CASES))
    worlds = next((one.partition("=")[2].split(",") for one in given if one.startswith("worlds=")), ["4"])
    overrides = [one for one in given if not one.startswith(("cases=", "worlds="))]
    print(f"{len(os.sched_getaffinity(0))} cores; {' '.join(overrides)}; {rounds} rounds\n")
    print("| | epoch s: model, module | ratio (each round) | peak MB: model, module | ratio |\n|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(os.environ.get("OWN_LAYERS_FOLDER", name))
        for case in chosen:
            for world in map(int, worlds):
                found: list[tuple[Figures, Figures]] = []
                for _ in range(rounds):
                    model, module = CASES[case.strip()]
                    pair = [[*overrides, *model], [*overrides, "model=custom", *module]]
                    one, other = (trained(each, world, folder) for each in pair)
                    found.append((one, other))
                print(_row(f"{case.strip()}, world {world}", found), flush=True)


def _row(name: str, found: list[tuple[Figures, Figures]]) -> str:
    times, peaks = (
        [(one[key], other[key]) for one, other in found] for key in ("epoch", "peak")
    )  # fmt: skip
    ratios = [other / one for one, other in times]
    (a, b), (c, d) = ((median(one for one, _ in pairs), median(other for _, other in pairs)) for pairs in (times, peaks))
    each = " ".join(f"{one:.2f}" for one in ratios)
    return f"| {name} | {a:.2f}, {b:.2f} | {median(ratios):.2f} ({each}) | {c / 1e6:.1f}, {d / 1e6:.1f} | {d / c:.2f} |"


if __name__ == "__main__":
    main()
