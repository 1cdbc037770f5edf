"""What a worker does: join the others, load its part, train. Started by the launcher, by srun or by torchrun:

    python -m sargnn.launch.worker RUN_DIR/config.yaml

It alone looks for a rank in the environment (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT). It imports torch, numpy and
numba; not mlflow, ogb, pandas or matplotlib, and dgl only for the dgl kernel.
"""

from __future__ import annotations

import errno
import os
import re
import signal
import sys
import time
import traceback
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from sargnn.comm.group import Group, Traffic
from sargnn.config import RunConfig, load
from sargnn.engine.aggregate import Engine
from sargnn.errors import CommError, ConfigError, SargnnError
from sargnn.launch.pulse import Pulse
from sargnn.models.inputs import GraphShape
from sargnn.models.stack import Stack
from sargnn.partition.cut import Part
from sargnn.partition.store import open_part, partition_info, release
from sargnn.profile import Profile
from sargnn.rng import MAX_ID
from sargnn.shards.graph import WorkerGraph
from sargnn.tracking import files
from sargnn.tracking.memory import human_bytes, private_bytes
from sargnn.training import checkpoint
from sargnn.training.loop import Trainer
from sargnn.training.predict import MANIFEST, write_predictions
from sargnn.training.summary import described, flow_lines, flow_rows, measured

_GRACE_S = 5.0
_pulse: Pulse | None = None
DTYPES = {"fp32": torch.float32, "fp64": torch.float64}


def entry(config_path: str) -> None:
    """A worker process's whole life; its output goes to ``logs/rank_NN.log`` of the run folder.

    An error is written to the log and ends the process with exit code 1; the launcher reads the log's end.
    """
    run_dir = Path(config_path).parent
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    _redirect(files.log_path(run_dir, rank))
    try:
        work(load(Path(config_path)), run_dir, rank, world)
    except CommError as error:
        if _pulse is not None:
            _pulse.lost_a_peer()
        print(error, file=sys.stderr, flush=True)
        # A peer is gone. Its own end is the cause and is reported first; whoever watches ends this process meanwhile.
        time.sleep(_GRACE_S)
        _fail("The lost peer reported nothing.")
    except SargnnError as error:
        _fail(traceback.format_exc() if os.environ.get("SARGNN_FULL_ERROR") else str(error))
    except (MemoryError, RuntimeError) as error:
        asked = re.search(r"tried to allocate (\d+) bytes|Unable to allocate ([^ ]+ [KMGT]?i?B)", str(error))
        if asked is None and not isinstance(error, MemoryError):
            _fail(traceback.format_exc())
        much = asked.group(2) or human_bytes(int(asked.group(1))) if asked else "memory"
        _fail(
            f"Rank {rank} ran out of memory: it asked for {much} more than it may have.\n"
            f"  next:    world={2 * world} needs about half each; mode=sar needs least; comm.prefetch_depth=0 and a smaller "
            "model.hidden need less"
        )
    except OSError as error:
        if error.errno == errno.ENOMEM:
            _fail(f"Rank {rank} ran out of memory: {error}\n  next:    world={2 * world} needs about half each")
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            _fail(traceback.format_exc())
        predicting = "predict" in files.read_json(run_dir / files.INPUTS)
        again = "the same command again" if predicting else f"sargnn train resume={run_dir}"
        _fail(f"The disk is full: {error}\n  next:    free some space, then {again}")
    except BaseException:
        _fail(traceback.format_exc())


