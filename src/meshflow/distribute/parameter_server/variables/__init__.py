"""variables."""
