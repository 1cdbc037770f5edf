"""``sargnn VERB [overrides]``: finds the verb's record, reads its words, answers what goes wrong in one message.

Imports stay light here: ``--help`` needs neither torch nor dgl nor mlflow.
"""

from __future__ import annotations

import errno
import os
import shlex
import sys
from collections.abc import Callable, Sequence

from sargnn import __version__
from sargnn.cli.answers import place_of, read_known
from sargnn.cli.command_line import asks_for_help, read_command_line, take_folders
from sargnn.cli.conf import find_folders
from sargnn.cli.verb import Verb
from sargnn.cli.verbs import VERBS
from sargnn.errors import ConfigError, SargnnError, nearest

_OF_A_PATH = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENAMETOOLONG, errno.ELOOP)
"""What is wrong with a file's place; the person can mend it."""
_ALSO_CALLED = {
    **dict.fromkeys(("run", "fit", "start"), "train"),
    "sweep": "train -m",
    "resume": "train resume=RUN",
    **dict.fromkeys(("test", "eval"), "evaluate RUN"),
    **dict.fromkeys(("infer", "inference"), "predict RUN"),
    **dict.fromkeys(("list", "ls", "show", "plot", "results", "runs"), "compare"),
    **dict.fromkeys(("submit", "sbatch"), "slurm"),
    "download": "prepare",
    "datasets": "train dataset --help",
    "models": "train model --help",
    **dict.fromkeys(("mlflow", "dashboard"), "ui"),
    "version": "--version",
    "benchmark": "bench",
    **dict.fromkeys(("remove", "delete"), "clean"),
    **dict.fromkeys(("stats", "inspect"), "check"),
}
"""What others call a verb -> the command here."""


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    return answer(lambda: _run(arguments))


def answer(command: Callable[[], int]) -> int:
    """The exit code of a command; what goes wrong in it is said in one message on stderr."""
    try:
        return command()
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
        if error.errno == errno.ENOSPC:
            print("sargnn: the disk is full", file=sys.stderr)
        elif error.errno in _OF_A_PATH and error.filename and not os.environ.get("SARGNN_FULL_ERROR"):
            print(f"sargnn: {error.strerror}: {error.filename}", file=sys.stderr)
        else:
            raise
        return 1


def _run(arguments: Sequence[str]) -> int:
    if len(arguments) > 1 and arguments[0] == "help" and arguments[1] in VERBS:
        arguments = [*arguments[1:], "--help"]
    elif len(arguments) > 1 and arguments[0] == "help":
        from sargnn.cli.help import topics

        print(topics(arguments[1:], find_folders()))
        return 0
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        from sargnn.cli.help import overview

        print(overview())
        return 0
    if arguments[0] == "--version":
        print(f"sargnn {__version__}")
        return 0
    if arguments[:2] == ["completion", "--candidates"]:
        from sargnn.cli.help import candidates

        print("\n".join(candidates(arguments[2:])))
        return 0
    return run_verb(*find_verb(arguments))


def run_verb(verb: Verb, words: Sequence[str]) -> int:
    """The exit code of a verb with the words behind it. Raises ``SargnnError``."""
    verb = verb.as_meant(words)
    if asks_for_help(words) or not verb.entry:
        from sargnn.cli.help import help_text

        others, folders = take_folders(verb, [word for word in words if not asks_for_help([word])])
        print(help_text(verb, others, folders))
        return 0
    line = read_command_line(verb, words)
    if line.show:
        from sargnn.cli.compose import show_configuration

        print(show_configuration(str(verb.config), line.overrides, line.folders))
        return 0
    try:
        from sargnn.resolve import resolve

        entry = verb.instead[line.instead] if line.instead else verb.entry
        return int(resolve("verb", {verb.name: entry}, verb.name)(line))
    except ConfigError as error:
        place = place_of(verb.config, line.overrides, str(error), line.folders) if verb.config else None
        if place is None:
            raise
        raise ConfigError(f"{error}\n  in:      {place}") from error


def find_verb(arguments: Sequence[str]) -> tuple[Verb, list[str]]:
    """The verb that the first words name, and the others. Raises ``ConfigError`` where there is none."""
    name, *words = arguments
    if name not in VERBS:
        what = f"There is no verb '{name}'."
        if "=" in name or name in ("-m", "--multirun"):
            raise ConfigError(what, hint=" ".join(["sargnn train", *map(shlex.quote, (name, *words))]))
        if name in _ALSO_CALLED:
            raise ConfigError(what, hint=f"sargnn {_ALSO_CALLED[name]}")
        if options := read_known("train", (), find_folders()).options_called(name):
            raise ConfigError(what, hint=f"sargnn train {options[0]}")
        raise ConfigError(what, allowed=nearest(name, VERBS), hint="sargnn --help lists them")
    verb = VERBS[name]
    if not verb.verbs or not words or asks_for_help(words[:1]):
        return verb, words
    if words[0] not in verb.below:
        allowed = [f"{name} {word}" for word in nearest(words[0], verb.below)]
        raise ConfigError(f"There is no verb '{name} {words[0]}'.", allowed=allowed, hint=f"sargnn {name} --help")
    return verb.below[words[0]], words[1:]


if __name__ == "__main__":
    sys.exit(main())
