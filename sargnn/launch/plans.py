"""Plans of configurations on one dataset, with what this machine has measured of a worker."""

from __future__ import annotations

from sargnn.config.run import RunConfig
from sargnn.data.dataset import Dataset
from sargnn.launch.runtime import measured_runtime
from sargnn.planner.worlds import Cut, WorldPlan, find_cut, plan_run


def cut_key(config: RunConfig) -> str:
    """What tells cuts of one dataset apart."""
    return repr((config.partitioner, config.world, config.num_servers, config.add_self_loops))


class Plans:
    """Each cut is found once.

    Args:
        name: of the dataset store's folder.
    """

    def __init__(self, dataset: Dataset, name: str) -> None:
        self.dataset, self._name = dataset, name
        self._cuts: dict[str, Cut] = {}

    def cut(self, config: RunConfig) -> Cut:
        """The configuration's."""
        key = cut_key(config)
        if key not in self._cuts:
            self._cuts[key] = find_cut(config, self.dataset, self._name)
        return self._cuts[key]

    def plan(self, config: RunConfig) -> WorldPlan:
        """What its workers hold and send. Raises ``SargnnError``: it cannot be planned, or what is measured first failed."""
        cut = self.cut(config)
        return plan_run(config, self.dataset, cut, measured_runtime(config, typed=self.dataset.schema.typed))

    @property
    def all_exact(self) -> bool:
        """Whether all cuts so far are partitions that are there."""
        return all(cut.exact for cut in self._cuts.values())
