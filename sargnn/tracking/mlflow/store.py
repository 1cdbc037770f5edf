"""MLflow's store: its address, opening it, what a run folder remembers of the stores that it was sent to, and how its pages
open on an experiment, as ``sargnn ui`` does: a saved view of the runs table and the charts.

MLflow keeps such a view as a tag of the experiment, ``mlflow.sharedViewState.KEY``, and opens it by its key in the address. The
value is JSON, deflated and in base64. A version of MLflow that knows no such views ignores the tag.

The store is created once, under a file lock: two first runs that create an sqlite store at the same moment would corrupt it.
MLflow itself is imported lazily, because that takes seconds; workers never do.
"""

from __future__ import annotations

import base64
import json
import os
import zlib
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sargnn.errors import SargnnError
from sargnn.tasks.kinds import METRICS
from sargnn.tracking.files import MLFLOW, file_lock, read_json, write_json
from sargnn.tracking.scores import column_of

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

_MOST_EXPERIMENTS = 1000
_OURS = "tags.config_hash != ''"
VIEW_KEY = "sargnn"
VIEW_TAG = f"mlflow.sharedViewState.{VIEW_KEY}"
_SECTION = "sargnn-figures"


def default_uri() -> str:
    return f"sqlite:///{Path.cwd() / 'mlflow.db'}"


def absolute(uri: str | None) -> str:
    """A store's address, the same from every folder; None: an sqlite store in the working folder."""
    if uri is None:
        return default_uri()
    database = database_of(uri)
    return uri if database is None else f"sqlite:///{database.resolve()}"


def database_of(uri: str) -> Path | None:
    """The file of an sqlite store; None for a store of another kind."""
    return Path(uri.removeprefix("sqlite:///")) if uri.startswith("sqlite:///") else None


def known_stores(run_dir: Path) -> dict[str, Any]:
    """The stores that a run was sent to: address -> ``run_id`` and ``sent``, whether all of it was."""
    try:
        stores = read_json(run_dir / MLFLOW).get("stores")
    except SargnnError:
        return {}
    if not isinstance(stores, dict) or not all(
        isinstance(store, dict) and {"run_id", "sent"} <= set(store) for store in stores.values()
    ):
        return {}
    return stores


def note_store(run_dir: Path, uri: str, run_id: str, *, sent: bool) -> None:
    write_json(run_dir / MLFLOW, {"stores": known_stores(run_dir) | {uri: {"run_id": run_id, "sent": sent}}})


def make_client(uri: str) -> MlflowClient:
    """A client of the store, with MLflow's chatter and its long patience turned down."""
    os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
    for name, value in (("MAX_RETRIES", "2"), ("TIMEOUT", "20")):  # MLflow's own: 7 retries of 120 s each
        os.environ.setdefault(f"MLFLOW_HTTP_REQUEST_{name}", value)
    import logging

    from mlflow.tracking import MlflowClient

    for name in ("alembic", "mlflow", "mlflow.store.db.utils"):  # after the import, which sets levels of its own
        logging.getLogger(name).setLevel(logging.WARNING)
    logging.getLogger("urllib3").setLevel(logging.ERROR)
    return MlflowClient(tracking_uri=uri)


def open_store(uri: str, experiment: str) -> tuple[MlflowClient, str]:
    """A client of the store, which is made if needed, and the experiment's id. Raises ``SargnnError``."""
    from mlflow.exceptions import MlflowException

    try:
        database = database_of(uri)
        with file_lock(database.with_name(f".{database.name}.lock")) if database is not None else nullcontext():
            client = make_client(uri)
            existing = client.get_experiment_by_name(experiment)
            if existing is not None:
                mark_experiment(client, existing)
                return client, str(existing.experiment_id)
            location = None
            if database is not None:  # the default root would be relative to whoever reads it
                location = (database.resolve().parent / "mlartifacts").as_uri()
            tags = experiment_tags()
            return client, str(client.create_experiment(experiment, artifact_location=location, tags=tags))
    except (MlflowException, OSError) as error:
        raise SargnnError(
            f"The MLflow store cannot be used: {str(error).splitlines()[0][:160]}",
            given=uri,
            hint="give another store with tracking.uri=...",
        ) from error


