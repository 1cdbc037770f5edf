"""Datasets: what they hold, how they are made or read, and the store that keeps them."""

READERS = {
    "synthetic": "sargnn.data.synthetic:Synthetic",
    "products_like": "sargnn.data.lookalike:Lookalike",
    "papers_like": "sargnn.data.lookalike:Lookalike",
    "ogb_dir": "sargnn.data.ogb:OgbDir",
}
