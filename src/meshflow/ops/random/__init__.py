"""`tf.random`: distributions, generators and seeds."""

from meshflow.core.variables.random import set_seed
from meshflow.ops.random.from_keys import (
    binomial_from_key,
    bits_from_key,
    counts_of,
    normal_from_key,
    seed_key,
    share_on_host,
    truncated_normal_from_key,
    uniform_from_key,
)
from meshflow.ops.random.stateful import *
from meshflow.ops.random.stateful import __all__ as _stateful
from meshflow.ops.random.stateless import *
from meshflow.ops.random.stateless import __all__ as _stateless

__all__ = [*_stateful, *_stateless, "set_seed"]
