"""Models: `Model`, `Functional`, `Sequential`, and summaries."""
