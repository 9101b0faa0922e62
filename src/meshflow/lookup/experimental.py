"""`tf.lookup.experimental`: mutable hash tables."""

from meshflow.lookup.mutable import DenseHashTable, MutableHashTable

__all__ = ["DenseHashTable", "MutableHashTable"]
