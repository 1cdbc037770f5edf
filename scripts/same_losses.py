"""Whether two runs have the same losses, before and after a change, say.

    python scripts/same_losses.py RUN_DIR OTHER_RUN_DIR [--tolerance 1e-4]

Prints, for all epochs that both have, the largest difference as a fraction of the first loss, and where it is; says whether all
are the same to the last bit. Exit code 1 beyond the tolerance, or where the runs' settings that decide losses differ.
"""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path

from sargnn.config import differing, load
from sargnn.errors import SargnnError
from sargnn.tracking import files


def losses(run_dir: Path) -> list[float]:
    """Of a run's epochs."""
    return [row["loss"] for row in files.MetricsTail(run_dir).new_rows()]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("other", type=Path)
    parser.add_argument("--tolerance", type=float, default=1e-4)
    arguments = parser.parse_args()
    try:
        changed = [
            line
            for line in differing(load(arguments.run / files.CONFIG), load(arguments.other / files.CONFIG))
            if not line.startswith(("epochs:", "model.order:"))
        ]
    except SargnnError as error:
        sys.exit(str(error))
    if changed:
        sys.exit("the runs differ in what decides their losses:\n  " + "\n  ".join(changed))
    pairs = list(zip(losses(arguments.run), losses(arguments.other), strict=False))
    if not pairs:
        sys.exit("there is no epoch that both runs have")
    if not all(math.isfinite(loss) for pair in pairs for loss in pair):
        sys.exit("a loss is not finite")
    first = abs(pairs[0][0]) or 1.0
    differences = [abs(one - other) / first for one, other in pairs]
    largest = max(differences)
    if largest == 0:
        print(f"{len(pairs)} epochs, the same to the last bit")
    else:
        epoch = differences.index(largest) + 1
        print(f"{len(pairs)} epochs, largest difference {largest:.2e} of the first loss, in epoch {epoch}")
    return int(largest > arguments.tolerance)


if __name__ == "__main__":
    sys.exit(main())
