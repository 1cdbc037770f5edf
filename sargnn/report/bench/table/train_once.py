"""One run of this project, in a process of its own: ``python -m sargnn.report.bench.table.train_once CONFIG``."""

from __future__ import annotations

import sys
from pathlib import Path

from sargnn.config.run import load
from sargnn.errors import SargnnError
from sargnn.run.local import train

if __name__ == "__main__":
    try:
        train(load(Path(sys.argv[1])))
    except SargnnError as error:
        sys.exit(str(error))
