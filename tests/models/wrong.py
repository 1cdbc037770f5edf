"""A user's module in a file, made as before a run, and its one message: for tests of what is wrong with it."""

from __future__ import annotations

import re
from pathlib import Path

from sargnn.cli.compose import compose_verb
from sargnn.config.run import RunConfig, parse
from sargnn.errors import ConfigError
from sargnn.graph.schema import Relation, Schema
from sargnn.models.inputs import GraphShape
from sargnn.run.check import check_strategies
from sargnn.training.build import make_model

PLAIN = GraphShape(Schema.homogeneous(100), (5,), 3, labelled=0)
TYPED = GraphShape(
    Schema(("author", "paper"), (0, 40, 100), (Relation(0, "writes", 1), Relation(1, "cites", 1), Relation(1, "by", 0))),
    (0, 5), 3, labelled=1,
)  # fmt: skip


def configured(folder: Path, text: str, *words: str) -> RunConfig:
    (folder / "net.py").write_text(text)
    return parse(compose_verb("train", ["model=custom", f"model.target={folder}/net.py:Net", *words]))


def make(config: RunConfig, shape: GraphShape) -> None:
    """What the launching process does before the graph is partitioned."""
    check_strategies(config)
    make_model(config, shape)


def check(error: ConfigError, folder: Path, text: str, wanted: str) -> None:
    """The message says what is wanted, with the line that is marked ``# here``, where one is."""
    message = str(error)
    assert wanted in message, message
    lines = text.splitlines()
    marked = [number for number, line in enumerate(lines, start=1) if "# here" in line]
    if marked:
        assert f"{folder}/net.py line {marked[0]}" in message, message
    assert len(re.findall(r"^  given: ", message, flags=re.M)) == 1 and len(message) < 900, message
