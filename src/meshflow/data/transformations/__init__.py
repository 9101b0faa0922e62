"""Transformations, each a small class: elements in, elements out, and where possible indices in,
indices out.
"""

from __future__ import annotations

from meshflow.data.transformations.base import Arranged, Fixed, Unary, WithOptions
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
from meshflow.data.transformations.joining import Choose, Concatenate, Drawn, FlatMap, Zip
from meshflow.data.transformations.order import (
    Repeat,
    ShardHint,
    Shuffle,
    Slice,
    shuffled,
    shuffled_blocks,
)

__all__ = [
    "Arranged",
    "AssertCardinality",
    "Batch",
    "Cache",
    "Choose",
    "Concatenate",
    "Drawn",
    "Enumerate",
    "Filter",
    "Fixed",
    "FlatMap",
    "GroupByReducer",
    "GroupByWindow",
    "HostMap",
    "IgnoreErrors",
    "Map",
    "PaddedBatch",
    "Prefetch",
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
    "shuffled",
    "shuffled_blocks",
]
