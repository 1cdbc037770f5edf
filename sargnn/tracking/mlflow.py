"""MLflow: one run per training run, fed by the launching process in batches.

The store is created once, under a file lock: two first runs that create an sqlite store at the same moment would
corrupt it. Imported lazily, because it takes seconds; workers never do.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sargnn.config import RunConfig, flatten, load
from sargnn.errors import ConfigError, SargnnError
from sargnn.tracking.files import CONFIG, INPUTS, METRICS, MLFLOW, SUMMARY, MetricsTail, log_path, read_json, write_json
from sargnn.tracking.inputs import read_inputs
from sargnn.tracking.locks import file_lock
from sargnn.tracking.scores import SCORE_KEYS, column_of
from sargnn.tracking.summary import FINISHED, INTERRUPTED, Summary, read_summary

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

_EPOCH_METRICS = ("loss", "lr", "epoch_time_s", "compute_time_s", "comm_wait_time_s", "comm_bytes")
_SUMMARY_METRICS = (
    "epoch_time_s", "evaluate_time_s", "startup_time_s", "partition_time_s", "compute_time_s", "comm_wait_time_s",
    "comm_bytes_per_epoch", "edge_cut", "test_acc_smoothed", "val_acc_smoothed", "smooth_time_s",
)  # fmt: skip


PARENT = "SARGNN_MLFLOW_PARENT"
"""The environment variable that tells a sweep's point its parent run."""


def default_uri() -> str:
    """An sqlite store in the working folder."""
    return f"sqlite:///{Path.cwd() / 'mlflow.db'}"


def absolute(uri: str | None) -> str:
    """A store's address, the same from every folder; the default one if not given."""
    if uri is None:
        return default_uri()
    database = database_of(uri)
    return uri if database is None else f"sqlite:///{database.resolve()}"


def database_of(uri: str) -> Path | None:
    """The file of an sqlite store; None for a store of another kind."""
    return Path(uri.removeprefix("sqlite:///")) if uri.startswith("sqlite:///") else None


def _known(run_dir: Path) -> dict[str, Any]:
    """The stores that a run was sent to."""
    try:
        stores = read_json(run_dir / MLFLOW).get("stores")
    except SargnnError:
        return {}
    if not isinstance(stores, dict) or not all(
        isinstance(one, dict) and {"run_id", "sent"} <= set(one) for one in stores.values()
    ):
        return {}
    return stores


def is_known(run_dir: Path, uri: str) -> bool:
    """Whether a run was sent, or begun to be sent, to the store."""
    return absolute(uri) in _known(run_dir)


@dataclass(frozen=True)
class Target:
    """Where a run goes in MLflow, and what it is there.

    Attributes:
        run_dir: whose files become artifacts at the end.
        uri: the store. experiment, name: of the run. tags, params: of the run.
        same_run: go on with the run that the folder was sent to, if there is one; its parameters stay.
    """

    run_dir: Path
    uri: str
    experiment: str
    name: str
    tags: dict[str, str]
    params: dict[str, str]
    same_run: bool


def target_of(
    config: RunConfig, run_dir: Path, extra_params: dict[str, Any], *, uri: str | None = None, same_run: bool = False
) -> Target:
    """A run's place in MLflow: in the store ``uri``, or else in the one that its configuration names."""
    tags = {"model": config.model.name, "mode": config.mode.name, "world": str(config.world)}
    tags |= {"dataset": config.dataset.title, "kernel": config.kernel.name, "partitioner": config.partitioner.name}
    tags["config_hash"] = config.config_hash
    params = {key: str(value)[:6000] for key, value in {**flatten(config), **extra_params}.items()}
    store = absolute(uri or config.tracking.uri)
    return Target(run_dir, store, config.tracking.experiment, config.name, tags, params, same_run)


