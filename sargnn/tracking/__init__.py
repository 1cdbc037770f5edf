"""Tracking: memory, the run's files, live progress and MLflow."""
