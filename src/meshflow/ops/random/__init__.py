"""`tf.random`: distributions, generators and seeds."""

from meshflow.core.variables.random_streams import set_seed
from meshflow.ops.random.from_keys import (
    count_counters,
    derive_key,
    draw_binomial,
    draw_bits,
    draw_normal,
    draw_truncated_normal,
    draw_uniform,
    draw_unit_uniform_on_host,
)
from meshflow.ops.random.stateful import *
from meshflow.ops.random.stateful import __all__ as _stateful
from meshflow.ops.random.stateless import *
from meshflow.ops.random.stateless import __all__ as _stateless
from meshflow.ops.random.truncated import stateless_parameterized_truncated_normal

__all__ = [*_stateful, *_stateless, "set_seed", "stateless_parameterized_truncated_normal"]
