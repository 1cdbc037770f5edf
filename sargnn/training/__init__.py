"""Training: the loop, the loss, evaluation and the optimizer."""
