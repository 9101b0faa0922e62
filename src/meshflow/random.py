"""`tf.random`."""

from meshflow.ops import generator as _generator
from meshflow.ops import random_experimental as _random_experimental
from meshflow.ops import random_ops as _random_ops
from meshflow.ops.generator import *  # noqa: F403
from meshflow.ops.nn.sampling import (  # noqa: F401
    all_candidate_sampler,
    fixed_unigram_candidate_sampler,
    log_uniform_candidate_sampler,
    uniform_candidate_sampler,
)
from meshflow.ops.random_ops import *  # noqa: F403

experimental = _random_experimental
fold_in, split = _random_ops.stateless_fold_in, _random_ops.stateless_split

_SAMPLERS = (
    *("all_candidate_sampler", "fixed_unigram_candidate_sampler"),
    *("log_uniform_candidate_sampler", "uniform_candidate_sampler"),
)

# Lets its namespaces be imported by their paths.
__path__: list[str] = []

__all__ = sorted(
    [*_SAMPLERS, *_generator.__all__, *_random_ops.__all__, "experimental", "fold_in", "split"]
)
