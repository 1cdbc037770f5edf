"""Stock DGL and stock PyG in one process: what a user has without this project, measured as a worker is."""

STOCK = {
    "sage": "sargnn.report.bench.stock.homogeneous:StockSage",
    "gat": "sargnn.report.bench.stock.homogeneous:StockGat",
    "rgcn": "sargnn.report.bench.stock.typed:StockRgcn",
    "custom": "sargnn.report.bench.stock.homogeneous:StockCustom",
}
"""Models that stock DGL is measured with."""
SAMPLED = {"sage": "sargnn.report.bench.stock.homogeneous:StockSampledSage"}
"""Those that it is measured with where steps or neighbours are drawn."""
PYG = {
    "sage": "sargnn.report.bench.stock.pyg:PygSage",
    "gat": "sargnn.report.bench.stock.pyg:PygGat",
    "rgcn": "sargnn.report.bench.stock.pyg:PygRgcn",
}
"""Models that stock PyG is measured with."""
FREE_OF_LINKS = ("embedding_dim", "temperature", "margin", "mlp_hidden", "rank")
"""Settings of ``links`` that stock networks have, too, or that do not matter to them."""
FORMS = {"edge_index": "edge index", "csr": "CSR"}
"""What stock PyG is given as the graph -> what a row calls it: an edge index [2, E] sorted by destination, or a CSR matrix of
``torch.sparse`` with a row for each destination."""
