"""Datasets of the years before OGB, from the files in which they are passed on: Planetoid's citation graphs, and Reddit."""
