"""A worker's process: its log, its work, how it ends. The launcher starts it, or ``run.task`` under srun and torchrun:

    python -m sargnn.run.worker RUN_DIR/config.yaml

It alone looks for a rank in the environment (RANK, WORLD_SIZE; ``comm.join`` has the rest).
"""

from __future__ import annotations

import errno
import os
import re
import sys
import time
import traceback
from pathlib import Path

from sargnn.config.run import RunConfig, load
from sargnn.errors import CommError, SargnnError
from sargnn.run.heartbeat import Heartbeat
from sargnn.tracking import files
from sargnn.tracking.files import read_inputs
from sargnn.tracking.memory import human_bytes

_GRACE_S = 5.0


def entry(config_path: str) -> None:
    """A worker process's whole life; its output goes to ``logs/rank_NN.log`` of the run folder. An error is written there and
    ends the process with exit code 1; the launcher reads the log's end.
    """
    from sargnn.run.work import work

    run_dir = Path(config_path).parent
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    path = files.log_path(run_dir, rank)
    path.parent.mkdir(parents=True, exist_ok=True)
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    sys.stdout.flush()
    sys.stderr.flush()
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    heartbeats: list[Heartbeat] = []
    try:
        work(load(Path(config_path)), run_dir, rank, world, heartbeats.append)
    except CommError as error:
        for heartbeat in heartbeats:
            heartbeat.report_lost_peer()
        print(error, file=sys.stderr, flush=True)
        # A peer is gone. Its own end is the cause and is reported first; whoever watches ends this process meanwhile.
        time.sleep(_GRACE_S)
        _fail("The lost peer reported nothing.")
    except SargnnError as error:
        _fail(traceback.format_exc() if os.environ.get("SARGNN_FULL_ERROR") else str(error))
    except (MemoryError, RuntimeError) as error:
        _fail(_out_of_memory(error, rank, less_memory(load(Path(config_path)), world)) or traceback.format_exc())
    except OSError as error:
        less = less_memory(load(Path(config_path)), world)
        _fail(_disk_or_memory_full(error, run_dir, rank, less) or traceback.format_exc())
    except BaseException:
        _fail(traceback.format_exc())


def less_memory(config: RunConfig, processes: int) -> str:
    """What a run would need less memory with."""
    if processes < config.world:
        return "spill=auto memory_budget=auto has tables on the disk"
    return f"world={2 * processes} on more machines needs about half each"


def _out_of_memory(error: MemoryError | RuntimeError, rank: int, less: str) -> str | None:
    """What to say if memory ran out; None if something else went wrong. ``less``: as of ``less_memory``."""
    asked = re.search(r"tried to allocate (\d+) bytes|Unable to allocate ([^ ]+ [KMGT]?i?B)", str(error))
    if asked is None and not isinstance(error, MemoryError):
        return None
    much = asked.group(2) or human_bytes(int(asked.group(1))) if asked else "memory"
    return (
        f"Rank {rank} ran out of memory: it asked for {much} more than it may have.\n"
        f"  next:    {less}; mode=sar needs least; comm.prefetch_depth=0 and a smaller model.hidden need less"
    )


def _disk_or_memory_full(error: OSError, run_dir: Path, rank: int, less: str) -> str | None:
    """What to say if the disk is full or memory ran out; None if something else went wrong."""
    if error.errno == errno.ENOMEM:
        return f"Rank {rank} ran out of memory: {error}\n  next:    {less}"
    if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return None
    predicts = read_inputs(run_dir).predict is not None
    again = "the same command again" if predicts else f"sargnn train resume={run_dir}"
    return f"The disk is full: {error}\n  next:    free some space, then {again}"


def _fail(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
    # Not sys.exit: a peer's transfer may still be under way in a background thread, which would hold the process.
    os._exit(1)


if __name__ == "__main__":
    # What the fork server has loaded for local workers; else its memory would count as training's.
    import sargnn.run.preload  # noqa: F401

    entry(sys.argv[1])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # as processes of the fork server end: the interpreter's own end would meet threads that are in C++
