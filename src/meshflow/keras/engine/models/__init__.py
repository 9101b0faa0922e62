"""Models: `Model`, functional and sequential ones, summaries."""
