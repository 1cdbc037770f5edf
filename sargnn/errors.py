"""What goes wrong, said once: what is wrong, what was given, what is allowed, what to do next."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class SargnnError(Exception):
    """Base of every error a user can cause. The command line prints its text, without a traceback, and exits with 1.

    Args:
        what: what is wrong, one sentence.
        given: what was given, if that helps.
        allowed: the allowed values, nearest first, or a description of them.
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
        if allowed is not None:
            lines.append(f"  allowed: {allowed if isinstance(allowed, str) else ', '.join(allowed)}")
        if hint is not None:
            lines.append(f"  next:    {hint}")
        super().__init__("\n".join(lines))


class ConfigError(SargnnError):
    """A setting that does not exist or has a value that cannot be used."""


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


def nearest(word: str, known: Iterable[str], most: int = 4) -> list[str]:
    """The ``known`` names, those most like ``word`` first, at most ``most`` of them (all, if none is alike)."""
    names = list(known)
    close = difflib.get_close_matches(word, names, n=most, cutoff=0.5)
    return close or names
