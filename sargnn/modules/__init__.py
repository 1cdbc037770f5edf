"""The sharded graph as layers see it: a DGL graph's interface over the engine, for modules that were not written for it."""
