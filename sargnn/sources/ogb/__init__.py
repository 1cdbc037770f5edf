"""OGB's raw layouts: which files, read piece by piece, fetched, written."""
