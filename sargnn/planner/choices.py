"""Ways of training a configuration in the memory that there is, the fastest first.

More workers, another mode and fewer kept layers change no loss but for rounding; nor do micro-batches, unless a norm goes over
rows. bf16 rounds rows: it is offered behind those, micro-batches under a norm over rows last, and neither is ever chosen by
itself.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from sargnn.config import ModeConfig, RunConfig
from sargnn.errors import ConfigError
from sargnn.planner.worlds import WorldPlan

AUTO_MODES = ("no_remat", "sar")
"""What ``mode=auto`` chooses from, the fastest first: what ``no_remat`` keeps it need not fetch again."""
_KEPT = 2
_BATCHES = (4, 16)
_MOST = 6
_LESS = 0.97
"""Of what a faster way holds: a slower one that holds more than this is no choice."""


@dataclass(frozen=True)
class Way:
    """One of them.

    Attributes:
        words: overrides that make the configuration so. config: that. plan: what its workers hold.
    """

    words: tuple[str, ...]
    config: RunConfig
    plan: WorldPlan

    @property
    def remark(self) -> str:
        """What it changes of the losses; nothing of one that is exact."""
        if self.config.norms_over_batches:
            return "norms over each micro-batch"
        return "rows are rounded" if any(one.startswith("precision=") for one in self.words) else ""


def with_mode(config: RunConfig, mode: str) -> RunConfig:
    """In another of the package's modes; what ``mode.keep`` says stays where the mode has it."""
    keep = config.mode.keep if mode == "no_remat" else "rows"
    return dataclasses.replace(config, mode=ModeConfig(mode, keep=keep))


def find_ways(
    config: RunConfig, plan_of: Callable[[RunConfig], WorldPlan], fits: Callable[[WorldPlan], bool], worlds: Sequence[int],
    most: int = _MOST, *, in_batches: bool = True,
) -> list[Way]:  # fmt: skip
    """What fits, at most so many ways, each slower one with less memory than those before it.

    Args:
        plan_of: plans a configuration; raises ``ConfigError`` where that is none. fits: whether a plan does.
        worlds: numbers of workers to try, the nearest first; the others only where none before fits.
        in_batches: try micro-batches, too, for which a large graph is read several times.
    """
    found: list[Way] = []
    for world in worlds:
        of_world = dataclasses.replace(config, world=world)
        more = () if world == config.world else (f"world={world}",)
        for words, one in _variants(of_world):
            if not in_batches and one.batches.count != config.batches.count:
                continue
            try:
                plan = plan_of(one)
            except ConfigError:
                continue
            if fits(plan) and all(plan.largest.total < _LESS * way.plan.largest.total for way in found):
                found.append(Way((*words, *more), one, plan))
            if len(found) == most:
                return found
        if found:
            break
    return found


def _variants(config: RunConfig) -> Iterator[tuple[tuple[str, ...], RunConfig]]:
    """The configuration as it is and changed: what changes no loss, the fastest first, then what does."""
    own = config.mode.target is not None
    for mode in [config.mode.name] if own else AUTO_MODES:
        yield (f"mode={mode}",), config if own else with_mode(config, mode)
    leanest = config if own else with_mode(config, AUTO_MODES[-1])
    words = (f"mode={leanest.mode.name}",)
    exact = list(_leaner(leanest, words))
    batched = list(_in_batches(leanest, words))
    if not config.norms_over_rows:
        exact += batched
    yield from exact
    if config.precision == "fp32":
        for more, one in [(words, leanest), *exact]:
            yield (*more, "precision=bf16"), dataclasses.replace(one, precision="bf16")
    if config.norms_over_rows:
        yield from batched


def _leaner(config: RunConfig, words: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], RunConfig]]:
    """With fewer layers' inputs kept."""
    if config.engine.keep_layers == "all":
        engine = dataclasses.replace(config.engine, keep_layers=_KEPT)
        yield (*words, f"engine.keep_layers={_KEPT}"), dataclasses.replace(config, engine=engine)


def _in_batches(config: RunConfig, words: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], RunConfig]]:
    """In micro-batches."""
    if config.batches.count == 1 and not config.draws_flows:
        for count in _BATCHES:
            batches = dataclasses.replace(config.batches, count=count)
            yield (*words, f"batches.count={count}"), dataclasses.replace(config, batches=batches)
