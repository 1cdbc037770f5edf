"""Models: graph layers and the stack that joins them."""

MODELS = {
    "sage": "sargnn.models.layers.sage:build",
    "gat": "sargnn.models.layers.gat:build",
    "gcn": "sargnn.models.layers.gcn:build",
    "rgcn": "sargnn.models.layers.rgcn:build",
    "mlp": "sargnn.models.layers.mlp:build",
    "linear": "sargnn.models.layers.mlp:build",
    "label_propagation": "sargnn.models.layers.label_propagation:build",
}
