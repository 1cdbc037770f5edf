"""``dataset=tables``: a graph from folders of Parquet, CSV or Arrow files whose nodes have ids of their own.

A YAML file names the tables (``spec``); their files are read piece by piece (``table``), values become numbers (``columns``)
and ids node numbers (``ids``), on disk. What comes out are arrays, which ``sources.own`` takes like any others (``reader``).
"""
