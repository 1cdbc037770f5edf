"""What goes wrong, said once: what is wrong, what was given, what is allowed, what to do next."""

from __future__ import annotations

import difflib
import textwrap
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

MOST_SHOWN = 8
"""Names that a message lists."""


class SargnnError(Exception):
    """Base of every error a user can cause. The command line prints its text, without a traceback, and exits with 1.

    Args:
        what: what is wrong, one sentence.
        given: what was given, if that helps.
        allowed: the allowed values, nearest first, or a description of them. Of many the first eight are shown; none, no line.
        hint: what to do next.
    """

    def __init__(
        self,
        what: str,
        *,
        given: object = None,
        allowed: Iterable[str] | str | None = None,
        hint: str | None = None,
    ) -> None:
        lines = [what]
        if given is not None:
            lines.append(f"  given:   {given}")
        if allowed and (text := _listed(allowed)):
            lines.append(f"  allowed: {text}")
        if hint is not None:
            lines.append(f"  next:    {hint}")
        super().__init__("\n".join(lines))


class ConfigError(SargnnError):
    """A setting that does not exist or has a value that cannot be used."""


@contextmanager
def writing(what: str, place: object, hint: str | None = None) -> Iterator[None]:
    """Within it a place that cannot be written, called ``what``, is a ``ConfigError``."""
    try:
        yield
    except OSError as error:
        raise ConfigError(f"{what} cannot be written: {error.strerror}.", given=str(place), hint=hint) from error


class DataError(SargnnError):
    """Raw files that are missing or malformed."""


class StoreError(SargnnError):
    """A dataset or partition store that is damaged, truncated or of another version."""


class KernelError(SargnnError):
    """No kernel can serve a call; the message lists each kernel's reasons."""


class CommError(SargnnError):
    """A peer that died, hung or could not be reached."""


class WorkerError(SargnnError):
    """A worker process that failed; the message names its rank and shows the end of its log."""


class TrainingError(SargnnError):
    """Training that cannot go on, such as a loss that is not finite."""


def _listed(allowed: Iterable[str] | str) -> str:
    if isinstance(allowed, str):
        return allowed
    names = list(allowed)
    text = ", ".join(names if len(names) <= MOST_SHOWN else [*names[:MOST_SHOWN], "..."])
    return textwrap.fill(text, 69, subsequent_indent=" " * 11, break_long_words=False, break_on_hyphens=False)


def nearest(word: str, known: Iterable[str], most: int = 4) -> list[str]:
    """The ``known`` names, those most like ``word`` first, at most ``most`` of them, in whatever case; never ``word`` itself.

    If none is alike: all where they are few enough to be read, else none.
    """
    names = [name for name in dict.fromkeys(known) if name != word]
    folded: dict[str, list[str]] = {}
    for name in names:
        folded.setdefault(name.casefold(), []).append(name)
    close = difflib.get_close_matches(word.casefold(), folded, n=most, cutoff=0.5)
    alike = [name for key in close for name in folded[key]][:most]
    return alike or (names if len(names) <= MOST_SHOWN else [])
