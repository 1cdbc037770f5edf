"""A dataset looked over before training."""
