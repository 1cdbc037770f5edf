"""``world=auto``: the fewest workers that fit this machine, found before the run is composed.

Workers of one machine share its cores: more of them are no faster, they only hold less each.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sargnn.cli.conf import ConfFolders
from sargnn.config.memory import AUTO
from sargnn.errors import ConfigError

_MOST = 32


def asks(mapping: dict[str, Any]) -> bool:
    """Whether a composed configuration leaves the number of workers open."""
    return mapping.get("world") == AUTO


def provisional(mapping: dict[str, Any]) -> dict[str, Any]:
    """The same with one worker, for checks that need no graph."""
    return {**mapping, "world": 1} if asks(mapping) else mapping


def with_world(overrides: Sequence[str], folders: ConfFolders) -> list[str]:
    """The overrides with a number of workers; as they are where they have one. Prepares the dataset.

    Raises:
        ConfigError: nothing fits, or a setting cannot be.
    """
    from sargnn.cli.compose import compose_verb
    from sargnn.config.run import parse

    mapping = compose_verb("train", overrides, folders=folders)
    if not asks(mapping):
        return list(overrides)
    rest = [override for override in overrides if override.lstrip("+").partition("=")[0] != "world"]
    parse(provisional(mapping))
    from sargnn.tracking.progress import Steps, say

    with Steps():
        world = _fewest(mapping)
    say(f"world=auto: {world} worker{'s' * (world > 1)}, the fewest that fit")
    return [*rest, f"world={world}"]


def _fewest(mapping: dict[str, Any]) -> int:
    from sargnn.cli.planned_graph import planned_graph
    from sargnn.config.run import parse
    from sargnn.memory.settle import Machine, can_be_large, fits, with_budget
    from sargnn.tracking.memory import human_bytes

    first = parse(provisional(mapping))
    graph = planned_graph(first, None, times=False)
    if not can_be_large(graph.num_nodes, graph.num_edges) and first.memory_budget.size is None:
        return 1
    least, world = None, 1
    while world <= _MOST:
        machine = Machine.here(world)
        config = with_budget(parse({**mapping, "world": world}), machine)
        for candidate in config.in_modes:
            plan = graph.plan(candidate)
            least = plan if least is None or plan.largest.total < least.largest.total else least
            if fits(plan, candidate, machine):
                return world
        world *= 2
    assert least is not None
    raise ConfigError(
        f"No number of workers up to {_MOST} fits this machine.",
        given=f"world=auto; {least.world} take {human_bytes(least.largest.total)} each, {human_bytes(least.together)} in all",
        hint="sargnn plan what=fit; or world=N and memory_budget.enforce=false",
    )
