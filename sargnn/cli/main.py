"""``sargnn VERB [overrides]``: finds the verb, composes its configuration, answers what goes wrong in one message.

Imports stay light here: ``--help`` needs neither torch nor dgl nor mlflow.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from sargnn import __version__
from sargnn.errors import ConfigError, SargnnError, nearest

VERBS = {
    "train": ("sargnn.cli.train:main", "train a model on local workers; with -m a sweep"),
    "slurm": ("sargnn.cli.slurm:main", "the run as a SLURM job: writes an sbatch script"),
    "prepare": ("sargnn.cli.prepare:prepare", "make a dataset's store"),
    "partition": ("sargnn.cli.prepare:partition", "cut a dataset into the workers' parts"),
    "export-ogb": ("sargnn.cli.prepare:export_ogb", "a dataset as raw files in OGB's layouts"),
    "predict": ("sargnn.cli.predict:predict", "a run's predictions for all nodes, as .npy"),
    "evaluate": ("sargnn.cli.predict:evaluate", "score predictions with OGB's evaluator"),
    "compare": ("sargnn.cli.compare:main", "runs side by side: a table and plots"),
    "ui": ("sargnn.cli.track:ui", "MLflow's pages in the browser"),
    "track": ("sargnn.cli.track:track", "send runs to MLflow later, or elsewhere"),
    "bench": ("sargnn.cli.bench:main", "measure against stock DGL, in one run"),
    "info": ("sargnn.cli.info:info", "versions, devices, kernels, stores"),
    "clean": ("sargnn.cli.info:clean", "remove stores, after asking"),
    "completion": ("sargnn.cli.completion:main", "completion for bash, zsh or fish"),
}

_HELP = """\
usage: sargnn VERB [key=value ...] [group=option ...]

Exact, full-batch training of graph neural networks on graphs too large for
one machine.

verbs:
{verbs}

examples:
  sargnn train                          the embedded graph, 4 workers
  sargnn train model=gat mode=domain_parallel world=2
  sargnn train -m mode=sar,one_shot     a sweep
  sargnn train dataset=ogb_dir dataset.root=FOLDER
  sargnn compare                        the runs of this folder
  sargnn train --help                   groups, options and settings

SARGNN_FULL_ERROR=1 shows tracebacks."""


def help_text() -> str:
    """What ``sargnn --help`` prints, at most 80 columns wide."""
    verbs = "\n".join(f"  {verb:<11} {text}" for verb, (_, text) in VERBS.items())
    return _HELP.format(verbs=verbs)


def conf_dir() -> Path:
    """The configuration folder: beside the package in a wheel, at the root of a checkout."""
    package = Path(__file__).parent.parent
    for candidate in (package / "conf", package.parent / "conf"):
        if candidate.is_dir():
            return candidate
    raise SargnnError("The configuration folder 'conf' is missing from this installation.")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(help_text())
        return 0
    if arguments[0] == "--version":
        print(f"sargnn {__version__}")
        return 0
    try:
        return _verb(arguments[0])(arguments[1:])
    except SargnnError as error:
        if os.environ.get("SARGNN_FULL_ERROR"):
            raise
        print(f"sargnn: {error}", file=sys.stderr)
        return 128 + number if (number := getattr(error, "signal_number", 0)) else 1
    except KeyboardInterrupt:
        print("sargnn: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader, such as head, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        print("sargnn: the disk is full", file=sys.stderr)
        return 1


def _verb(name: str) -> Callable[[Sequence[str]], int]:
    from sargnn.resolve import resolve

    if name not in VERBS:
        hint = f"sargnn train {name} ..." if "=" in name else "sargnn --help"
        raise ConfigError(f"There is no verb '{name}'.", allowed=nearest(name, VERBS), hint=hint)
    verb: Callable[[Sequence[str]], int] = resolve("verb", {k: v[0] for k, v in VERBS.items()}, name)
    return verb


if __name__ == "__main__":
    sys.exit(main())
