"""Stock DGL in one process: what a user has without this project, measured as a worker is."""

STOCK = {
    "sage": "sargnn.report.bench.stock.homogeneous:StockSage",
    "gat": "sargnn.report.bench.stock.homogeneous:StockGat",
    "rgcn": "sargnn.report.bench.stock.typed:StockRgcn",
    "custom": "sargnn.report.bench.stock.homogeneous:StockCustom",
}
"""Models that stock DGL is measured with."""
SAMPLED = {"sage": "sargnn.report.bench.stock.homogeneous:StockSampledSage"}
"""Those that it is measured with where steps or neighbours are drawn."""
