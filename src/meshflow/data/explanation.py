"""A textual explanation of how a pipeline is executed."""

from __future__ import annotations

from collections.abc import Iterator

from meshflow.data import transformations
from meshflow.data.dataset import Dataset
from meshflow.data.epoch import Epoch
from meshflow.data.node import DatasetNode


def explain(dataset: Dataset) -> str:
    """Describe how each transformation of a pipeline produces its elements, and why.

    A transformation produces elements by index (vectorized), many elements at a time (in chunks),
    or one at a time. After a pass, the text also contains the number of elements that each
    transformation produced in all passes so far, and the time that it took for them, without the
    time of its inputs. For a `prefetch`, it is the time that the consumer waited.

    Args:
      dataset: The pipeline.

    Returns:
      One line per transformation; the source is the last one.

    Example:
      >>> print(tf.data.experimental.explain(tf.data.Dataset.range(9).map(lambda x: x + 1).batch(3)))
      Batch: gathers complete batches
        Map: vectorized
          Range: by indices
    """
    return "\n".join(_format_lines(dataset, 0))


def _format_lines(node: DatasetNode, depth: int) -> Iterator[str]:
    stream = node.vectorize(Epoch(node))
    if isinstance(node, transformations.Batch) and node.parent.vectorize(Epoch(node)) is not None:
        form = "gathers complete batches"
    elif stream is None and node.iter_chunks(Epoch(node)) is not None:
        form = _add_reason("many elements at a time", node)
    elif stream is None:
        form = _add_reason("one element at a time", node)
    elif isinstance(node, transformations.Map):
        form = "vectorized"
    else:
        form = "by indices"
    yield f"{'  ' * depth}{type(node).__name__}: {form}{_format_time(node)}"
    for parent in node.parents:
        yield from _format_lines(parent, depth + 1)


def _add_reason(form: str, node: DatasetNode) -> str:
    reason = node.explain_fallback()
    return f"{form}, because {reason}" if reason else form


def _format_time(node: DatasetNode) -> str:
    """Format the number of elements and the seconds that a transformation spent."""
    stopwatch = node.stopwatch
    if not stopwatch.elements:
        return ""
    parent_seconds = (
        0.0 if node.runs_parents_in_thread else sum(p.stopwatch.seconds for p in node.parents)
    )
    verb = "waited " if node.runs_parents_in_thread else ""
    return f"; {stopwatch.elements:,} elements, {verb}{max(stopwatch.seconds - parent_seconds, 0):.3f} s"
