"""How a pipeline runs, in words."""

from __future__ import annotations

from collections.abc import Iterator

from meshflow.data import transformations
from meshflow.data.dataset import Dataset
from meshflow.data.epoch import Epoch


def explain(dataset: Dataset) -> str:
    """How a pipeline runs: each transformation, by indices and at once, by many elements at a time, or
    by single elements, and why.

    After a pass, also where time went: how many elements each transformation gave in all passes so
    far, and how long it took for them, without the transformations before it. Behind a `prefetch`
    that is how long somebody waited.

    Args:
      dataset: the pipeline.

    Returns:
      A text of one line per transformation, the source last.

    Example:
      >>> import meshflow as tf
      >>> print(tf.data.experimental.explain(tf.data.Dataset.range(9).map(lambda x: x + 1).batch(3)))
      Batch: gathers whole batches
        Map: vectorized
          Range: by indices
    """
    return "\n".join(_lines(dataset, 0))


def _lines(node: Dataset, depth: int) -> Iterator[str]:
    vector = node._vector(Epoch(node))
    if isinstance(node, transformations.Batch) and node._parent._vector(Epoch(node)) is not None:
        how = "gathers whole batches"
    elif vector is None and node._in_chunks(Epoch(node)) is not None:
        reason = node._why_not_vectorized()
        how = "many elements at a time"
        how += "" if reason == Dataset._why_not_vectorized(node) else f", as {reason}"
    elif vector is None:
        how = f"by elements, as {node._why_not_vectorized()}"
    elif isinstance(node, transformations.Map):
        how = "vectorized"
    else:
        how = "by indices"
    yield f"{'  ' * depth}{type(node).__name__}: {how}{_time(node)}"
    for parent in node._parents:
        yield from _lines(parent, depth + 1)


def _time(node: Dataset) -> str:
    """What a transformation spent."""
    stopwatch = node._stopwatch
    if not stopwatch.elements:
        return ""
    before = 0.0 if node._apart else sum(p._stopwatch.seconds for p in node._parents)
    verb = "waited " if node._apart else ""
    return f"; {stopwatch.elements:,} elements, {verb}{max(stopwatch.seconds - before, 0):.3f} s"
