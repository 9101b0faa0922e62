"""Transformations of datasets: one class for each, derived from `Dataset`.

A transformation maps elements to elements, and where possible a stream of indices to a stream of
indices.
"""

from __future__ import annotations

from meshflow.data.transformations.base import ElementList, Rearrange, Unary, WithOptions
from meshflow.data.transformations.batching import Batch, PaddedBatch, Rebatch, SparseBatch, Unbatch
from meshflow.data.transformations.caching import AssertCardinality, Cache, IgnoreErrors, Prefetch
from meshflow.data.transformations.elementwise import (
    Enumerate,
    Filter,
    HostMap,
    Map,
    Scan,
    TakeWhile,
)
from meshflow.data.transformations.grouping import GroupByReducer, GroupByWindow, Unique, Window
from meshflow.data.transformations.joining import Choose, Concatenate, FlatMap, RandomChoice, Zip
from meshflow.data.transformations.order import (
    Repeat,
    ShardHint,
    Shuffle,
    Slice,
    shuffle_blocks,
    shuffle_items,
)

__all__ = [
    "AssertCardinality",
    "Batch",
    "Cache",
    "Choose",
    "Concatenate",
    "ElementList",
    "Enumerate",
    "Filter",
    "FlatMap",
    "GroupByReducer",
    "GroupByWindow",
    "HostMap",
    "IgnoreErrors",
    "Map",
    "PaddedBatch",
    "Prefetch",
    "RandomChoice",
    "Rearrange",
    "Rebatch",
    "Repeat",
    "Scan",
    "ShardHint",
    "Shuffle",
    "Slice",
    "SparseBatch",
    "TakeWhile",
    "Unary",
    "Unbatch",
    "Unique",
    "Window",
    "WithOptions",
    "Zip",
    "shuffle_blocks",
    "shuffle_items",
]
