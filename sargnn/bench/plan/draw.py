"""Runs with settings drawn at random, so that a plan is not only right where somebody has looked."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from sargnn.bench.settings import BenchPlanConfig
from sargnn.config.run import RunConfig
from sargnn.errors import ConfigError

_TRIES = 200
"""For each run that is wanted, before the settings that all runs share are blamed."""
_DEEP = {"resgcn": (4, 8, 16), "gcnii": (4, 8, 16)}
"""Layers of models that are made to be deep."""
_HEADS = ("model.heads=1", "model.heads=2", "model.heads=4")
_OF_A_HEAD = {"gat": _HEADS, "gat_weak": _HEADS}
_CHOICES: dict[str, tuple[str | float | None, ...]] = {
    "model.norm": (None, None, "layer", "none"),
    "model.dropout": (0.0, 0.5),
    "precision": (None, None, None, "bf16", "mixed", "fp64"),
    "comm.aggregate": (None, None, "post", "pre", "least"),
    "comm.prefetch_depth": (0, 1, 2, 3),
    "labels": (None, None, "masked"),
    "engine.keep_layers": (None, None, "sqrt", 1, 2),
}
"""None: as it is without a word."""
_VIEWS = (
    (),
    (),
    (),
    ("batches.count=2",),
    ("batches.count=4",),
    ("mfg=true",),
    ("mfg=true", "batches.count=2"),
    ("sample.fanouts",),
    ("sample.fanouts", "batches.steps=4"),
)
"""What a step computes: in a third of the draws all rows at once."""


def draw_words(draw: random.Random, settings: BenchPlanConfig) -> list[str]:
    """A case and overrides of it, which may not go together."""
    case, mode, world = draw.choice(sorted(settings.cases)), draw.choice(settings.modes), draw.choice(settings.worlds)
    heads = _OF_A_HEAD.get(case, ())
    layers = draw.choice(_DEEP.get(case, (2, 3, 4, 5)))
    hidden = draw.choice((16, 32, 64) if heads else (16, 32, 64, 96, 128, 256))
    words = [case, f"mode={mode}", f"world={world}", f"model.hidden={hidden}", f"model.num_layers={layers}"]
    words += [draw.choice(heads)] if heads else []
    for key, values in _CHOICES.items():
        value = draw.choice(values)
        words += [] if value is None else [f"{key}={value}"]
    fanout = draw.choice((3, 5, 10))
    for word in draw.choice(_VIEWS):
        words.append(f"{word}=[{','.join([str(fanout)] * layers)}]" if word == "sample.fanouts" else word)
    return words


def draw_runs(settings: BenchPlanConfig, make: Callable[[Sequence[str]], RunConfig]) -> list[tuple[list[str], RunConfig]]:
    """``settings.drawn`` different runs: a case with overrides, and what it comes to. The same seed draws the same.

    Args:
        make: of a case with overrides the run; it raises ``ConfigError`` for what does not go together.

    Raises:
        ConfigError: of the last draw, where hardly any can run.
    """
    draw = random.Random(settings.draw_seed)
    runs: dict[str, tuple[list[str], RunConfig]] = {}
    refused: ConfigError | None = None
    for _ in range(_TRIES * settings.drawn):
        if len(runs) == settings.drawn:
            break
        words = draw_words(draw, settings)
        try:
            runs.setdefault(" ".join(words), (words, make(words)))
        except ConfigError as error:
            refused = error
    if len(runs) < settings.drawn:
        what = f"Of {_TRIES * settings.drawn} draws only {len(runs)} can run."
        raise ConfigError(what, given=f"drawn={settings.drawn}", hint=str(refused).splitlines()[0]) from refused
    return list(runs.values())
