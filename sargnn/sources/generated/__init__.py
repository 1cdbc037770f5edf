"""Graphs that are drawn: the embedded one, and stand-ins for the real ones."""
