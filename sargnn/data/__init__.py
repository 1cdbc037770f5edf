"""Datasets: what they hold, how they are made or read, and the store that keeps them."""

READERS = {
    "synthetic": "sargnn.data.synthetic:Synthetic",
    "products_like": "sargnn.data.lookalike:Lookalike",
    "papers_like": "sargnn.data.lookalike:Lookalike",
    "mag_like": "sargnn.data.mag_like:MagLike",
    "ogb_dir": "sargnn.data.ogb:ogb_dir",
    "ogbn-products": "sargnn.data.ogb_named:ogb_named",
    "ogbn-arxiv": "sargnn.data.ogb_named:ogb_named",
    "ogbn-papers100M": "sargnn.data.ogb_named:ogb_named",
    "ogbn-mag": "sargnn.data.ogb_named:ogb_named",
}
