"""`tf.random.experimental`: earlier names of generators and stateless ops."""

from meshflow.core.runtime.unavailable_names import explain_names as _explain_names
from meshflow.ops.random import stateless_fold_in, stateless_shuffle, stateless_split
from meshflow.ops.random.generator import (
    Algorithm,
    Generator,
    create_rng_state,
    get_global_generator,
    set_global_generator,
)
from meshflow.ops.random.index_shuffle import index_shuffle

__all__ = [
    "Algorithm",
    "Generator",
    "create_rng_state",
    "get_global_generator",
    "index_shuffle",
    "set_global_generator",
    "stateless_fold_in",
    "stateless_shuffle",
    "stateless_split",
]

__getattr__ = _explain_names("tf.random.experimental")
