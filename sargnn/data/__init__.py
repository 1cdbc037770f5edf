"""Datasets: what they hold, how they are made or read, and the store that keeps them."""

READERS = {
    "synthetic": "sargnn.data.synthetic:Synthetic",
    "products_like": "sargnn.data.lookalike:Lookalike",
    "papers_like": "sargnn.data.lookalike:Lookalike",
    "mag_like": "sargnn.data.mag_like:MagLike",
    "ogb_dir": "sargnn.data.ogb:ogb_dir",
}