def mark_experiment(client: MlflowClient, experiment: Any) -> None:
    """Give an experiment that is there already what its pages need; where that is refused they open as MLflow has them."""
    for key, value in experiment_tags().items():
        if experiment.tags.get(key) != value:
            with suppress(Exception):
                client.set_experiment_tag(experiment.experiment_id, key, value)


def find_runs_page(uri: str) -> str | None:
    """The part of the address behind the server's: the runs of the experiment that has the newest one. None where the store has
    no run of this package, or does not answer as it should.

    Experiments of this package that earlier versions made, or whose view was removed, are given theirs.
    """
    newest: tuple[int, str] | None = None
    try:
        client = make_client(absolute(uri))
        for experiment in client.search_experiments(max_results=_MOST_EXPERIMENTS):
            number = str(experiment.experiment_id)
            runs = client.search_runs([number], _OURS, max_results=1, order_by=["attributes.start_time DESC"])
            if not runs:
                continue
            mark_experiment(client, experiment)
            newest = max(newest or (0, ""), (runs[0].info.start_time, number))
    except Exception:  # whatever MLflow or its database has to say: its pages are there nonetheless
        return None
    return f"/#/experiments/{newest[1]}/runs?viewStateShareKey={VIEW_KEY}&workflowType=machine_learning" if newest else None


def experiment_tags() -> dict[str, str]:
    """What an experiment's pages need: its kind, or MLflow 3 asks for it, and the view."""
    view = base64.b64encode(zlib.compress(json.dumps(make_view()).encode())).decode()
    return {"mlflow.experimentKind": "custom_model_development", VIEW_TAG: f"deflate;{view}"}


def make_view() -> dict[str, Any]:
    """The runs table's columns, and charts that begin with loss, metric, epoch time and memory.

    Columns and charts of metrics that no run has are not shown.
    """
    names = [column_of(metric) for metric in METRICS]
    at_best = [f"test_{name}_at_best_val" for name in names]
    lines = ["loss", *(f"val_{name}" for name in names)]
    bars = ["epoch_s", "peak_mb", *at_best, "wait_s", "sent_mb", "resident_mb"]
    section = {"uuid": _SECTION, "name": "Model metrics", "display": True, "isReordered": True, "deleted": False}
    widths = {  # in pixels, as MLflow calls the columns, in their order; 1400 show those to ``world``
        "0": 73,
        "attributes.`Run Name`": 235,
        "runDateAndNestInfo": 135,
        **{f"metrics.`{name}`": 75 for name in lines},
        **{f"metrics.`{name}`": 85 for name in at_best},
        **{f"metrics.`{name}`": 75 for name in ("epoch_s", "peak_mb")},
        "tags.`model`": 60,
        "tags.`mode`": 115,
        "tags.`world`": 60,
        "attributes.`Dataset`": 175,
        "metrics.`wait_s`": 80,
        "metrics.`sent_mb`": 80,
        "metrics.`resident_mb`": 100,
        "tags.`kernel`": 90,
        "tags.`sweep`": 100,
        "duration": 80,
    }
    return {
        "selectedColumns": [column for column in widths if "`" in column],
        "columnOrder": list(widths),
        "columnWidths": widths,
        "compareRunCharts": [_chart("LINE", name) | _LINE for name in lines] + [_chart("BAR", name) for name in bars],
        "compareRunSections": [section | {"isGenerated": True}],
        "isAccordionReordered": True,  # sections that come later stand below
    }


def _chart(kind: str, metric: str) -> dict[str, Any]:
    return {
        "uuid": f"sargnn-{metric}",
        "type": kind,
        "metricKey": metric,
        "displayName": metric,
        "metricSectionId": _SECTION,
        "runsCountToCompare": 10,
        "deleted": False,
        "isGenerated": False,
    }


_LINE = {
    "lineSmoothness": 0,
    "xAxisKey": "step",
    "xAxisScaleType": "linear",
    "scaleType": "linear",
    "yAxisKey": "metric",
    "yAxisExpressions": [],
    "selectedXAxisMetricKey": "",
    "range": {},
    "ignoreOutliers": False,
    "useGlobalXaxisKey": True,
    "useGlobalLineSmoothing": True,
}
