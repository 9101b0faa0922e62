"""The methods of `tf.data.Dataset` that make datasets."""

from __future__ import annotations

from typing import Generic

from meshflow.data.methods.constructors import DatasetT
from meshflow.data.methods.elementwise import Elementwise
from meshflow.data.methods.groups import Groups
from meshflow.data.methods.order import Order
from meshflow.data.methods.sources import Sources


class Transformations(
    Sources[DatasetT],
    Elementwise[DatasetT],
    Groups[DatasetT],
    Order[DatasetT],
    Generic[DatasetT],
):
    """What can be done with a dataset, and where datasets come from; a base class of `Dataset`."""
