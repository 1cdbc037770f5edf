"""Models: for each its settings; graph layers and the stack that joins them."""

MODELS = {
    "sage": "sargnn.models.sage:Sage",
    "gat": "sargnn.models.gat:Gat",
    "gcn": "sargnn.models.gcn:Gcn",
    "gin": "sargnn.models.gin:Gin",
    "sgc": "sargnn.models.sgc:Sgc",
    "appnp": "sargnn.models.appnp:Appnp",
    "gcnii": "sargnn.models.gcnii:Gcnii",
    "resgcn": "sargnn.models.resgcn:ResGcn",
    "rgcn": "sargnn.models.rgcn:Rgcn",
    "mlp": "sargnn.models.mlp:Mlp",
    "linear": "sargnn.models.mlp:Mlp",
    "label_propagation": "sargnn.models.label_propagation:LabelPropagation",
    "custom": "sargnn.models.custom:Custom",
}
"""Name -> settings class, a ``sargnn.config.run.ModelSettings``."""
