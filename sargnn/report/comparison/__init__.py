"""Runs side by side: read, grouped, tabled, drawn."""
