"""A run in MLflow, fed by the launching process in batches, or sent once it is over."""

from __future__ import annotations

import dataclasses
import math
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sargnn.config.run import load
from sargnn.errors import ConfigError, SargnnError
from sargnn.tracking.files import CONFIG, INPUTS, METRICS, SUMMARY, MetricsTail, log_path, read_inputs
from sargnn.tracking.mlflow.figures import EpochFigures, settled_figures, single_figures
from sargnn.tracking.mlflow.store import known_stores, note_store, open_store
from sargnn.tracking.summary import FINISHED, INTERRUPTED, Summary, read_summary
from sargnn.tracking.target import Target, target_of
from sargnn.tracking.tracker import Tracker

PARENT = "SARGNN_MLFLOW_PARENT"
"""The environment variable that tells a sweep's point its parent run."""
CHANGED = "resumed_with"
"""The tag of a resumed run that names the settings which are others than its parameters say."""
_AT_ONCE = 1000  # MLflow takes no more metrics in one batch


class MlflowRun(Tracker):
    """One MLflow run. ``mlflow.json`` in the run folder says where it is and whether all of it was sent.

    Each epoch is sent once: a run that goes on where it was interrupted, on whatever world, fills in the epochs that MLflow
    lacks, and leaves those that it has.

    Raises ``SargnnError``: the tracking store cannot be used, or ``metrics.jsonl`` is damaged.
    """

    title = "MLflow"
    later = "to send it there later: sargnn track {}"

    def __init__(self, target: Target) -> None:
        self.run_id: str
        self.run_dir, self.uri, self._target = target.run_dir, target.uri, target
        rows = list(MetricsTail(target.run_dir).new_rows())  # a damaged line is named before anything is begun
        self._client, experiment = open_store(target.uri, target.experiment)
        self._figures = EpochFigures(ranks=target.ranks)
        self._seen: set[int] = set()
        self._sent: set[int] = set()
        self._last: dict[str, float] = {}
        if not self._goes_on():
            self._create(experiment)
        self.log_epochs(rows)

    def _goes_on(self) -> bool:
        """Take up the run that the folder was sent to, if that is wanted and it is still there."""
        from mlflow.exceptions import MlflowException

        known = known_stores(self.run_dir).get(self.uri) if self._target.same_run else None
        if not known:
            return False
        try:
            run = self._client.get_run(str(known["run_id"]))
        except MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
            return False
        if run.info.lifecycle_stage != "active":  # somebody removed it
            return False
        self.run_id = run.info.run_id
        self._sent = {metric.step for metric in self._client.get_metric_history(self.run_id, "loss")}
        self._last = dict(run.data.metrics)
        self._client.update_run(self.run_id, status="RUNNING", name=self._target.name)
        for key, value in self._tags().items():
            self._client.set_tag(self.run_id, key, value)
        # Parameters cannot be changed in MLflow: a tag has what is another setting now.
        before, now = run.data.params, self._target.settings
        changed = [f"{key}={value}" for key, value in now.items() if before.get(key, value) != value and key != "run_dir"]
        if changed:
            self._client.set_tag(self.run_id, CHANGED, " ".join(changed)[:5000])
        elif CHANGED in run.data.tags:
            self._client.delete_tag(self.run_id, CHANGED)
        note_store(self.run_dir, self.uri, self.run_id, sent=False)
        return True

    def _create(self, experiment: str) -> None:
        from mlflow.entities import Param

        target = self._target
        started_ms = None if target.started_at is None else int(target.started_at * 1000)
        run = self._client.create_run(experiment, start_time=started_ms, run_name=target.name, tags=self._tags())
        self.run_id = run.info.run_id
        note_store(self.run_dir, self.uri, self.run_id, sent=False)
        params = [Param(key, value) for key, value in target.params.items()]
        for start in range(0, len(params), 100):  # MLflow takes no more at once
            self._client.log_batch(self.run_id, params=params[start : start + 100])
        if target.graph is not None:
            self._client.log_inputs(self.run_id, datasets=[target.graph.as_input()])

    def _tags(self) -> dict[str, str]:
        tags = self._target.tags | {"mlflow.source.name": "sargnn train", "mlflow.source.type": "LOCAL"}
        if parent := os.environ.get(PARENT):
            tags["mlflow.parentRunId"] = parent
        return tags

    def log_epochs(self, rows: Sequence[Mapping[str, Any]]) -> None:
        batch: list[tuple[str, float, int]] = []
        for row in rows:
            epoch = int(row["epoch"])
            if epoch in self._seen:
                continue
            self._seen.add(epoch)
            figures = self._figures.add(row)
            if epoch not in self._sent:
                self._last |= figures
                batch += [(name, value, epoch) for name, value in figures.items()]
        self._log(batch)

    def finish(self, summary: Summary) -> None:
        last = max(len(summary.losses) - 1, 0)
        settled = settled_figures(summary)
        unsettled = [name for name in settled if not math.isclose(self._last.get(name, math.nan), settled[name], rel_tol=1e-6)]
        batch = [(name, settled[name], last) for name in unsettled]
        single = single_figures(summary, ranks=self._target.ranks)
        # Step 0: MLflow draws what has no later step as a bar.
        self._log(batch + [(name, value, 0) for name, value in single.items()])
        for file in (CONFIG, SUMMARY, METRICS):
            if (self.run_dir / file).exists():
                self._client.log_artifact(self.run_id, str(self.run_dir / file))
        for folder in (log_path(self.run_dir, 0).parent, self.run_dir / "plots"):
            if folder.is_dir():
                self._client.log_artifacts(self.run_id, str(folder), folder.name)
        for name in ("dataset_hash", "partition_hash", "git_sha", "kernel"):
            if value := getattr(summary, name):
                self._client.set_tag(self.run_id, name, value)
        ended_ms = None  # now
        if self._target.started_at is not None and (self.run_dir / SUMMARY).exists():  # it ended before it is sent
            ended_ms = int((self.run_dir / SUMMARY).stat().st_mtime * 1000)
        status = {FINISHED: "FINISHED", INTERRUPTED: "KILLED"}.get(summary.status, "FAILED")
        self._client.set_terminated(self.run_id, status, end_time=ended_ms)
        note_store(self.run_dir, self.uri, self.run_id, sent=True)

    def _log(self, figures: Sequence[tuple[str, float, int]]) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        metrics = [Metric(name, value, now, step) for name, value, step in figures]
        for start in range(0, len(metrics), _AT_ONCE):
            self._client.log_batch(self.run_id, metrics=metrics[start : start + _AT_ONCE])


