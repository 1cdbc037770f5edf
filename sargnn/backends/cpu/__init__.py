"""Operations as loops that Numba compiles for a CPU."""
