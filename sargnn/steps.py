"""What a long preparation is doing at the moment, for whoever shows it: nobody, unless one is installed.

    step("drawing edges", done=3, total=20)

The listener gets (text, done, total); ``total`` is None where nobody knows how much there is.
"""

from __future__ import annotations

from collections.abc import Callable

Listener = Callable[[str, int | None, int | None], None]
_listener: Listener | None = None


def install(listener: Listener | None) -> None:
    global _listener
    _listener = listener


def step(text: str, done: int | None = None, total: int | None = None) -> None:
    """Tell what happens now."""
    if _listener is not None:
        _listener(text, done, total)
