"""Ways of training a configuration in the memory that there is, the fastest first.

More workers, another mode and fewer kept layers change no loss but for rounding; nor do micro-batches, unless a norm goes over
rows. bf16 rounds rows: it is offered behind those, micro-batches under a norm over rows last, and neither is ever chosen by
itself.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from sargnn.config.losses import losses_depend_on
from sargnn.config.run import ModeConfig, RunConfig
from sargnn.errors import ConfigError
from sargnn.planner.worlds import WorldPlan

AUTO_MODES = ("no_remat", "sar")
"""What ``mode=auto`` chooses from, the fastest first: what ``no_remat`` keeps it need not fetch again."""
_KEPT = 2
_BATCHES = (4, 16)
_MOST, _FEW = 6, 3
_LESS = 0.97
"""Of what a faster way holds: a slower one that holds more than this is no choice."""

_Variant = tuple[tuple[str, ...], RunConfig]
"""Overrides, and the configuration with them."""


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
        settings = losses_depend_on(self.config, norms_over_rows=self.config.norms_over_rows)
        return ", ".join(setting.brief for setting in settings)


def with_mode(config: RunConfig, mode: str) -> RunConfig:
    """In another of the package's modes; what ``mode.keep`` says stays where the mode has it."""
    keep = config.mode.keep if mode == "no_remat" else "rows"
    return dataclasses.replace(config, mode=ModeConfig(mode, keep=keep))


def find_ways(
    config: RunConfig,
    plan_of: Callable[[RunConfig], WorldPlan],
    fits: Callable[[WorldPlan], bool],
    worlds: Sequence[int],
    most: int = _MOST,
    *,
    in_batches: bool = True,
) -> list[Way]:
    """What fits, at most so many ways: exact ones, the fastest first, then those that round, at last other norms.

    Each slower one has less memory than those before it. More workers come before rounding.

    Args:
        plan_of: plans a configuration; raises ``ConfigError`` where that is none. fits: whether a plan does.
        worlds: numbers of workers to try, the nearest first; the others only where none before fits.
        in_batches: try micro-batches, too, where little else fits: for them a large graph is read several times.
    """
    own = config.mode.target is not None
    modes = [config.mode.name] if own else AUTO_MODES
    in_modes = [((f"mode={mode}",), config if own else with_mode(config, mode)) for mode in modes]
    exact = [*in_modes, *leaner(*in_modes[-1])]
    rounded = (
        []
        if config.precision != "fp32"
        else [
            ((*words, "precision=bf16"), dataclasses.replace(candidate, precision="bf16"))
            for words, candidate in exact[len(in_modes) - 1 :]
        ]
    )
    batched = list(_in_batches(*in_modes[-1])) if in_batches else []
    ways: list[Way] = []

    def try_all(variants: Sequence[_Variant], among: Sequence[int]) -> None:
        before = len(ways)
        for world in among:
            more = () if world == config.world else (f"world={world}",)
            for words, candidate in variants:
                if len(ways) == most:
                    return
                candidate = dataclasses.replace(candidate, world=world)
                try:
                    plan = plan_of(candidate)
                except ConfigError:
                    continue
                if fits(plan) and all(plan.largest.total < _LESS * way.plan.largest.total for way in ways):
                    ways.append(Way((*words, *more), candidate, plan))
            if len(ways) > before:
                return

    try_all(exact, worlds)
    if len(ways) < _FEW and not config.norms_over_rows:
        try_all(batched, [ways[0].plan.world] if ways else worlds)
    try_all(rounded, [ways[0].plan.world] if ways else worlds)
    if not ways and config.norms_over_rows:
        try_all(batched, worlds)
    return ways


def leaner(words: tuple[str, ...], config: RunConfig) -> Iterator[_Variant]:
    """With fewer layers' inputs kept."""
    if config.engine.keep_layers == "all":
        engine = dataclasses.replace(config.engine, keep_layers=_KEPT)
        yield (*words, f"engine.keep_layers={_KEPT}"), dataclasses.replace(config, engine=engine)


def _in_batches(words: tuple[str, ...], config: RunConfig) -> Iterator[_Variant]:
    """In micro-batches."""
    if config.batches.count == 1 and not config.draws_flows:
        for count in _BATCHES:
            batches = dataclasses.replace(config.batches, count=count)
            yield (*words, f"batches.count={count}"), dataclasses.replace(config, batches=batches)
