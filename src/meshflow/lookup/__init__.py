"""`tf.lookup`: hash tables."""

from meshflow.core.runtime.tracebacks import hide_frames_of_functions as _hide_frames
from meshflow.lookup import experimental
from meshflow.lookup.initializers import (
    KeyValueTensorInitializer,
    TextFileIndex,
    TextFileInitializer,
)
from meshflow.lookup.static_tables import StaticHashTable, StaticVocabularyTable

__all__ = [
    "KeyValueTensorInitializer",
    "StaticHashTable",
    "StaticVocabularyTable",
    "TextFileIndex",
    "TextFileInitializer",
    "experimental",
]

_hide_frames(globals())
