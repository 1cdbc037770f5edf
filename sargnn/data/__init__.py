"""Datasets: what they hold, how they are made or read, and the store that keeps them."""

DATASETS = {
    "synthetic": "sargnn.data.settings:SyntheticConfig",
    "products_like": "sargnn.data.settings:LookalikeConfig",
    "papers_like": "sargnn.data.settings:LookalikeConfig",
    "mag_like": "sargnn.data.settings:MagLikeConfig",
    "arrays": "sargnn.data.settings:ArraysConfig",
    "python": "sargnn.data.settings:PythonConfig",
    "stored": "sargnn.data.settings:StoredConfig",
    "ogb_dir": "sargnn.data.settings:OgbDirConfig",
    "ogbn-products": "sargnn.data.settings:OgbConfig",
    "ogbn-arxiv": "sargnn.data.settings:OgbConfig",
    "ogbn-papers100M": "sargnn.data.settings:OgbConfig",
    "ogbn-mag": "sargnn.data.settings:OgbConfig",
    "cora": "sargnn.data.settings:PlanetoidConfig",
    "citeseer": "sargnn.data.settings:PlanetoidConfig",
    "pubmed": "sargnn.data.settings:PlanetoidConfig",
    "reddit": "sargnn.data.settings:RedditConfig",
}
"""Name -> settings class, a ``sargnn.config.run.DatasetSettings``."""
