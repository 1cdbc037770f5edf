"""The papers' figures, drawn again from runs of one's own: ``sargnn reproduce``."""
