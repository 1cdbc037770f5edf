"""Which of MLflow's pages ``sargnn ui`` opens."""

from __future__ import annotations

from sargnn.tracking.mlflow.store import absolute, make_client, mark_experiment
from sargnn.tracking.mlflow.view import runs_address

_MOST = 1000
_OURS = "tags.config_hash != ''"


def find_runs_page(uri: str) -> str | None:
    """The part of the address behind the server's: the runs of the experiment that has the newest one.

    Experiments of this package that earlier versions made, or whose view was removed, are given theirs.

    Returns:
        None where the store holds no run of this package, or does not answer as it should.
    """
    newest: tuple[int, str] | None = None
    try:
        client = make_client(absolute(uri))
        for experiment in client.search_experiments(max_results=_MOST):
            number = str(experiment.experiment_id)
            runs = client.search_runs([number], _OURS, max_results=1, order_by=["attributes.start_time DESC"])
            if not runs:
                continue
            mark_experiment(client, experiment)
            newest = max(newest or (0, ""), (runs[0].info.start_time, number))
    except Exception:  # whatever MLflow or its database has to say: its pages are there nonetheless
        return None
    return runs_address(newest[1]) if newest else None
