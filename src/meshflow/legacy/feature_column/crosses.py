"""Categorical columns of combinations of categories (feature crosses)."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence

import numpy as np

from meshflow.core.dispatch.composite import SparseTensor
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.dtypes import string
from meshflow.io.features import VarLenFeature
from meshflow.legacy.feature_column.base import (
    CategoricalColumn,
    CategoryIds,
    FeatureBatch,
    ParseSpec,
)
from meshflow.legacy.feature_column.categorical import HashedCategoricalColumn
from meshflow.ops import hashing


@dataclasses.dataclass(frozen=True)
class CrossedColumn(CategoricalColumn):
    """Hashed combinations of categories; created by `crossed_column`."""

    keys: tuple[str | CategoricalColumn, ...]
    hash_bucket_size: int
    hash_key: int | None

    @property
    def name(self) -> str:
        """The sorted names of the crossed features and columns."""
        return "_X_".join(sorted(p if isinstance(p, str) else p.name for p in self._flatten_keys()))

    @property
    def parse_example_spec(self) -> ParseSpec:
        """The features of the crossed columns; crossed keys are string features."""
        spec: ParseSpec = {}
        for part in self.keys:
            spec |= (
                {part: VarLenFeature(string)} if isinstance(part, str) else part.parse_example_spec
            )
        return spec

    @property
    def num_buckets(self) -> int:
        """Number of categories."""
        return self.hash_bucket_size

    @property
    def needs_host(self) -> bool:
        """True, because combinations are hashed on the host."""
        return True

    def _flatten_keys(self) -> list[str | CategoricalColumn]:
        """Return the crossed keys and columns, with nested crosses flattened."""
        return [
            leaf
            for part in self.keys
            for leaf in (part._flatten_keys() if isinstance(part, CrossedColumn) else [part])
        ]

    def compute_ids(self, features: FeatureBatch) -> CategoryIds:
        """Hash all combinations of the values of each row."""
        # TensorFlow crosses sparse values before dense ones.
        parts = sorted(
            self._flatten_keys(), key=lambda part: not _has_sparse_values(features, part)
        )
        columns = [_compute_fingerprints(features, part) for part in parts]
        start = hashing.DEFAULT_CROSS_KEY if self.hash_key is None else self.hash_key
        rows = [
            [
                hashing.cross_fingerprints_from(start, prints) % self.hash_bucket_size
                for prints in itertools.product(*values)
            ]
            for values in zip(*columns, strict=True)
        ]
        table = np.full((len(rows), max([1, *map(len, rows)])), -1, np.int64)
        for row, ids in zip(table, rows, strict=True):
            row[: len(ids)] = ids
        return CategoryIds(convert_to_tensor(table))


def _has_sparse_values(features: FeatureBatch, part: str | CategoricalColumn) -> bool:
    return not isinstance(part, str) or isinstance(features.get_feature(part), SparseTensor)


def _compute_fingerprints(features: FeatureBatch, part: str | CategoricalColumn) -> list[list[int]]:
    """Compute a 64-bit integer for each value of each row."""
    sparse = _has_sparse_values(features, part)
    tensor = features.get_categories(part) if isinstance(part, str) else features.get_ids(part).ids
    values = tensor.require_value("values to be crossed")
    if values.dtype == object:
        return [
            [hashing.fingerprint_word(v) for v in row if v or not sparse] for row in values.tolist()
        ]
    return [
        [v & 0xFFFFFFFFFFFFFFFF for v in row if v != -1 or not sparse] for row in values.tolist()
    ]


def crossed_column(
    keys: Sequence[str | CategoricalColumn], hash_bucket_size: int, hash_key: int | None = None
) -> CrossedColumn:
    """Create a column of combinations of categories, hashed to category ids.

    Args:
      keys: Two or more keys of features, or categorical columns that are not hashed.
      hash_bucket_size: Number of categories.
      hash_key: Key of the hash; default TensorFlow's.

    Raises:
      ValueError: If `hash_bucket_size` is not positive, or there are fewer than two keys or
        unsupported ones.

    Example:
      >>> pair = tf.feature_column.crossed_column(["make", "colour"], hash_bucket_size=4)
      >>> layer = tf.keras.layers.DenseFeatures([tf.feature_column.indicator_column(pair)])
      >>> layer({"make": ["a"], "colour": ["red"]}).shape
      TensorShape([1, 4])
    """
    if not hash_bucket_size or hash_bucket_size < 1:
        raise ValueError(f"hash_bucket_size must be > 1. hash_bucket_size: {hash_bucket_size}")
    if not keys or len(keys) < 2:
        raise ValueError(f"keys must be a list with length > 1. Given: {keys}")
    for key in keys:
        if not isinstance(key, (str, CategoricalColumn)):
            raise ValueError(
                f"Unsupported key type. All keys must be either string, or categorical column except HashedCategoricalColumn. Given: {key}"
            )
        if isinstance(key, HashedCategoricalColumn):
            raise ValueError(
                "categorical_column_with_hash_bucket is not supported for crossing. Hashing before crossing will "
                f"increase probability of collision. Instead, use the feature name as a string. Given: {key}"
            )
    return CrossedColumn(tuple(keys), hash_bucket_size, hash_key)
