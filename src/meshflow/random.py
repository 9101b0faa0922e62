"""`tf.random`: random numbers, generators and candidate samplers."""

from meshflow.core.runtime.unavailable_names import explain_names as _explain_names
from meshflow.ops import random as _random
from meshflow.ops.nn.sampling import (  # noqa: F401
    all_candidate_sampler,
    fixed_unigram_candidate_sampler,
    log_uniform_candidate_sampler,
    uniform_candidate_sampler,
)
from meshflow.ops.random import *  # noqa: F403
from meshflow.ops.random import experimental  # noqa: F401
from meshflow.ops.random import generator as _generator
from meshflow.ops.random.generator import *  # noqa: F403

fold_in, split = _random.stateless_fold_in, _random.stateless_split

_SAMPLERS = (
    *("all_candidate_sampler", "fixed_unigram_candidate_sampler"),
    *("log_uniform_candidate_sampler", "uniform_candidate_sampler"),
)

# `__path__` makes the namespaces importable by their paths.
__path__: list[str] = []

__all__ = sorted(
    [*_SAMPLERS, *_generator.__all__, *_random.__all__, "experimental", "fold_in", "split"]
)

__getattr__ = _explain_names("tf.random")
