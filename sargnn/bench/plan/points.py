"""Which runs are compared: a grid, some that are named, and some that are drawn."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sargnn.bench.plan.draw import draw_runs
from sargnn.bench.plan.rows import Point
from sargnn.bench.settings import BenchPlanConfig
from sargnn.bench.table.entries import row_name
from sargnn.config.run import RunConfig
from sargnn.launch.check import check_strategies


def find_points(settings: BenchPlanConfig, make: Callable[[Sequence[str]], RunConfig]) -> list[Point]:
    """All of them, in order.

    Args:
        make: of a case with overrides the run.

    Raises:
        ConfigError: a run of the grid or a named one that cannot be.
    """

    def checked(words: Sequence[str]) -> RunConfig:
        config = make(words)
        check_strategies(config)
        return config

    points = []
    for case in settings.models:
        for world in settings.worlds:
            for mode in settings.modes:
                config = checked([case, f"mode={mode}", f"world={world}"])
                points.append(Point(case, row_name(mode, world), "", config))
    for name in settings.named_runs:
        words = settings.more[name]
        points.append(Point(words[0], name, _more(words), checked(words)))
    for number, (words, config) in enumerate(draw_runs(settings, checked)):
        points.append(Point(words[0], f"drawn {settings.draw_seed} {number:02d}", _more(words), config))
    return points


def _more(words: Sequence[str]) -> str:
    """What a row says beside model, mode and workers."""
    return " ".join(word for word in words[1:] if not word.startswith(("mode=", "world=")))
