"""`tf.random.experimental`: earlier names of generators and of ops on seeds."""

from meshflow.ops.generator import (
    Algorithm,
    Generator,
    create_rng_state,
    get_global_generator,
    set_global_generator,
)
from meshflow.ops.random_ops import stateless_fold_in, stateless_shuffle, stateless_split

__all__ = [
    "Algorithm",
    "Generator",
    "create_rng_state",
    "get_global_generator",
    "set_global_generator",
    "stateless_fold_in",
    "stateless_shuffle",
    "stateless_split",
]
