"""Models: graph layers and the stack that joins them."""

MODELS = {
    "sage": "sargnn.models.sage:build",
    "gat": "sargnn.models.gat:build",
    "gcn": "sargnn.models.gcn:build",
    "rgcn": "sargnn.models.rgcn:build",
    "mlp": "sargnn.models.mlp:build",
    "linear": "sargnn.models.mlp:build",
    "label_propagation": "sargnn.models.label_propagation:build",
}
