"""A trained model as a file of plain PyTorch with PyG's layers, and its parameters as safetensors (``sargnn export``)."""
