"""Shards and layer plans: what one worker computes with in one layer."""
