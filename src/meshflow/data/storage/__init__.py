"""Files of elements, used by caches, saved datasets and snapshots."""
