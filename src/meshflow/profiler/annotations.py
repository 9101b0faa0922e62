"""User annotations of a program, shown in profiles."""

from __future__ import annotations

from types import TracebackType
from typing import Any

import jax


class Trace:
    """Annotates a `with` block in the profile that is being recorded.

    With `step_num` and `_r=1` the block is a training step; the time in a profile is broken down by
    steps. Put `next(iterator)` inside, so that time spent waiting for input is included. Without a
    profile it takes less than a microsecond. In a traced function it annotates the tracing, which
    happens once.

    Args:
      name: Name of the annotation.
      **kwargs: Numbers and strings that are shown with it.

    Example:
      >>> for step in range(2):
      ...     with tf.profiler.experimental.Trace("train", step_num=step, _r=1):
      ...         total = tf.reduce_sum(tf.ones([2, 2]))
      >>> float(total)
      4.0
    """

    def __init__(self, name: str, **kwargs: Any) -> None:
        self._annotation = jax.profiler.TraceAnnotation(name, **kwargs)

    def __enter__(self) -> Trace:
        self._annotation.__enter__()
        return self

    def set_metadata(self, **kwargs: Any) -> None:
        """Add numbers and strings that are known only inside the block."""
        self._annotation.set_metadata(**kwargs)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._annotation.__exit__(kind, error, traceback)
