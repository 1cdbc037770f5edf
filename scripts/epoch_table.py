"""The distributed, memory-lean run against stock DGL in one process, and against the baseline: one table from one run.

    python scripts/epoch_table.py [--only NAME ...] [--rounds 2] [--epochs 4] [--worlds 4,8] [--out FOLDER] [OVERRIDE ...]

For each model: stock DGL as it comes, `sar` on the first world, stock DGL with huge pages on, `sar` on the other worlds,
`domain_parallel` on all; the whole sequence is repeated, so that a drift of the machine meets all alike. Epochs are those after
each run's first one (which also makes GraphSage's static aggregate of the features; "not static" makes it in every epoch, as
stock DGL and the baseline do): medians over all rounds, with the smallest and largest. Stock DGL has as many threads as there
are cores, a worker one. Before and after each model the machine's limits are measured, and one `sar` run is profiled against
them. Writes ``epochs.json`` and ``epochs.md`` into FOLDER.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from composed import config_of

from sargnn.bench.epoch import EpochReport, limit_line, markdown, parts_of
from sargnn.bench.report import machine
from sargnn.bench.roofline import better, measured
from sargnn.data.prepare import prepare_dataset
from sargnn.spans import EVALUATION, EXCHANGE_WAIT
from sargnn.tracking.memory import human_bytes

PRODUCTS = ["dataset=products_like", "dataset.scale=0.08"]
Run = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """A row of the issue's table: what is trained, stock DGL's script with its words, and what is reached for.

    Attributes:
        plain, huge: largest ratio of epoch times, against stock DGL as it comes and with huge pages on.
        memory: world -> largest ratio of peaks.
    """

    name: str
    overrides: list[str]
    script: str
    words: list[str]
    plain: float
    huge: float | None
    memory: dict[int, float]


CASES = [
    Case("GraphSage, dropout 0", [*PRODUCTS, "model=sage", "model.dropout=0"], "stock_dgl.py", ["--dropout=0"],
         0.65, 1.0, {4: 0.30, 8: 0.18}),
    Case("GraphSage, dropout 0.5", [*PRODUCTS, "model=sage", "model.dropout=0.5"], "stock_dgl.py", ["--dropout=0.5"],
         0.50, 0.75, {4: 0.30, 8: 0.18}),
    Case("GAT, dropout 0", [*PRODUCTS, "model=gat", "model.dropout=0"], "stock_dgl.py",
         ["--model=gat", "--heads=4", "--hidden=128", "--self-loops", "--dropout=0"], 0.25, 0.30, {4: 0.25, 8: 0.15}),
    Case("R-GCN, dropout 0.5", ["experiment=mag_like_rgcn", "dataset.scale=0.1"], "stock_hetero.py", ["--dropout=0.5"],
         0.8, None, {4: 0.35}),
]  # fmt: skip


def stock(case: Case, store: Path, epochs: int, *, huge_pages: bool) -> Run:
    """One run of stock DGL, in a process of its own."""
    environment = {key: value for key, value in os.environ.items() if key != "THP_MEM_ALLOC_ENABLE"}
    environment |= {"THP_MEM_ALLOC_ENABLE": "1"} if huge_pages else {}
    command = [sys.executable, str(Path(__file__).with_name(case.script)), str(store), *case.words]
    command += [f"--epochs={epochs}", f"--threads={len(os.sched_getaffinity(0))}"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stderr}")
    answer = json.loads(done.stdout)
    return {"times": answer["times_s"][1:], "peak": answer["peak_train_bytes"]}


def train(case: Case, more: list[str], epochs: int, folder: Path) -> Run:
    """One ``sargnn train``."""
    shutil.rmtree(folder, ignore_errors=True)
    command = [sys.executable, "-m", "sargnn.cli.main", "train", *case.overrides, "tracking=none", "threads=1"]
    command += [f"epochs={epochs}", f"eval_every={epochs}", "checkpoint.every=null", f"run_dir={folder}", *more]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stderr}")
    summary = json.loads((folder / "summary.json").read_text())
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()][1:]
    every = [row["ranks"]["comm_wait_time_s"] for row in rows]
    return {
        "times": [row["epoch_time_s"] for row in rows], "waits": [row["comm_wait_time_s"] for row in rows],
        "mean_waits": [sum(one) / len(one) for one in every],
        "peak": max(summary["peak_train_bytes"]), "startup": summary["startup_time_s"], "summary": summary,
    }  # fmt: skip


def together(runs: list[Run]) -> Run:
    """All rounds of one kind of run."""
    return {
        "times": [time for run in runs for time in run["times"]], "waits": [w for run in runs for w in run.get("waits", [])],
        "mean_waits": [w for run in runs for w in run.get("mean_waits", [])],
        "peak": max(run["peak"] for run in runs), "startup": [run["startup"] for run in runs if "startup" in run],
    }  # fmt: skip


def spread(values: list[float]) -> str:
    """Median (smallest to largest)."""
    return f"{median(values):.2f} ({min(values):.2f}-{max(values):.2f})" if values else "-"


def rows_of(case: Case, found: dict[str, Run], worlds: list[int]) -> list[str]:
    """The Markdown rows of one model."""
    plain, huge = (median(found[name]["times"]) for name in ("stock", "stock, huge pages"))
    lines = []
    for name, run in found.items():
        time, peak = median(run["times"]), run["peak"] / found["stock"]["peak"]
        wait = f"{median(run['waits']) / time:.0%}" if run["waits"] else "-"
        start = f"{median(run['startup']):.1f}" if run["startup"] else "-"
        cells = [case.name, name, spread(run["times"]), f"{time / plain:.2f}", f"{time / huge:.2f}", human_bytes(run["peak"])]
        lines.append(f"| {' | '.join([*cells, f'{peak:.3f}', wait, start])} |")
    return lines


def verdicts(case: Case, found: dict[str, Run], worlds: list[int], profile_s: dict[str, list[float]]) -> list[str]:
    """What was reached for, and what was measured."""
    plain, huge = (median(found[name]["times"]) for name in ("stock", "stock, huge pages"))
    first = found[f"sar, world {worlds[0]}"]
    time = median(first["times"])
    anew = found.get(f"sar, world {worlds[0]}, not static")
    ratios = [f"{time / plain:.2f}", f"{time / huge:.2f}"]
    if anew:
        ratios = [f"{r} (not static: {median(anew['times']) / by:.2f})" for r, by in zip(ratios, (plain, huge), strict=True)]
    lines = [f"| {case.name} | epoch against stock DGL, at most {case.plain} | {ratios[0]} |"]
    if case.huge is not None:
        lines.append(f"| | with huge pages on, at most {case.huge} | {ratios[1]} |")
    for world in worlds:
        run = found[f"sar, world {world}"]
        if world in case.memory:
            ratio = run["peak"] / found["stock"]["peak"]
            lines.append(
                f"| | a worker's peak against stock DGL's, world {world}, at most {case.memory[world]} | {ratio:.3f} |"
            )
        if baseline := found.get(f"domain_parallel, world {world}"):
            ratio = median(run["times"]) / median(baseline["times"])
            lines.append(f"| | against domain_parallel, world {world}, at most 1 | {ratio:.2f} |")
    profiled = sum(sum(seconds) for name, seconds in profile_s.items() if name != EVALUATION) / len(profile_s[EXCHANGE_WAIT])
    alone = max(profile_s[EXCHANGE_WAIT]) / profiled
    slowest, mean = median(first["waits"]) / time, median(first["mean_waits"]) / time
    lines.append(f"| | waiting for the exchange, world {worlds[0]}, at most 15 %: the worker that waits most | {alone:.0%} |")
    lines.append(f"| | with collectives: the worker that waits most; mean over the workers | {slowest:.0%}; {mean:.0%} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", default=[])
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--worlds", default="4,8")
    parser.add_argument("--no-baseline", action="store_true", help="leave domain_parallel out")
    parser.add_argument("--out", type=Path, default=Path("epoch_table"))
    parser.add_argument("overrides", nargs="*")
    arguments = parser.parse_args()
    if any(not one.startswith("dataset.") for one in arguments.overrides):
        raise SystemExit("stock DGL takes overrides of the dataset only")
    if arguments.epochs < 2:
        raise SystemExit("the first epoch is left out: at least 2")
    chosen = [case for case in CASES if not arguments.only or any(word.lower() in case.name.lower() for word in arguments.only)]
    if not chosen:
        raise SystemExit(f"no model is called so; there are {', '.join(case.name for case in CASES)}")
    worlds = [int(world) for world in arguments.worlds.split(",")]
    arguments.out.mkdir(parents=True, exist_ok=True)
    cores = len(os.sched_getaffinity(0))
    heads = ["model", "run", "epoch s", "/ stock", "/ stock, huge", "peak", "/ stock", "waiting", "start-up s"]
    lines, asked, profiles = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"], [], []
    everything: dict[str, Any] = {"about": machine(), "rounds": arguments.rounds, "epochs": arguments.epochs}
    for case in chosen:
        case.overrides.extend(arguments.overrides)
        config = config_of(case.overrides)
        store = prepare_dataset(config.dataset, config.store_dir)
        before = measured(cores)
        runs: dict[str, list[Run]] = {}
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary) / "run"
            for world in worlds:  # partitions and kernels are made, and not timed
                train(case, [f"world={world}"], 1, folder)

            def note(name: str, run: Run, runs: dict[str, list[Run]] = runs) -> None:
                runs.setdefault(name, []).append(run)
                print(f"{name}: {spread(run['times'])} s, {human_bytes(run['peak'])}", flush=True)

            for _ in range(arguments.rounds):
                print(case.name, flush=True)
                note("stock", stock(case, store, arguments.epochs, huge_pages=False))
                note(f"sar, world {worlds[0]}", train(case, [f"world={worlds[0]}"], arguments.epochs, folder))
                if "model=sage" in case.overrides:
                    anew = [f"world={worlds[0]}", "engine.cache_static=false"]
                    note(f"sar, world {worlds[0]}, not static", train(case, anew, arguments.epochs, folder))
                note("stock, huge pages", stock(case, store, arguments.epochs, huge_pages=True))
                for world in worlds[1:]:
                    note(f"sar, world {world}", train(case, [f"world={world}"], arguments.epochs, folder))
                for world in () if arguments.no_baseline else worlds:
                    baseline = [f"world={world}", "mode=domain_parallel"]
                    note(f"domain_parallel, world {world}", train(case, baseline, arguments.epochs, folder))
            profiled = train(case, [f"world={worlds[0]}", "profile=true"], arguments.epochs, folder)["summary"]
        after = measured(cores)
        roof = better(before, after)
        report = EpochReport(parts_of(profiled, cores, roof), cores, (before, after), profiled, Path())
        found = {name: together(every) for name, every in runs.items()}
        lines += rows_of(case, found, worlds)
        asked += verdicts(case, found, worlds, profiled["profile_s"])
        profiles += ["", f"**{case.name}, sar, world {worlds[0]}**, {limit_line(roof)}", "", *markdown(report)[:-2]]
        everything[case.name] = {"runs": found, "roofline": roof.as_row(), "profile_s": profiled["profile_s"]}
        text = [*lines, "", "| model | reached for | measured |", "|---|---|---|", *asked, *profiles]
        (arguments.out / "epochs.md").write_text("\n".join(text) + "\n")
        (arguments.out / "epochs.json").write_text(json.dumps(everything, indent=1) + "\n")
    print((arguments.out / "epochs.md").read_text())


if __name__ == "__main__":
    main()
