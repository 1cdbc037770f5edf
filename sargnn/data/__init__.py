"""Datasets: what they hold, how they are made or read, and the store that keeps them."""

READERS = {
    "synthetic": "sargnn.data.synthetic:Synthetic",
    "ogb_dir": "sargnn.data.ogb:OgbDir",
}
