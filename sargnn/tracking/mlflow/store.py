"""MLflow's store: its address, opening it, and what a run folder remembers of the stores that it was sent to.

The store is created once, under a file lock: two first runs that create an sqlite store at the same moment would corrupt it.
MLflow itself is imported lazily, because that takes seconds; workers never do.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sargnn.errors import SargnnError
from sargnn.tracking.files import MLFLOW, read_json, write_json
from sargnn.tracking.locks import file_lock
from sargnn.tracking.mlflow.view import experiment_tags

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient


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
    """Remember where a run is, and whether all of it was sent there."""
    write_json(run_dir / MLFLOW, {"stores": known_stores(run_dir) | {uri: {"run_id": run_id, "sent": sent}}})


def is_known(run_dir: Path, uri: str) -> bool:
    """Whether a run was sent, or begun to be sent, to the store."""
    return absolute(uri) in known_stores(run_dir)


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
        with _locked(uri):
            client = make_client(uri)
            existing = client.get_experiment_by_name(experiment)
            if existing is not None:
                mark_experiment(client, existing)
                return client, str(existing.experiment_id)
            location = None
            if database := database_of(uri):  # the default root would be relative to whoever reads it
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


@contextmanager
def _locked(uri: str) -> Iterator[None]:
    """One process at a time creates an sqlite store."""
    database = database_of(uri)
    if database is None:
        yield
        return
    with file_lock(database.with_name(f".{database.name}.lock")):
        yield
