"""`tf.data`: input pipelines.

A pipeline is a graph of datasets (`dataset`, `sources`, `transformations`). Every one can be
iterated element by element; where elements can be reached by number, a pipeline is a stream of
indices and a function that gathers many elements at once, so that a batch costs one gather and one
call of a vectorized function. Both ways give the same elements in the same order.
"""

from __future__ import annotations

from typing import Any

from meshflow.data import experimental
from meshflow.data.dataset import (
    AUTOTUNE,
    INFINITE_CARDINALITY,
    UNKNOWN_CARDINALITY,
    Dataset,
)
from meshflow.data.files import FixedLengthRecordDataset, TextLineDataset
from meshflow.data.options import Options, ThreadingOptions
from meshflow.data.running import OwnedIterator as Iterator
from meshflow.data.structure import DatasetSpec, NoneTensorSpec

__all__ = [
    "AUTOTUNE",
    "INFINITE_CARDINALITY",
    "UNKNOWN_CARDINALITY",
    "Dataset",
    "DatasetSpec",
    "FixedLengthRecordDataset",
    "Iterator",
    "NoneTensorSpec",
    "Options",
    "TextLineDataset",
    "ThreadingOptions",
    "experimental",
]


def __getattr__(name: str) -> Any:
    if name in ("TFRecordDataset", "TFRecordWriter"):
        from meshflow.core.errors import NotAvailableError

        raise NotAvailableError(
            f"tf.data.{name} is not available yet: use from_tensor_slices, from_generator or "
            "TextLineDataset."
        )
    raise AttributeError(f"module 'tf.data' has no attribute {name!r}")
