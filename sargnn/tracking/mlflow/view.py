"""How MLflow's pages open on an experiment: a saved view of the runs table and the charts.

MLflow keeps such a view as a tag of the experiment, ``mlflow.sharedViewState.KEY``, and opens it by its key in the address. The
value is JSON, deflated and in base64. A version of MLflow that knows no such views ignores the tag.
"""

from __future__ import annotations

import base64
import json
import zlib
from typing import Any

from sargnn.tasks.kinds import METRICS
from sargnn.tracking.scores import column_of

VIEW_KEY = "sargnn"
VIEW_TAG = f"mlflow.sharedViewState.{VIEW_KEY}"
_HEADER = "deflate;"
_SECTION = "sargnn-figures"


def experiment_tags() -> dict[str, str]:
    """What an experiment's pages need: its kind, or MLflow 3 asks for it, and the view."""
    view = base64.b64encode(zlib.compress(json.dumps(make_view()).encode())).decode()
    return {"mlflow.experimentKind": "custom_model_development", VIEW_TAG: _HEADER + view}


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
