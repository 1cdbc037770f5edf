"""What a verb is: what the command line, the help and the completion know of it. ``cli.verbs`` has them all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

Value = str | int | bool | None


@dataclass(frozen=True)
class Setting:
    """A ``key=value`` that a verb reads itself, beside or without a composed configuration.

    Attributes:
        default: its type is the value's type; None: any text, or nothing.
        comment: what the help says.
        allowed: the only values; none: all.
        low: the smallest whole number allowed.
        high: the largest one.
        names: what the value is a path of, for completion.
        flag: ``--NAME`` says true.
    """

    name: str
    default: Value
    comment: str
    allowed: tuple[str, ...] = ()
    low: int | None = None
    high: int | None = None
    names: Literal["text", "run", "folder"] = "text"
    flag: bool = False


@dataclass(frozen=True)
class Verb:
    """What the command line, the help and the completion know of a verb.

    Attributes:
        name: as it is typed; of a verb below another one both words.
        summary: its line in ``sargnn --help``.
        entry: ``module:function``; the function takes a ``CommandLine`` and returns the exit code.
        usage: what follows its name.
        examples: (command without ``sargnn``, remark).
        config: its primary file in ``conf/``, without suffix, where it composes a configuration.
        changes_a_run: its overrides change the configuration of a run that is there.
        sweeps: takes ``-m``.
        previews: takes ``--dry-run``.
        settings: those that it reads itself.
        takes: what its other words are.
        choices: those words, where they are few.
        choices_in: the folder of configuration whose files are those words.
        instead: flag -> entry of another function, which gets the words beside the flag as they are.
        verbs: those below it; it has no entry of its own then.
        config_with: setting -> the primary file where it is given.
        program: what is typed before its name.
    """

    name: str
    summary: str
    text: str
    entry: str = ""
    usage: str = "[key=value ...] [group=option ...]"
    examples: tuple[tuple[str, str], ...] = ()
    config: str | None = None
    changes_a_run: bool = False
    sweeps: bool = False
    previews: bool = False
    settings: tuple[Setting, ...] = ()
    takes: Literal["nothing", "run folders", "one run", "one of a few", "one file"] = "nothing"
    choices: tuple[str, ...] = ()
    choices_in: str = ""
    instead: Mapping[str, str] = field(default_factory=dict)
    verbs: tuple[Verb, ...] = ()
    config_with: Mapping[str, str] = field(default_factory=dict)
    program: str = "sargnn"

    @property
    def command(self) -> str:
        """What is typed to call it."""
        return f"{self.program} {self.name}"

    def as_meant(self, words: Sequence[str]) -> Verb:
        """The verb with the primary file that its words ask for."""
        keys = {key.lstrip("+"): value for key, _, value in (word.partition("=") for word in words)}
        files = [file for key, file in self.config_with.items() if keys.get(key) not in (None, "", "null")]
        return replace(self, config=files[0]) if files else self

    @property
    def below(self) -> dict[str, Verb]:
        """By their last word."""
        return {verb.name.split()[-1]: verb for verb in self.verbs}

    @property
    def flags(self) -> tuple[str, ...]:
        there = {
            "--help": True,
            "--config-dir": self.config,
            "--cfg": self.config and not self.changes_a_run,
            "-m": self.sweeps,
            "--dry-run": self.previews,
        }
        own = (f"--{setting.name}" for setting in self.settings if setting.flag)
        return (*(flag for flag, takes in there.items() if takes), *own, *self.instead)
