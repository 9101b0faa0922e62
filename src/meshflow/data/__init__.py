"""`tf.data`: input pipelines.

A pipeline is a graph of datasets (`dataset`, `sources`, `transformations`). Every one can be
iterated element by element; where elements can be reached by number, a pipeline is a stream of
indices and a function that gathers many elements at once, so that a batch costs one gather and one
call of a vectorized function. Both ways give the same elements in the same order.
"""

from __future__ import annotations

from meshflow.data import experimental, resampling, saving, snapshots, sources, transformations
from meshflow.data.arguments import AUTOTUNE, INFINITE_CARDINALITY, UNKNOWN_CARDINALITY
from meshflow.data.dataset import Dataset
from meshflow.data.epoch import OwnedIterator as Iterator
from meshflow.data.methods.constructors import make
from meshflow.data.options import Options, ThreadingOptions
from meshflow.data.readers.records import FixedLengthRecordDataset, TextLineDataset, TFRecordDataset
from meshflow.data.specs import DatasetSpec, IteratorSpec
from meshflow.data.structure import NoneTensorSpec

__all__ = [
    "AUTOTUNE",
    "INFINITE_CARDINALITY",
    "UNKNOWN_CARDINALITY",
    "Dataset",
    "DatasetSpec",
    "FixedLengthRecordDataset",
    "Iterator",
    "IteratorSpec",
    "NoneTensorSpec",
    "Options",
    "TFRecordDataset",
    "TextLineDataset",
    "ThreadingOptions",
    "experimental",
]

# What the methods of datasets make.
make.register(transformations, sources, resampling, saving, snapshots)
