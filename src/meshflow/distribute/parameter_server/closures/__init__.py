"""closures."""