def work(config: RunConfig, run_dir: Path, rank: int, world: int) -> None:
    """Train, or predict, as rank ``rank`` of ``world``; rank 0 writes ``metrics.jsonl`` and ``summary.json``."""
    if world != config.world:
        raise SargnnError("The number of started workers is not the configured one.", given=world, allowed=[str(config.world)])
    inputs = files.read_json(run_dir / files.INPUTS)
    info = partition_info(Path(inputs["partition"]))
    threads = config.threads or 1
    torch.set_num_threads(threads)
    print(f"rank {rank} of {world}, process {os.getpid()}, {threads} threads", flush=True)
    traffic = Traffic()
    if world > 1:
        global _pulse
        _pulse = Pulse(rank, traffic)
        _pulse.start()
    group = Group.from_environment(config.comm.backend, config.comm.timeout_s, rank, world, traffic, Profile(config.profile))
    before_loading = private_bytes()
    trainer = make_trainer(config, open_part(info.path, rank), info.num_classes, group)
    if inputs.get("checkpoint"):
        trainer.first_epoch = checkpoint.load(trainer, Path(inputs["checkpoint"]), moments=not inputs.get("predict"))
        print(f"rank {rank}: goes on after epoch {trainer.first_epoch}", flush=True)
    if inputs.get("predict"):
        manifest = write_predictions(trainer, run_dir, embeddings=inputs["predict"]["embeddings"])
        if rank == 0:
            files.write_json(run_dir / MANIFEST, manifest | {"dataset_hash": inputs["dataset_hash"]})
        return group.close()
    startup_time_s = time.time() - inputs["started_at"]
    print(f"rank {rank}: {trainer.graph.num_rows} rows, {len(trainer.graph.part.halo_ids)} halo rows", flush=True)
    flows = flow_rows(trainer)
    for line in flow_lines(flows) if rank == 0 else ():
        print(line, flush=True)

    def on_epoch(row: dict[str, Any]) -> None:
        if rank == 0:
            files.append_metrics(run_dir, row)

    def on_checkpoint(epoch: int) -> None:
        checkpoint.save(trainer, config, info.dataset_hash, run_dir, epoch)

    def on_signal(number: int, frame: FrameType | None) -> None:
        trainer.requests.stop |= number != signal.SIGUSR1
        trainer.requests.checkpoint = True

    # SIGUSR2 comes through srun, which would end everything at a SIGTERM.
    for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM):
        signal.signal(number, on_signal)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGUSR1, signal.SIGUSR2))  # which a task has blocked until now
    trainer.run(on_epoch, on_checkpoint if trainer.parameters else None)
    if not trainer.stopped:
        trainer.smooth()
    result = measured(trainer, group) | {"mfg": flows}
    if group.profile.recording:
        files.write_json(files.trace_path(run_dir, rank), group.profile.trace(rank))
    private = group.gather(torch.tensor(before_loading, dtype=torch.int64))
    result["private_bytes_before_loading"] = [int(one) for one in private]
    if rank == 0:
        result |= described(config, info, inputs["git_sha"])
        result |= {"status": "finished", "startup_time_s": startup_time_s}
        if trainer.stopped:
            result |= {"status": "interrupted", "error": "A signal ended the run; its newest checkpoint has all epochs so far."}
        files.write_json(run_dir / files.SUMMARY, result)
    group.close()


def make_trainer(config: RunConfig, part: Part, num_classes: int, group: Group) -> Trainer:
    """Everything one rank needs to train, from its part."""
    device, dtype = torch.device(config.device), DTYPES[config.precision]
    engine = Engine(
        group,
        mode=config.mode.choice,
        kernel=config.kernel.choice,
        prefetch_depth=config.comm.prefetch_depth,
        seed=config.seed,
        device=device,
        dtype=dtype,
        cache_static=config.engine.cache_static == "auto",
    )
    widths = tuple(rows.shape[1] for rows in part.features)
    if (config.model.draws_by_id or 0 in widths or config.reads_labels) and part.schema.num_nodes > MAX_ID:
        raise ConfigError(
            "Dropout, embeddings and carried labels are drawn by node id, and this graph has ids of 2**32 and more.",
            hint="set dropout to 0",
        )
    model = make_model(config, GraphShape(part.schema, widths, num_classes, _label_columns(config, num_classes)))
    graph = WorkerGraph(
        part, engine.exchange, engine.mode.layout, add_self_loops=config.add_self_loops, device=device,
        message_rows=config.comm.message_rows,
    )  # fmt: skip
    model = model.to(device, dtype)
    rows = model.inputs.load(part, config.seed, device, dtype)
    trainer = Trainer(config, model, engine, graph, rows, num_classes)
    release(part)
    return trainer


def _label_columns(config: RunConfig, num_classes: int) -> int:
    return num_classes if config.labels.name != "none" else 0


def make_model(config: RunConfig, shape: GraphShape) -> Stack:
    """The model in fp32, initialised from the seed: the same parameters on every rank and for every precision.

    Raises:
        ConfigError: the model cannot work on such a graph.
    """
    torch.manual_seed(config.seed)
    model: Stack = config.model.build(shape)
    if shape.schema.typed and config.add_self_loops:
        raise ConfigError(
            "A typed graph has no relation that self-loops could belong to.",
            given="dataset.add_self_loops=true",
            hint="model=rgcn has a weight of its own for each node's own row; or set dataset.homogenize=true",
        )
    return model


def _redirect(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    sys.stdout.flush()
    sys.stderr.flush()
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)


def _fail(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
    # Not sys.exit: a peer's transfer may still be under way in a background thread, which would hold the process.
    os._exit(1)


if __name__ == "__main__":
    # What the fork server has loaded for local workers; else its memory would count as training's.
    import sargnn.launch.preload

    sargnn.launch.preload.worker.entry(sys.argv[1])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # as processes of the fork server end: the interpreter's own end would meet threads that are in C++
