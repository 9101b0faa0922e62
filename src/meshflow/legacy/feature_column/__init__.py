"""`tf.feature_column`: conversion of structured data to the inputs of a model.

>>> age = tf.feature_column.numeric_column("age")
>>> ages = tf.feature_column.bucketized_column(age, [18, 65])
>>> layer = tf.keras.layers.DenseFeatures([age, ages])
>>> layer({"age": [[20.0], [70.0]]}).numpy()
array([[20.,  0.,  1.,  0.],
       [70.,  0.,  0.,  1.]], dtype=float32)
"""

from __future__ import annotations

from typing import Any

from meshflow.core.runtime.errors import NotAvailableError
from meshflow.legacy.feature_column.base import make_parse_example_spec
from meshflow.legacy.feature_column.categorical import (
    categorical_column_with_hash_bucket,
    categorical_column_with_identity,
    weighted_categorical_column,
)
from meshflow.legacy.feature_column.crosses import crossed_column
from meshflow.legacy.feature_column.embeddings import (
    embedding_column,
    indicator_column,
    shared_embeddings,
)
from meshflow.legacy.feature_column.numeric import bucketized_column, numeric_column
from meshflow.legacy.feature_column.vocabulary import (
    categorical_column_with_vocabulary_file,
    categorical_column_with_vocabulary_list,
)

__all__ = [
    "bucketized_column",
    "categorical_column_with_hash_bucket",
    "categorical_column_with_identity",
    "categorical_column_with_vocabulary_file",
    "categorical_column_with_vocabulary_list",
    "crossed_column",
    "embedding_column",
    "indicator_column",
    "make_parse_example_spec",
    "numeric_column",
    "shared_embeddings",
    "weighted_categorical_column",
]


def __getattr__(name: str) -> Any:
    if name.startswith("sequence_"):
        raise NotAvailableError(
            f"tf.feature_column.{name}: sequence columns are not available. Use "
            "tf.keras.layers.Embedding or TextVectorization on padded sequences."
        )
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
