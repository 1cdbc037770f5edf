"""A run in Weights & Biases, online; or, with ``tracking.offline=true``, in ``RUN_DIR/wandb``, for ``wandb sync``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sargnn.tracking.files import MetricsTail, read_json, write_json
from sargnn.tracking.mlflow.figures import EpochFigures, settled_figures, single_figures
from sargnn.tracking.summary import FINISHED, Summary
from sargnn.tracking.target import Target
from sargnn.tracking.tracker import Tracker

_FILE = "wandb.json"
_INIT_S = 20.0


class WandbRun(Tracker):
    """``wandb.json`` in the run folder remembers the run's id and how many epochs it has, so that a run that goes on is the
    same run there."""

    title = "Weights & Biases"
    later = "what is missing there is in the run's folder: {}"

    def __init__(self, target: Target) -> None:
        import wandb

        self._path, self._ranks = target.run_dir / _FILE, target.ranks
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
        self._figures, self._sent, self._seen = EpochFigures(ranks=target.ranks), int(known.get("epochs", 0)), -1
        self.log_epochs(list(MetricsTail(target.run_dir).new_rows()))

    def log_epochs(self, rows: Sequence[Mapping[str, Any]]) -> None:
        for row in rows:
            if (epoch := int(row["epoch"])) <= self._seen:
                continue
            self._seen, figures = epoch, self._figures.add(row)
            if epoch >= self._sent:
                self._run.log(figures, step=epoch)
        self._sent = max(self._sent, self._seen + 1)
        write_json(self._path, {"id": self._run.id, "epochs": self._sent})

    def finish(self, summary: Summary) -> None:
        self._run.summary.update(settled_figures(summary) | single_figures(summary, ranks=self._ranks))
        self._run.finish(exit_code=0 if summary.status == FINISHED else 1)
