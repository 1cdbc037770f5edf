"""Communication: the process group, the row exchange and the few collectives."""