class MlflowRun:
    """One MLflow run. ``mlflow.json`` in the run folder says where it is and whether all of it was sent.

    Raises:
        SargnnError: the tracking store cannot be used.
    """

    def __init__(self, target: Target) -> None:
        from mlflow.entities import Param

        self.run_id: str
        self.run_dir, self.uri = target.run_dir, target.uri
        tags = target.tags | {"mlflow.source.name": "sargnn train", "mlflow.source.type": "LOCAL"}
        if parent := os.environ.get(PARENT):
            tags["mlflow.parentRunId"] = parent
        self._client, experiment = _open(self.uri, target.experiment)
        known = _known(self.run_dir).get(self.uri) if target.same_run else None
        if known:
            self.run_id = str(known["run_id"])
            self._client.update_run(self.run_id, status="RUNNING")
            for key, value in tags.items():
                self._client.set_tag(self.run_id, key, value)
            self._note(sent=False)
            return
        run = self._client.create_run(experiment, run_name=target.name, tags=tags)
        self.run_id = run.info.run_id
        self._note(sent=False)
        self._client.log_batch(self.run_id, params=[Param(key, value) for key, value in target.params.items()])

    def _note(self, *, sent: bool) -> None:
        stores = _known(self.run_dir) | {self.uri: {"run_id": self.run_id, "sent": sent}}
        write_json(self.run_dir / MLFLOW, {"stores": stores})

    def log_epochs(self, rows: list[dict[str, Any]]) -> None:
        """Send the figures of some epochs in one batch."""
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        metrics = [
            Metric(name, float(value), now, row["epoch"])
            for row in rows
            for name, value in [*((name, row.get(name)) for name in _EPOCH_METRICS), *_named_scores(row, "")]
            if value is not None
        ]
        metrics += [
            Metric(f"rank_{rank:02d}/{name}", float(value), now, row["epoch"])
            for row in rows
            for name, values in row.get("ranks", {}).items()
            for rank, value in enumerate(values)
        ]
        for start in range(0, len(metrics), 1000):  # MLflow takes no more at once
            self._client.log_batch(self.run_id, metrics=metrics[start : start + 1000])

    def finish(self, summary: Summary) -> None:
        """Send the summary and the run's files, and end the run."""
        from mlflow.entities import Metric

        now, last = int(time.time() * 1000), max(len(summary.losses) - 1, 0)
        figures = [(name, getattr(summary, name)) for name in _SUMMARY_METRICS]
        figures += _named_scores(vars(summary), "val_", "test_", "best_")
        metrics = [Metric(f"final/{name}", float(value), now, last) for name, value in figures if value is not None]
        if summary.peak_train_bytes:  # one number, for columns and axes
            metrics.append(Metric("final/peak_train_bytes_max", float(max(summary.peak_train_bytes)), now, last))
        for name in ("peak_rss_bytes", "peak_train_bytes", "peak_evaluate_bytes", "peak_smooth_bytes"):
            for rank, value in enumerate(getattr(summary, name) or []):
                metrics.append(Metric(f"final/rank_{rank:02d}/{name}", float(value), now, last))
        if metrics:
            self._client.log_batch(self.run_id, metrics=metrics)
        for file in (CONFIG, SUMMARY, METRICS):
            if (self.run_dir / file).exists():
                self._client.log_artifact(self.run_id, str(self.run_dir / file))
        if log_path(self.run_dir, 0).parent.is_dir():
            self._client.log_artifacts(self.run_id, str(log_path(self.run_dir, 0).parent), "logs")
        if (self.run_dir / "plots").is_dir():
            self._client.log_artifacts(self.run_id, str(self.run_dir / "plots"), "plots")
        for name in ("dataset_hash", "partition_hash", "git_sha", "kernel"):
            if value := getattr(summary, name):
                self._client.set_tag(self.run_id, name, value)
        status = {FINISHED: "FINISHED", INTERRUPTED: "KILLED"}.get(summary.status, "FAILED")
        self._client.set_terminated(self.run_id, status)
        self._note(sent=True)


def _named_scores(figures: Mapping[str, Any], *starts: str) -> list[tuple[str, float | None]]:
    """Values of the run's metric under its name, ``val_acc`` or ``val_rocauc``: those whose keys start so."""
    if figures.get("metric") is None:
        return []
    name = column_of(figures["metric"])
    return [(key.replace("metric", name), figures.get(key)) for key in SCORE_KEYS if key.startswith(starts)]


