"""Variables that parameter servers host, and their shards."""
