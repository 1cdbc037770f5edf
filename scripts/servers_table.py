"""Servers on links of limited rate, as Markdown tables for docs/maintainers/measured.md.

    .venv/bin/python scripts/servers_table.py rates FOLDER [KEY=VALUE ...]     epochs with and without preloading, by rate
    .venv/bin/python scripts/servers_table.py choice FOLDER [KEY=VALUE ...]    what preload=auto chooses, by rate
    .venv/bin/python scripts/servers_table.py deep FOLDER [KEY=VALUE ...]      28 layers: flat, shared, a sample of the border
    .venv/bin/python scripts/servers_table.py seeds FOLDER [KEY=VALUE ...]     accuracies of flat and of the sample, three seeds
    .venv/bin/python scripts/servers_table.py memory FOLDER [KEY=VALUE ...]    memory of a worker, by layers and servers

Runs lie in FOLDER, and are not run again. Two hosts are network namespaces (``scripts/hosts.py``: root, ip and tc) with two
workers each, of one thread. Further settings hold for all runs, such as store_dir=FOLDER.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

_BIN, _HOSTS = Path(sys.executable).parent, Path(__file__).with_name("hosts.py")
_COMMON = ["tracking=none", "threads=1", "checkpoint.every=null", "eval_every=100"]
_GRAPHS = {
    "products_like 0.04": ["dataset=products_like", "dataset.scale=0.04"],
    "weak communities": ["dataset=synthetic", "dataset.num_nodes=100000", "dataset.mean_degree=48", "dataset.homophily=0.4"],
}
_SMALL = ["dataset=products_like", "dataset.scale=0.02"]
_BORDER = ["preload=shared", "preload.max_hop=1", "preload.fanout=15"]
_WAYS = {"flat": ["preload=none"], "shared preloading": ["preload=shared"]}
_ROUNDS, _SEEDS = 2, range(3)


def on_hosts(folder: Path, name: str, rate: str, settings: list[str], each: int = 2) -> dict[str, Any]:
    """A run's summary, of two servers on two hosts; run where it is not there."""
    run_dir = folder / "".join(one if one.isalnum() else "-" for one in name)
    if not (run_dir / "summary.json").exists():
        words = [*_COMMON, f"world={2 * each}", "servers=2", *settings, f"run_dir={run_dir}"]
        _call([str(_BIN / "sargnn"), "slurm", *words])
        _call([sys.executable, "-m", "sargnn.run.job", "begin", str(run_dir)])
        limit = [] if rate == "none" else ["--rate", rate]
        command = [sys.executable, str(_HOSTS), "--hosts", "2", "--each", str(each), *limit, "--ranks", sys.executable]
        _call([*command, "-m", "sargnn.run.task", str(run_dir)])
    found: dict[str, Any] = json.loads((run_dir / "summary.json").read_text())
    return found


def here(folder: Path, name: str, settings: list[str]) -> dict[str, Any]:
    """A run's summary, of workers that share one network; run where it is not there."""
    run_dir = folder / "".join(one if one.isalnum() else "-" for one in name)
    if not (run_dir / "summary.json").exists():
        _call([str(_BIN / "sargnn"), "train", *_COMMON, *settings, f"run_dir={run_dir}"])
    found: dict[str, Any] = json.loads((run_dir / "summary.json").read_text())
    return found


def _call(words: list[str]) -> None:
    done = subprocess.run(words, check=False, capture_output=True, text=True, env=os.environ)
    if done.returncode:
        sys.exit(done.stdout[-2000:] + done.stderr)


def _epochs(runs: list[dict[str, Any]]) -> tuple[float, str]:
    times = [one["epoch_time_s"] for one in runs]
    return statistics.median(times), f"{statistics.median(times):.2f} ({min(times):.2f}-{max(times):.2f})"


def rates(folder: Path, settings: list[str]) -> None:
    """Each round runs both ways one after the other."""
    print("| graph | rate | epoch, flat, s | shared preloading, s | / flat | between servers, MB: flat, shared | / flat |")
    print("|---|---|---|---|---|---|---|")
    for graph, of_graph in _GRAPHS.items():
        for rate in ("50mbit", "300mbit", "500mbit", "700mbit", "1gbit", "1500mbit", "2gbit", "none"):
            runs: dict[str, list[dict[str, Any]]] = {way: [] for way in _WAYS}
            for number in range(_ROUNDS):
                for way, words in _WAYS.items():
                    plain = [*of_graph, "model=sage", "epochs=5", *words, *settings]
                    runs[way].append(on_hosts(folder, f"{graph} {rate} {way} {number}", rate, plain))
            flat, shared = (_epochs(one) for one in runs.values())
            crossed = [one[0]["between_servers_bytes_per_epoch"] for one in runs.values()]
            sent = f"{crossed[0] / 1e6:.1f}, {crossed[1] / 1e6:.2f} | {crossed[1] / crossed[0]:.3f}"
            print(f"| {graph} | {rate} | {flat[1]} | {shared[1]} | {shared[0] / flat[0]:.2f} | {sent} |", flush=True)


