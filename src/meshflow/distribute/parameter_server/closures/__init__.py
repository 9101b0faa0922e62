"""Pickling of closures, and values that they exchange with the coordinator."""
