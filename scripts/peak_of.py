"""Time and peak memory of a command and all processes that it starts.

    python scripts/peak_of.py sargnn prepare dataset=ogbn-products

Prints seconds, the peak of the sum of resident memory that is not mapped files (RssAnon), and that of the largest process. A
page that forked processes still share counts for each of them there; the last figure counts it once (Pss_Anon), looking twice
a second.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import psutil

_PAUSE_S = 0.05
_SHARED_EVERY = 10
"""Looks from one at shared pages, which takes the kernel longer, to the next."""


def anonymous_bytes(process: int, *, shared_once: bool = False) -> int:
    """RssAnon, or Pss_Anon; 0 for a process that is gone."""
    name, field = ("smaps_rollup", "Pss_Anon:") if shared_once else ("status", "RssAnon:")
    try:
        for line in Path(f"/proc/{process}/{name}").read_text().splitlines():
            if line.startswith(field):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0


def main() -> int:
    """Run and watch."""
    started = time.perf_counter()
    command = subprocess.Popen(sys.argv[1:])
    whole, largest, once, looks = 0, 0, 0, 0
    root = psutil.Process(command.pid)
    while command.poll() is None:
        try:
            family = [root.pid, *(child.pid for child in root.children(recursive=True))]
        except psutil.NoSuchProcess:
            break
        sizes = [anonymous_bytes(process) for process in family]
        whole, largest, looks = max(whole, sum(sizes)), max(largest, *sizes), looks + 1
        if looks % _SHARED_EVERY == 0:
            once = max(once, sum(anonymous_bytes(process, shared_once=True) for process in family))
        time.sleep(_PAUSE_S)
    seconds = time.perf_counter() - started
    print(
        f"{seconds:.1f} s, peak {whole / 1e6:.0f} MB, largest process {largest / 1e6:.0f} MB; shared pages once: "
        f"{once / 1e6:.0f} MB", file=sys.stderr,
    )  # fmt: skip
    return command.wait()


if __name__ == "__main__":
    sys.exit(main())
