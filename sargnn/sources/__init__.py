"""Datasets: what they hold, how they are made or read, and the store that keeps them."""

DATASETS = {
    "synthetic": "sargnn.sources.settings:SyntheticConfig",
    "products_like": "sargnn.sources.settings:LookalikeConfig",
    "papers_like": "sargnn.sources.settings:LookalikeConfig",
    "mag_like": "sargnn.sources.settings:MagLikeConfig",
    "proteins_like": "sargnn.sources.settings:ProteinsLikeConfig",
    "arrays": "sargnn.sources.settings:ArraysConfig",
    "tables": "sargnn.sources.settings:TablesConfig",
    "triples": "sargnn.sources.settings:TriplesConfig",
    "python": "sargnn.sources.settings:PythonConfig",
    "stored": "sargnn.sources.settings:StoredConfig",
    "ogb_dir": "sargnn.sources.settings:OgbDirConfig",
    "ogbn-products": "sargnn.sources.settings:OgbConfig",
    "ogbn-arxiv": "sargnn.sources.settings:OgbConfig",
    "ogbn-papers100M": "sargnn.sources.settings:OgbConfig",
    "ogbn-proteins": "sargnn.sources.settings:OgbConfig",
    "ogbn-mag": "sargnn.sources.settings:OgbConfig",
    "ogbl-collab": "sargnn.sources.settings:OgbConfig",
    "ogbl-ppa": "sargnn.sources.settings:OgbConfig",
    "ogbl-citation2": "sargnn.sources.settings:OgbConfig",
    "ogbl-ddi": "sargnn.sources.settings:OgbConfig",
    "cora": "sargnn.sources.settings:PlanetoidConfig",
    "citeseer": "sargnn.sources.settings:PlanetoidConfig",
    "pubmed": "sargnn.sources.settings:PlanetoidConfig",
    "reddit": "sargnn.sources.settings:RedditConfig",
}
"""Name -> settings class, a ``sargnn.config.run.DatasetSettings``."""