class Parent:
    """A sweep's own run, under which its points appear."""

    def __init__(self, uri: str, experiment: str, name: str, tags: dict[str, str]) -> None:
        self._client, where = open_store(uri, experiment)
        self.run_id: str = self._client.create_run(where, run_name=name, tags=tags).info.run_id

    def finish(self, tags: dict[str, str], *, failed: bool) -> None:
        for name, value in tags.items():
            self._client.set_tag(self.run_id, name, value)
        self._client.set_terminated(self.run_id, "FAILED" if failed else "FINISHED")


def send_again(run_dir: Path, uri: str | None) -> tuple[str, str]:
    """Send a run that is over, once: to ``uri``, or where its configuration says. What was begun there is completed.

    Returns:
        The store and the run's id there.

    Raises:
        ConfigError: not a run folder, a run that is not over, or one that is there already.
        SargnnError: a damaged file of the run, named; or MLflow does not take the figures.
    """
    if not (run_dir / CONFIG).is_file():
        raise ConfigError("This is no run folder.", given=str(run_dir), hint="a run folder holds config.yaml")
    run_dir = run_dir.resolve()
    config, summary = load(run_dir / CONFIG), read_summary(run_dir)
    if summary is None:
        raise ConfigError("This run is not over: it has no summary.json.", given=str(run_dir))
    inputs = read_inputs(run_dir) if (run_dir / INPUTS).is_file() else None
    target = target_of(config, run_dir, inputs, uri=uri, same_run=True)
    known = known_stores(run_dir).get(target.uri)
    if known and known["sent"]:
        given = f"it is run {known['run_id']} in {target.uri}"
        raise ConfigError("This run was sent already.", given=str(run_dir), hint=given)
    if inputs is not None:
        target = dataclasses.replace(target, started_at=inputs.started_at)
    try:
        run = MlflowRun(target)
        run.finish(summary)
    except SargnnError:
        raise
    except Exception as error:  # whatever MLflow, its database or the network has to say
        what = (str(error) or type(error).__name__).splitlines()[0][:200]
        raise SargnnError("MLflow did not take the figures.", given=what, hint="the same command tries again") from error
    return target.uri, run.run_id
