"""What ``mlflow server --app-name sargnn`` serves: MLflow's own application, with ``FirstVisit`` before it."""

from __future__ import annotations

from mlflow.server.fastapi_app import app as mlflow_app

from sargnn.tracking.mlflow.first_visit import FirstVisit

app = FirstVisit(mlflow_app)
