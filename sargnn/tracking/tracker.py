"""What takes the figures of a run: MLflow, TensorBoard, Weights & Biases, or a class of one's own."""

from __future__ import annotations

import json
import shutil
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from sargnn.config.groups import TrackingConfig
from sargnn.errors import ConfigError
from sargnn.resolve import resolve
from sargnn.tracking.files import MetricsTail, read_json, write_json
from sargnn.tracking.mlflow.figures import EpochFigures, settled_figures, single_figures
from sargnn.tracking.summary import FINISHED, Summary
from sargnn.tracking.target import Target

TRACKERS = {
    "mlflow": "sargnn.tracking.mlflow.run:MlflowRun",
    "tensorboard": "sargnn.tracking.tracker:TensorboardRun",
    "wandb": "sargnn.tracking.tracker:WandbRun",
}
_PACKAGES = {"tensorboard": "tensorboard", "wandb": "wandb"}
FOLDER = "tensorboard"
_INIT_S = 20.0


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


class _InOrder(Tracker):
    """Takes the figures of each epoch once, in order."""

    def __init__(self, target: Target) -> None:
        self._ranks, self._figures, self._seen = target.ranks, EpochFigures(ranks=target.ranks), -1

    def _of_new(self, rows: Sequence[Mapping[str, Any]]) -> Iterator[tuple[int, dict[str, float]]]:
        """The epochs among some rows that were not taken yet, each with its figures."""
        for row in rows:
            if (epoch := int(row["epoch"])) > self._seen:
                self._seen = epoch
                yield epoch, self._figures.add(row)

    def _of_run(self, summary: Summary) -> dict[str, float]:
        return settled_figures(summary) | single_figures(summary, ranks=self._ranks)


class TensorboardRun(_InOrder):
    """Event files in ``RUN_DIR/tensorboard``, which ``tensorboard --logdir runs`` shows: figures of every epoch as scalars, at
    the epoch as step, and the settings as a text.

    A run that goes on has its events written anew from ``metrics.jsonl``: each epoch is there once, in one file.
    """

    title = "TensorBoard"

    def __init__(self, target: Target) -> None:
        from torch.utils.tensorboard import SummaryWriter

        super().__init__(target)
        folder = target.run_dir / FOLDER
        shutil.rmtree(folder, ignore_errors=True)
        self._writer: Any = SummaryWriter(str(folder))
        self._writer.add_text("settings", "\n".join(f"    {key}: {value}" for key, value in target.settings.items()))
        self.log_epochs(list(MetricsTail(target.run_dir).new_rows()))

    def log_epochs(self, rows: Sequence[Mapping[str, Any]]) -> None:
        for epoch, figures in self._of_new(rows):
            for name, value in figures.items():
                self._writer.add_scalar(name, value, epoch)
        self._writer.flush()

    def finish(self, summary: Summary) -> None:
        figures = self._of_run(summary)
        for name, value in figures.items():
            self._writer.add_scalar(f"run/{name}", value, max(self._seen, 0))
        self._writer.add_text("summary", f"    {json.dumps({'status': summary.status, 'error': summary.error} | figures)}")
        self._writer.close()


class WandbRun(_InOrder):
    """Online, or with ``tracking.offline=true`` in ``RUN_DIR/wandb``, for ``wandb sync``.

    ``wandb.json`` in the run folder remembers the run's id and how many epochs it has, so that a run that goes on is the same
    run there.
    """

    title = "Weights & Biases"
    later = "what is missing there is in the run's folder: {}"

    def __init__(self, target: Target) -> None:
        import wandb

        super().__init__(target)
        self._path = target.run_dir / "wandb.json"
        known = read_json(self._path) if target.same_run and self._path.is_file() else {}
        server = {"base_url": target.server} if target.server else {}
        self._run: Any = wandb.init(
            project=target.experiment,
            name=target.name,
            id=known.get("id"),
            resume="allow" if known and not target.offline else None,
            config=dict(target.settings),
            tags=[f"{key}:{target.tags[key]}"[:64] for key in ("model", "mode", "dataset") if key in target.tags],
            dir=str(target.run_dir),
            mode="offline" if target.offline else "online",
            reinit="create_new",
            settings=wandb.Settings(console="off", silent=True, init_timeout=_INIT_S, **server),
        )
        self._sent = int(known.get("epochs", 0))
        self.log_epochs(list(MetricsTail(target.run_dir).new_rows()))

    def log_epochs(self, rows: Sequence[Mapping[str, Any]]) -> None:
        for epoch, figures in self._of_new(rows):
            if epoch >= self._sent:
                self._run.log(figures, step=epoch)
        self._sent = max(self._sent, self._seen + 1)
        write_json(self._path, {"id": self._run.id, "epochs": self._sent})

    def finish(self, summary: Summary) -> None:
        self._run.summary.update(self._of_run(summary))
        self._run.finish(exit_code=0 if summary.status == FINISHED else 1)
