"""`tf.lookup.experimental`: mutable hash tables."""

from meshflow.lookup.mutable_tables import DenseHashTable, MutableHashTable

__all__ = ["DenseHashTable", "MutableHashTable"]
