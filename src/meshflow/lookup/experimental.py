"""`tf.lookup.experimental`: tables that change."""

from meshflow.lookup.mutable import DenseHashTable, MutableHashTable

__all__ = ["DenseHashTable", "MutableHashTable"]
