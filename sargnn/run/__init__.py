"""Launching: local worker processes, and what a worker does."""
