"""Mean and spread of the accuracy over seeds, in one process (the losses are the same on any world, mode and partitioner).

    python scripts/seeds.py 5 dataset=ogb_dir dataset.root=FOLDER dataset.add_inverse_edges=false experiment=cora_sage

The first argument is the number of seeds, the others are overrides of ``sargnn train``.
"""

from __future__ import annotations

import dataclasses
import sys
from statistics import mean, stdev

from composed import config_of

from sargnn.comm.group import Group
from sargnn.data.dataset import open_dataset
from sargnn.data.prepare import prepare_dataset
from sargnn.partition.cut import parts_of
from sargnn.partition.simple import assign_range
from sargnn.training.build import make_trainer


def main() -> None:
    """Train one run per seed and print test accuracy at best validation."""
    config = config_of(sys.argv[2:])
    dataset = open_dataset(prepare_dataset(config.dataset, config.store_dir), verify=True)
    (part,) = parts_of(dataset, assign_range(dataset, 1, config.partitioner), 1)
    accuracies = []
    for seed in range(int(sys.argv[1])):
        run = dataclasses.replace(config, seed=seed, world=1)
        history = make_trainer(run, part, dataset.num_classes, Group.single()).run()
        accuracies.append(history.test_acc_at_best_val or 0.0)
        print(f"seed {seed}: test {accuracies[-1]:.4f} at best validation {history.best_val_acc:.4f}", flush=True)
    spread = stdev(accuracies) if len(accuracies) > 1 else 0.0
    print(f"mean {mean(accuracies):.4f} +- {spread:.4f}")


if __name__ == "__main__":
    main()
