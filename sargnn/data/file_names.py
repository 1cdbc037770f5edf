"""Any text as the name of a file: what a user calls a node type, a relation or a part of a module may hold slashes, be empty,
or be longer than a file's name can be."""

from __future__ import annotations

import hashlib

LONGEST = 200
"""Bytes of a file's name, without its suffix and what a temporary name adds: 255 are a file system's limit."""
_HASH_DIGITS = 16


def file_name(text: str, longest: int = LONGEST) -> str:
    """A name of one file, other for every other text. Texts that can be names stay as they are.

    Slashes, control characters and ``%`` become ``%`` and two hex digits a byte; so do the dots of ``.`` and ``..``; a text
    without any character becomes ``%``. What is too long is cut, and ends with ``%~`` and the beginning of its SHA-256.

    Args:
        longest: bytes in UTF-8 that the name may have.
    """
    escaped = "".join(_escaped(character) if _is_special(character) else character for character in text)
    if set(text) == {"."} and len(text) <= 2:
        escaped = _escaped(".") * len(text)
    encoded = escaped.encode()
    if len(encoded) <= longest:
        return escaped or "%"
    end = f"%~{hashlib.sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()[:_HASH_DIGITS]}"
    return encoded[: longest - len(end)].decode(errors="ignore") + end


def _is_special(character: str) -> bool:
    return character in "%/\x7f" or character < " " or "\ud800" <= character <= "\udfff"


def _escaped(character: str) -> str:
    return "".join(f"%{byte:02X}" for byte in character.encode("utf-8", "surrogatepass"))
