"""MLflow: where runs go, what they are called there, which figures they have, how its pages open."""
