"""Models in files: what is written and read of one, and the functions of `Model` that do."""
