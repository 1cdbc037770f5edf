"""What runs say, side by side: comparisons, the papers' figures, benchmarks."""
