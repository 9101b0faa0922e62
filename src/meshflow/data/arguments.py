"""Constants of the `tf.data` API, and checks of the arguments of its methods."""

from __future__ import annotations

import operator
from typing import SupportsIndex, TypeAlias

from meshflow.core.runtime.errors import InvalidValueError
from meshflow.core.values.tensor import Tensor
from meshflow.environment.cpu_info import count_processors

AUTOTUNE = -1
INFINITE_CARDINALITY = -1
UNKNOWN_CARDINALITY = -2
# In `shard`, this value is replaced by the number of workers (`num_shards`) or a worker's index (`index`).
SHARD_HINT = -1

# An integer argument: a Python or NumPy integer, or a scalar tensor with a known value.
IntLike: TypeAlias = SupportsIndex | Tensor


def to_int(value: IntLike, name: str) -> int:
    """Convert an argument to a Python integer.

    Args:
      value: Integer or scalar integer tensor.
      name: Name of the argument, for errors.

    Raises:
      InvalidArgumentError: If the value is not an integer; it is a `TypeError` and a `ValueError`, too.
    """
    if isinstance(value, Tensor):
        value = value.require_value(f"`{name}` of a dataset")[()]
    try:
        return operator.index(value)
    except TypeError:
        raise InvalidValueError(f"{name} must be an integer, got {value!r}.") from None


def parse_parallel_calls(num_parallel_calls: IntLike) -> int:
    """Return the number of calls that may run in parallel, AUTOTUNE (-1) if the library chooses it.

    Raises:
      InvalidArgumentError: If the value is neither AUTOTUNE nor greater than zero.
    """
    count = to_int(num_parallel_calls, "num_parallel_calls")
    if count < 1 and count != AUTOTUNE:
        raise InvalidValueError(f"num_parallel_calls must be greater than zero, got {count}.")
    return count


def choose_cycle_length(parallel_calls: int | None) -> int:
    """Return the number of datasets that are interleaved by default, as TensorFlow derives it from the processors of this process.

    Args:
      parallel_calls: Number of parallel calls or AUTOTUNE; None for calls one after another.
    """
    processors = count_processors()
    if parallel_calls is None:
        return processors
    return -(-processors // 3) if parallel_calls == AUTOTUNE else min(parallel_calls, processors)
