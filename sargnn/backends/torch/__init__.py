"""Plain PyTorch, the reference, and DGL's operators, the baseline."""
