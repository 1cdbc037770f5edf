"""Stock DGL in one process: what a user has without this project, measured as a worker is."""

STOCK = {
    "sage": "sargnn.bench.stock.homogeneous:StockSage",
    "gat": "sargnn.bench.stock.homogeneous:StockGat",
    "rgcn": "sargnn.bench.stock.typed:StockRgcn",
    "custom": "sargnn.bench.stock.homogeneous:StockCustom",
}
"""Models that stock DGL is measured with."""
SAMPLED = {"sage": "sargnn.bench.stock.sampled:StockSampledSage"}
"""Those that it is measured with where steps or neighbours are drawn."""
