"""Models: graph layers and the stack that joins them."""

MODELS = {
    "sage": "sargnn.models.sage:build",
    "gcn": "sargnn.models.gcn:build",
}