def send_again(run_dir: Path, uri: str | None) -> tuple[str, str]:
    """Send a run that is over, once: to ``uri``, or where its configuration says.

    Returns:
        The store and the run's id there.

    Raises:
        ConfigError: not a run folder, a run that is not over, or one that is there already.
        SargnnError: a damaged file of the run, named.
    """
    if not (run_dir / CONFIG).is_file():
        raise ConfigError("This is no run folder.", given=str(run_dir), hint="a run folder holds config.yaml")
    config, summary, rows = load(run_dir / CONFIG), read_summary(run_dir), list(MetricsTail(run_dir).new_rows())
    if summary is None:
        raise ConfigError("This run is not over: it has no summary.json.", given=str(run_dir))
    stats = read_inputs(run_dir).partition_stats if (run_dir / INPUTS).is_file() else {}
    target = target_of(config, run_dir, stats, uri=uri)
    if known := _known(run_dir).get(target.uri):
        client, _ = _open(target.uri, target.experiment)
        if known["sent"]:
            given = f"it is run {known['run_id']} in {target.uri}"
            raise ConfigError("This run was sent already.", given=str(run_dir), hint=given)
        with suppress(Exception):  # what was begun is begun anew
            client.delete_run(known["run_id"])
    try:
        run = MlflowRun(target)
        if rows:
            run.log_epochs(rows)
        run.finish(summary)
    except SargnnError:
        raise
    except Exception as error:  # whatever MLflow, its database or the network has to say
        what = (str(error) or type(error).__name__).splitlines()[0][:200]
        raise SargnnError("MLflow did not take the figures.", given=what, hint="the same command tries again") from error
    return target.uri, run.run_id


class Parent:
    """A sweep's own run, under which its points appear.

    Args:
        name: the sweep's. tags: beside that.
    """

    def __init__(self, uri: str | None, experiment: str, name: str, tags: dict[str, str]) -> None:
        self._client, where = _open(absolute(uri), experiment)
        self.run_id: str = self._client.create_run(where, run_name=name, tags=tags).info.run_id

    def finish(self, tags: dict[str, str], *, failed: bool) -> None:
        """How it came out, and its end."""
        for name, value in tags.items():
            self._client.set_tag(self.run_id, name, value)
        self._client.set_terminated(self.run_id, "FAILED" if failed else "FINISHED")


def _open(uri: str, experiment: str) -> tuple[MlflowClient, str]:
    """A client of the store, which is made if needed, and the experiment's id. Raises ``SargnnError``."""
    os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
    for name, value in (("MAX_RETRIES", "2"), ("TIMEOUT", "20")):  # MLflow's own: 7 retries of 120 s each
        os.environ.setdefault(f"MLFLOW_HTTP_REQUEST_{name}", value)
    import logging

    from mlflow.exceptions import MlflowException
    from mlflow.tracking import MlflowClient

    for name in ("alembic", "mlflow", "mlflow.store.db.utils"):  # after the import, which sets levels of its own
        logging.getLogger(name).setLevel(logging.WARNING)
    logging.getLogger("urllib3").setLevel(logging.ERROR)
    try:
        with _locked(uri):
            client = MlflowClient(tracking_uri=uri)
            found = client.get_experiment_by_name(experiment)
            if found is not None:
                return client, str(found.experiment_id)
            location = None
            if database := database_of(uri):  # the default root would be relative to whoever reads it
                location = (database.resolve().parent / "mlartifacts").as_uri()
            # MLflow 3 asks what kind of work an experiment is, unless it is told.
            kind = {"mlflow.experimentKind": "custom_model_development"}
            return client, str(client.create_experiment(experiment, artifact_location=location, tags=kind))
    except (MlflowException, OSError) as error:
        raise SargnnError(
            f"The MLflow store cannot be used: {str(error).splitlines()[0][:160]}",
            given=uri,
            hint="give another store with tracking.uri=...",
        ) from error


@contextmanager
def _locked(uri: str) -> Iterator[None]:
    """One process at a time creates an sqlite store."""
    database = database_of(uri)
    if database is None:
        yield
        return
    with file_lock(database.with_name(f".{database.name}.lock")):
        yield
