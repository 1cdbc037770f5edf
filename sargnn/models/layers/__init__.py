"""Graph layers, one file for each kind of layer."""
