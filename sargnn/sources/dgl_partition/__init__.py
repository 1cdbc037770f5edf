"""Partitions that DGL wrote."""
