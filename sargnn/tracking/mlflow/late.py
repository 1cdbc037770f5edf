"""Sending a run that is over."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from sargnn.config.run import load
from sargnn.errors import ConfigError, SargnnError
from sargnn.tracking.files import CONFIG, INPUTS
from sargnn.tracking.inputs import read_inputs
from sargnn.tracking.mlflow.run import MlflowRun
from sargnn.tracking.mlflow.store import known_stores
from sargnn.tracking.mlflow.target import target_of
from sargnn.tracking.summary import read_summary


def send_again(run_dir: Path, uri: str | None) -> tuple[str, str]:
    """Send a run that is over, once: to ``uri``, or where its configuration says. What was begun there is completed.

    Returns:
        The store and the run's id there.

    Raises:
        ConfigError: not a run folder, a run that is not over, or one that is there already.
        SargnnError: a damaged file of the run, named.
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
