"""Models, a file for each family: layers and what builds them. Their settings are in ``sargnn.config.models``."""

MODELS = {
    "sage": "sargnn.config.models:SageSettings",
    "gat": "sargnn.config.models:GatSettings",
    "gcn": "sargnn.config.models:GcnSettings",
    "gin": "sargnn.config.models:GinSettings",
    "sgc": "sargnn.config.models:SgcSettings",
    "appnp": "sargnn.config.models:AppnpSettings",
    "gcnii": "sargnn.config.models:GcniiSettings",
    "resgcn": "sargnn.config.models:ResGcnSettings",
    "rgcn": "sargnn.config.models:RgcnSettings",
    "rgat": "sargnn.config.models:RgatSettings",
    "mlp": "sargnn.config.models:MlpSettings",
    "linear": "sargnn.config.models:MlpSettings",
    "none": "sargnn.config.models:RowsSettings",
    "label_propagation": "sargnn.config.models:LabelPropagationSettings",
    "custom": "sargnn.config.models:CustomSettings",
}
"""Name -> settings class, a ``sargnn.config.run.ModelSettings``, whose ``build`` makes the model."""
