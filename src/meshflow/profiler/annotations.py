"""Names for what a program does, which profiles show."""

from __future__ import annotations

from types import TracebackType
from typing import Any

import jax

__all__ = ["Trace"]


class Trace:
    """Names what happens inside a `with` block in the profile that is being taken.

    With `step_num` and `_r=1` the block counts as a training step, by which profiles divide the time;
    `next(iterator)` belongs inside, so that waiting for input is seen. Without a profile it costs
    less than a microsecond. In a traced function it names the tracing, which happens once.

    Args:
      name: the name.
      **kwargs: numbers and texts that are shown with it.

    Example:
      >>> import meshflow as tf
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
        """Adds numbers and texts that are only known inside the block."""
        self._annotation.set_metadata(**kwargs)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._annotation.__exit__(kind, error, traceback)
