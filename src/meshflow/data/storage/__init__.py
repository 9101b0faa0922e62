"""Elements in files: what caches, saved datasets and snapshots stand on."""
