"""The full product of the exactness contract: 30-epoch loss curves of every (model, mode, kernel, partitioner, world,
precision) against one process with the reference kernel, dropout, input dropout and batch norm on.

    python scripts/parity_grid.py [--worlds 1 2 4 8] [--kernels fused dgl reference] [--models ...] > grid.md

Prints a table row per (model, mode, kernel, precision): the largest deviation over partitioners and worlds as a multiple
of the contract's tolerance, which must stay below 1. Exit code 1 if one does not.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import defaultdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))
for name in ("OMP_NUM_THREADS", "NUMBA_NUM_THREADS"):
    os.environ[name] = "1"

from sargnn.launch.env import numba_cache_dir  # noqa: E402

os.environ["NUMBA_CACHE_DIR"] = str(numba_cache_dir())  # before numba is imported

from sargnn.comm.group import Group  # noqa: E402
from sargnn.engine.modes import MODES  # noqa: E402
from sargnn.kernels import KERNELS  # noqa: E402
from sargnn.partition import PARTITIONERS  # noqa: E402
from sargnn.resolve import resolve  # noqa: E402
from tests.graphs import nasty_graph  # noqa: E402
from tests.parity import cases  # noqa: E402
from tests.pool import pool  # noqa: E402


def deviation(losses: list[float], wanted: list[float], precision: str) -> float:
    """The largest |difference| in units of the contract's tolerance."""
    bounds = [1e-8 * abs(w) if precision == "fp64" else 1e-4 * wanted[0] for w in wanted]
    return max(abs(a - b) / bound for a, b, bound in zip(losses, wanted, bounds, strict=True))


def main() -> int:
    """Run the grid."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--worlds", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--kernels", nargs="+", default=list(KERNELS))
    parser.add_argument("--models", nargs="+", help="sage, gat, gatv2, gcn or 'sage, max'; all if not given")
    worlds, kernels = (arguments := parser.parse_args()).worlds, arguments.kernels
    graph = nasty_graph(seed=1)
    started, count = time.time(), 0
    worst: dict[tuple[str, str, str, str], float] = defaultdict(float)
    models = {name: cases.model_config(name, input_dropout=0.2) for name in cases.NAMES}
    models["sage, max"] = cases.model_config("sage", aggregator="max", input_dropout=0.2)
    for model_name in arguments.models or models:
        model = models[model_name]
        for precision in ("fp64", "fp32"):
            single = cases.run_config(model, kernel="reference", precision=precision)
            wanted = cases.curve(Group.single(), single, graph)["losses"]
            for mode in MODES:
                for kernel in (k for k in kernels if k in resolve("mode", MODES, mode).kernels):
                    for partitioner in [*PARTITIONERS, "empty", "apart"]:
                        for world in worlds:
                            config = cases.run_config(
                                model, mode=mode, kernel=kernel, partitioner=partitioner, world=world, precision=precision
                            )
                            answers = pool(world)(cases.curve, config, graph)
                            key = (model_name, mode, kernel, precision)
                            worst[key] = max(worst[key], deviation(answers[0]["losses"], wanted, precision))
                            count += 1
                    print(f"{model_name} {precision} {mode} {kernel}: {count} curves", file=sys.stderr, flush=True)
    print("| model | mode | kernel | precision | largest deviation / tolerance |\n|---|---|---|---|---|")
    for key, value in worst.items():
        print(f"| {' | '.join(key)} | {value:.2g} |")
    print(f"\n{count} curves of 30 epochs, worlds {worlds}, {time.time() - started:.0f} s")
    return int(max(worst.values()) >= 1)


if __name__ == "__main__":
    sys.exit(main())
