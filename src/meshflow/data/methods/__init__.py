"""The methods of `tf.data.Dataset` that make datasets."""

from __future__ import annotations

from meshflow.data.methods.elementwise import Elementwise
from meshflow.data.methods.groups import Groups
from meshflow.data.methods.order import Order
from meshflow.data.methods.sources import Making


class Transformations(Making, Elementwise, Groups, Order):
    """What can be done with a dataset, and where datasets come from; a base class of `Dataset`."""
