"""What takes the figures of a run: MLflow, TensorBoard, Weights & Biases, or a class of one's own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from sargnn.config.groups import TrackingConfig
from sargnn.errors import ConfigError
from sargnn.resolve import resolve

if TYPE_CHECKING:
    from sargnn.tracking.summary import Summary
    from sargnn.tracking.target import Target

TRACKERS = {
    "mlflow": "sargnn.tracking.mlflow.run:MlflowRun",
    "tensorboard": "sargnn.tracking.tensorboard:TensorboardRun",
    "wandb": "sargnn.tracking.wandb:WandbRun",
}
_PACKAGES = {"tensorboard": "tensorboard", "wandb": "wandb"}


class Tracker(ABC):
    """A run as a tracker has it. It is made in the launching process, by a thread of its own: its errors are said, and the run
    goes on. The folder's ``metrics.jsonl`` may have epochs already.

    Attributes:
        title: what messages call the tracker.
        later: how what is missing is sent later; {} stands for the run's folder.
    """

    title: ClassVar[str] = "the tracker"
    later: ClassVar[str] = "the run's folder has all figures: {}"

    @abstractmethod
    def __init__(self, target: Target) -> None: ...

    @abstractmethod
    def log_epochs(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Some lines of ``metrics.jsonl``, in the order of the epochs."""

    @abstractmethod
    def finish(self, summary: Summary) -> None:
        """The run has ended."""


def tracker_class(name: str) -> type[Tracker]:
    """The class of that name, or ``FILE.py:NAME``. Raises ``ConfigError`` where it is none."""
    made: Any = resolve("tracker", TRACKERS, name)
    if name not in TRACKERS and not (isinstance(made, type) and issubclass(made, Tracker)):
        raise ConfigError(
            "'tracking.name' names no tracker.", given=name, allowed="a class that extends sargnn.tracking.tracker.Tracker"
        )
    known: type[Tracker] = made
    return known


def check_tracker(tracking: TrackingConfig) -> None:
    """Raises ``ConfigError`` where the tracker's package or key is missing, or its name is no tracker's."""
    if not tracking.enabled:
        return
    from importlib.util import find_spec

    package = _PACKAGES.get(tracking.name)
    if package is not None and find_spec(package) is None:
        raise ConfigError(
            f"tracking={tracking.name} needs the package {package}, which is not installed.",
            hint=f"pip install {package}; or tracking=mlflow, tracking=none",
        )
    if tracking.name == "wandb" and not tracking.offline:
        import wandb

        if not wandb.api.api_key:  # it would ask, in the middle of the run
            hint = "wandb login, once, or WANDB_API_KEY; or tracking.offline=true"
            raise ConfigError("Weights & Biases has no key on this machine.", given="tracking=wandb", hint=hint)
    if tracking.name not in TRACKERS:
        tracker_class(tracking.name)
