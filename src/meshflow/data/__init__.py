"""`tf.data`: input pipelines.

A pipeline is a graph of datasets: sources (`sources`, `readers`) and transformations
(`transformations`), all nodes (`node`) that produce elements in the same order in up to three
forms. If elements can be accessed by index, a pipeline is a stream of indices and a function that
gathers many elements at once, so that a batch costs one gather and one call of a vectorized
function. Otherwise elements are produced in chunks, or one at a time.
"""

from __future__ import annotations

from meshflow.data import experimental, resampling, saving, snapshots, sources, transformations
from meshflow.data.arguments import AUTOTUNE, INFINITE_CARDINALITY, UNKNOWN_CARDINALITY
from meshflow.data.dataset import Dataset, NumpyIterator
from meshflow.data.epoch import DatasetIterator as Iterator
from meshflow.data.methods import constructors
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
    "NumpyIterator",
    "Options",
    "TFRecordDataset",
    "TextLineDataset",
    "ThreadingOptions",
    "experimental",
]

# The methods of datasets construct the classes of these modules, which import `Dataset`.
constructors.register(transformations, sources, resampling, saving, snapshots)
