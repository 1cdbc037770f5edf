"""Operations of a CPU, by the native library."""
