"""What can be set: a run's settings (``run``), which of them decide what (``decides``), those of verbs beside ``train``."""
