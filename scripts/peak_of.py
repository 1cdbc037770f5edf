"""Time and peak memory of a command and all processes that it starts.

    python scripts/peak_of.py sargnn prepare dataset=ogbn-products

Prints seconds, the peak of the sum of resident memory that is not mapped files (RssAnon), and that of the largest process.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import psutil

_PAUSE_S = 0.05


def anonymous_bytes(process: int) -> int:
    """RssAnon; 0 for a process that is gone."""
    try:
        for line in Path(f"/proc/{process}/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0


def main() -> int:
    """Run and watch."""
    started = time.perf_counter()
    command = subprocess.Popen(sys.argv[1:])
    whole, largest = 0, 0
    root = psutil.Process(command.pid)
    while command.poll() is None:
        try:
            family = [root.pid, *(child.pid for child in root.children(recursive=True))]
        except psutil.NoSuchProcess:
            break
        sizes = [anonymous_bytes(process) for process in family]
        whole, largest = max(whole, sum(sizes)), max(largest, *sizes)
        time.sleep(_PAUSE_S)
    seconds = time.perf_counter() - started
    print(f"{seconds:.1f} s, peak {whole / 1e6:.0f} MB, largest process {largest / 1e6:.0f} MB", file=sys.stderr)
    return command.wait()


if __name__ == "__main__":
    sys.exit(main())
