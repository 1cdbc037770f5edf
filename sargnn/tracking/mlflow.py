"""MLflow: one run per training run, fed by the launching process in batches.

The store is created once, under a file lock: two first runs that create an sqlite store at the same moment would
corrupt it. Imported lazily, because it takes seconds; workers never do.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sargnn.config import RunConfig, flatten
from sargnn.errors import SargnnError
from sargnn.tracking.files import CONFIG, METRICS, SUMMARY, log_path

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

_EPOCH_METRICS = (
    "loss", "lr", "train_acc", "val_acc", "test_acc", "epoch_time_s", "compute_time_s", "comm_wait_time_s", "comm_bytes",
)  # fmt: skip
_SUMMARY_METRICS = (
    "test_acc", "val_acc", "best_val_acc", "test_acc_at_best_val", "epoch_time_s", "evaluate_time_s", "startup_time_s",
    "partition_time_s", "compute_time_s", "comm_wait_time_s", "comm_bytes_per_epoch", "edge_cut",
)  # fmt: skip


def default_uri() -> str:
    """An sqlite store in the working folder."""
    return f"sqlite:///{Path.cwd() / 'mlflow.db'}"


class MlflowRun:
    """One MLflow run.

    Args:
        config: the run's configuration.
        run_dir: whose files become artifacts at the end.
        extra_params, tags: beside the flat configuration.

    Raises:
        SargnnError: the tracking store cannot be used.
    """

    def __init__(self, config: RunConfig, run_dir: Path, extra_params: dict[str, Any], tags: dict[str, str]) -> None:
        os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
        import logging

        from mlflow.entities import Param
        from mlflow.exceptions import MlflowException
        from mlflow.tracking import MlflowClient

        for name in ("alembic", "mlflow", "mlflow.store.db.utils"):  # after the import, which sets levels of its own
            logging.getLogger(name).setLevel(logging.WARNING)
        self.run_dir = run_dir
        uri = config.tracking.uri or default_uri()
        try:
            with _locked(uri):
                self._client: MlflowClient = MlflowClient(tracking_uri=uri)
                experiment = self._experiment_id(config.tracking.experiment, uri)
            run = self._client.create_run(experiment, run_name=config.name, tags=tags)
        except (MlflowException, OSError) as error:
            raise SargnnError(
                f"The MLflow store cannot be used: {str(error).splitlines()[0]}",
                given=uri,
                hint="give another store with tracking.uri=..., or none with tracking.enabled=false",
            ) from error
        self.run_id: str = run.info.run_id
        params = {k: str(v) for k, v in {**flatten(config), **extra_params}.items()}
        self._client.log_batch(self.run_id, params=[Param(k, v[:6000]) for k, v in params.items()])

    def _experiment_id(self, name: str, uri: str) -> str:
        found = self._client.get_experiment_by_name(name)
        if found is not None:
            return str(found.experiment_id)
        location = None
        if uri.startswith("sqlite:///"):  # the default root would be relative to whoever reads it
            location = (Path(uri.removeprefix("sqlite:///")).resolve().parent / "mlartifacts").as_uri()
        return str(self._client.create_experiment(name, artifact_location=location))

    def log_epochs(self, rows: list[dict[str, Any]]) -> None:
        """Send the figures of some epochs in one batch."""
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        metrics = [
            Metric(name, float(row[name]), now, row["epoch"])
            for row in rows
            for name in _EPOCH_METRICS
            if row.get(name) is not None
        ]
        metrics += [
            Metric(f"rank_{rank:02d}/{name}", float(value), now, row["epoch"])
            for row in rows
            for name, values in row.get("ranks", {}).items()
            for rank, value in enumerate(values)
        ]
        for start in range(0, len(metrics), 1000):  # MLflow takes no more at once
            self._client.log_batch(self.run_id, metrics=metrics[start : start + 1000])

    def finish(self, summary: dict[str, Any]) -> None:
        """Send the summary and the run's files, and end the run."""
        from mlflow.entities import Metric

        now, last = int(time.time() * 1000), len(summary.get("losses") or []) - 1
        metrics = [
            Metric(f"final/{name}", float(summary[name]), now, max(last, 0))
            for name in _SUMMARY_METRICS
            if summary.get(name) is not None
        ]
        for name in ("peak_rss_bytes", "peak_train_bytes", "peak_evaluate_bytes"):
            for rank, value in enumerate(summary.get(name) or []):
                metrics.append(Metric(f"final/rank_{rank:02d}/{name}", float(value), now, max(last, 0)))
        if metrics:
            self._client.log_batch(self.run_id, metrics=metrics)
        for file in (CONFIG, SUMMARY, METRICS):
            if (self.run_dir / file).exists():
                self._client.log_artifact(self.run_id, str(self.run_dir / file))
        if log_path(self.run_dir, 0).parent.is_dir():
            self._client.log_artifacts(self.run_id, str(log_path(self.run_dir, 0).parent), "logs")
        status = {"finished": "FINISHED", "interrupted": "KILLED"}.get(summary["status"], "FAILED")
        self._client.set_terminated(self.run_id, status)


@contextmanager
def _locked(uri: str) -> Iterator[None]:
    """One process at a time creates an sqlite store."""
    if not uri.startswith("sqlite:///"):
        yield
        return
    database = Path(uri.removeprefix("sqlite:///"))
    with database.with_name(f".{database.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
