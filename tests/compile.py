"""The kernels, compiled once for all processes of the tests.

python -m tests.compile        # CI does it beside `make check`, which takes one core
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from sargnn.compiled import numba_cache_dir


def set_up_environment() -> None:
    """Before numba is imported, so that every process of the tests shares one cache of compiled kernels."""
    os.environ["NUMBA_CACHE_DIR"] = str(numba_cache_dir())
    for name in ("OMP_NUM_THREADS", "NUMBA_NUM_THREADS"):  # several processes share few cores
        os.environ[name] = "1"
    if not Path("/dev/nvidiactl").exists():  # no GPU: kernels in Triton run in its interpreter
        os.environ["TRITON_INTERPRET"] = "1"


def compile_once() -> None:
    """Fill the kernels' cache where it is new: else every process of the tests would compile, within some test's time limit."""
    done = Path(os.environ["NUMBA_CACHE_DIR"]) / "compiled_for_tests"
    if not done.exists():
        print("compiling the kernels, a minute or two", file=sys.stderr, flush=True)
        environment = os.environ | {"NUMBA_THREADING_LAYER": "workqueue"}
        # Half of the functions beside the other half, on two cores; then all are loaded once, and what is missing is made.
        programs = [f"from sargnn.run.env import warm_up; warm_up({share}, 2)" for share in range(2)]
        halves = [subprocess.Popen([sys.executable, "-c", program], env=environment) for program in programs]
        for half in halves:
            half.wait()
        subprocess.run([sys.executable, "-c", "from sargnn.run.env import warm_up; warm_up()"], env=environment, check=True)
        done.touch()


if __name__ == "__main__":
    set_up_environment()
    compile_once()
