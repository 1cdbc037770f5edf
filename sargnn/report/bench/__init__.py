"""Benchmarks: pairs measured in turn in one run, against what a user has without this project."""
