"""The loss curve of one configuration in every mode on several worlds, against one process.

    python scripts/same_curve.py 1,2,4,8 dataset=ogb_dir dataset.root=FOLDER experiment=cora_sage

The first argument lists the worlds, the others are overrides of ``sargnn train``. Prints, per mode and world, the largest
deviation as a multiple of the contract's tolerance. Exit code 1 if one reaches 1.
"""

from __future__ import annotations

import dataclasses
import os
import sys
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parent.parent)]
for name in ("OMP_NUM_THREADS", "NUMBA_NUM_THREADS"):
    os.environ[name] = "1"

from composed import config_of  # noqa: E402
from parity_grid import deviation  # noqa: E402

from sargnn.comm.group import Group  # noqa: E402
from sargnn.config import ModeConfig, RunConfig  # noqa: E402
from sargnn.data.dataset import open_dataset  # noqa: E402
from sargnn.data.prepare import prepare_dataset  # noqa: E402
from sargnn.engine.modes import MODES  # noqa: E402
from sargnn.partition.prepare import prepare_partition  # noqa: E402
from sargnn.partition.store import open_part  # noqa: E402
from sargnn.training.build import make_trainer  # noqa: E402
from tests.pool import pool  # noqa: E402


def run(group: Group, config: RunConfig, store: Path, num_classes: int) -> dict[str, Any]:
    """One training on this rank's part."""
    history = make_trainer(config, open_part(store, group.rank), num_classes, group).run()
    return {"losses": history.losses, "test_acc": history.test_acc_at_best_val}


def main() -> int:
    """Run all modes on all worlds."""
    config = config_of(sys.argv[2:])
    dataset = prepare_dataset(config.dataset, config.store_dir)
    num_classes = open_dataset(dataset, verify=True).num_classes
    wanted: list[float] = []
    worst = 0.0
    print("| mode | world | test accuracy at best validation | largest deviation / tolerance |\n|---|---|---|---|")
    for world in map(int, sys.argv[1].split(",")):
        for mode in MODES:
            one = dataclasses.replace(config, world=world, mode=ModeConfig(mode))
            store = prepare_partition(one, dataset).path
            answer = pool(world)(run, one, store, num_classes)[0]
            wanted = wanted or answer["losses"]
            largest = deviation(answer["losses"], wanted, config.precision)
            worst = max(worst, largest)
            print(f"| {mode} | {world} | {answer['test_acc']:.4f} | {largest:.2g} |", flush=True)
    return int(worst >= 1)


if __name__ == "__main__":
    sys.exit(main())
