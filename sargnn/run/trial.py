"""The runs of some configuration files, one after the other, in a process of their own: those of benchmarks.

python -m sargnn.run.trial config.yaml...
"""

from __future__ import annotations

import sys
from pathlib import Path


def main() -> None:
    """Train them. Workers import this file, too: what a run needs is imported where it is run."""
    from sargnn.config.run import load
    from sargnn.errors import SargnnError
    from sargnn.run.local import train

    try:
        for file in sys.argv[1:]:
            train(load(Path(file)))
    except SargnnError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
