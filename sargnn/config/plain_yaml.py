"""YAML from a file that anyone may have written: whatever is wrong with it is one ``ConfigError`` that names it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from sargnn.errors import ConfigError


class _PlainLoader(yaml.SafeLoader):
    """YAML without aliases: a few lines of them can stand for a document that fits no memory."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("aliases (*name) are not read")
        return super().compose_node(parent, index)


def read_yaml(path: Path, what: str) -> Any:
    """The file's document, of plain values.

    Args:
        what: the file's role ("A run's configuration"), for the message.

    Raises:
        ConfigError: the file cannot be read, is no YAML, is nested too deeply or has aliases.
    """
    try:
        return yaml.load(path.read_text(), Loader=_PlainLoader)  # a SafeLoader
    except RecursionError as error:
        reason = "it is nested too deeply"
        raise ConfigError(f"{what} cannot be read.", given=str(path), hint=reason) from error
    except (yaml.YAMLError, OSError, ValueError) as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise ConfigError(f"{what} cannot be read.", given=str(path), hint=reason) from error