def choice(folder: Path, settings: list[str]) -> None:
    """What is computed of the way that was not taken, too."""
    print("| graph | rate | chosen | step with, s | step without, s | a worker sends between servers, MB/s |")
    print("|---|---|---|---|---|---|")
    for graph, of_graph in _GRAPHS.items():
        for rate in (
            "300mbit",
            "500mbit",
            "600mbit",
            "700mbit",
            "800mbit",
            "900mbit",
            "1gbit",
            "1250mbit",
            "1500mbit",
            "2gbit",
        ):
            words = [*of_graph, "model=sage", "epochs=1", "preload=auto", *settings]
            one = on_hosts(folder, f"{graph} {rate} auto", rate, words)["preload"]
            times = f"{one['step_s_with']:.2f} | {one['step_s_without']:.2f}"
            print(
                f"| {graph} | {rate} | {one['chosen']} | {times} | {one['between_servers_bytes_per_s'] / 1e6:.1f} |", flush=True
            )


def deep(folder: Path, settings: list[str]) -> None:
    """28 layers of width 64 at 50 Mbit/s."""
    print("| | epoch, s | / flat | between servers, MB | peak of a worker, MB |")
    print("|---|---|---|---|---|")
    first = 0.0
    for way, words in (_WAYS | {"1 hop, 15 neighbours": _BORDER}).items():
        plain = [*_SMALL, "model=resgcn", "epochs=3", *words, *settings]
        found = on_hosts(folder, f"deep {way}", "50mbit", plain)
        first = first or found["epoch_time_s"]
        crossed, peak = found["between_servers_bytes_per_epoch"] / 1e6, max(found["peak_train_bytes"]) / 1e6
        time = f"{found['epoch_time_s']:.2f} | {found['epoch_time_s'] / first:.3f}"
        print(f"| {way} | {time} | {crossed:.1f} | {peak:.0f} |", flush=True)


def seeds(folder: Path, settings: list[str]) -> None:
    """28 layers, 60 epochs, two workers that are two servers."""
    print("| graph | way | test at best validation, by seed | mean |")
    print("|---|---|---|---|")
    for graph, of_graph in {"synthetic": ["dataset=synthetic"], "products_like 0.02": _SMALL}.items():
        for way, words in {"flat": ["preload=none"], "1 hop, 15 neighbours": _BORDER}.items():
            found = []
            for seed in _SEEDS:
                plain = [*of_graph, "model=resgcn", "epochs=60", "eval_every=5", "world=2", "servers=2", f"seed={seed}"]
                found.append(here(folder, f"{graph} {way} {seed}", [*plain, *words, *settings])["test_acc_at_best_val"])
            each = ", ".join(f"{one:.4f}" for one in found)
            print(f"| {graph} | {way} | {each} | {statistics.mean(found):.4f} ± {statistics.stdev(found):.4f} |", flush=True)


def memory(folder: Path, settings: list[str]) -> None:
    """The largest worker's peak above what it had loaded, four workers."""
    print("| model | flat, MB | shared, 2 servers | 1 hop, 15 neighbours, 2 servers | shared, 4 servers |")
    print("|---|---|---|---|---|")
    ways = {"flat": ["servers=2"], "shared": ["servers=2", "preload=shared"], "border": ["servers=2", *_BORDER],
            "four": ["servers=4", "preload=shared"]}  # fmt: skip
    models = {"GraphSage 3 x 256": ["model=sage"], "resgcn 28 x 64": ["model=resgcn"],
              "resgcn 56 x 64": ["model=resgcn", "model.num_layers=56"]}  # fmt: skip
    for model, of_model in models.items():
        cells = []
        for way, words in ways.items():
            plain = [*_SMALL, *of_model, "epochs=2", "world=4", *words, *settings]
            cells.append(f"{max(here(folder, f'{model} {way}', plain)['peak_train_bytes']) / 1e6:.0f}")
        print(f"| {model} | {' | '.join(cells)} |", flush=True)


def main() -> int:
    """The command line; an exit code."""
    tables = {"rates": rates, "choice": choice, "deep": deep, "seeds": seeds, "memory": memory}
    if len(sys.argv) < 3 or sys.argv[1] not in tables:
        print(__doc__)
        return 2
    folder = Path(sys.argv[2]).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    tables[sys.argv[1]](folder, sys.argv[3:])
    return 0


if __name__ == "__main__":
    sys.exit(main())
