"""Operations as DGL runs them."""
