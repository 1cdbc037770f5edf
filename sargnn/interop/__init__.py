"""Other libraries, made importable: the only place in the package that imports dgl."""
