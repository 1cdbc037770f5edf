"""Operations in plain PyTorch: the oracle."""
