"""How a dataset is divided between workers that each make their own input."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

from meshflow.core.runtime.errors import InvalidArgumentError, NotFoundError
from meshflow.data.arguments import integer
from meshflow.data.dataset import Dataset
from meshflow.data.epoch import Epoch
from meshflow.data.options import AutoShardPolicy
from meshflow.data.transformations import Cache, FlatMap, ShardHint, Shuffle, Slice

__all__ = ["auto_shard", "by_policy"]

_ADVICE = (
    "set tf.data.Options().experimental_distribute.auto_shard_policy to AutoShardPolicy.DATA or OFF"
)


def auto_shard(dataset: Dataset, num_workers: Any, index: Any, policy: Any = None) -> Dataset:
    """The part of a dataset that one of several workers reads.

    The policy is the option `experimental_distribute.auto_shard_policy`:

    * OFF: every worker reads everything.
    * FILE: every worker reads some of the files. The list of files is divided, before it is shuffled.
    * DATA: every worker reads everything and keeps every `num_workers`-th element.
    * AUTO: as FILE where the dataset reads files, and at least as many as there are workers; else
      as DATA.
    * HINT: as the dataset says with `shard(tf.data.experimental.SHARD_HINT, SHARD_HINT)`.

    Args:
      dataset: the whole.
      num_workers: how many workers there are.
      index: the worker's number.
      policy: instead of the option.

    Returns:
      A dataset of the worker's part.

    Raises:
      NotFoundError: for FILE, when the dataset does not read files.
      InvalidArgumentError: for FILE, when there are fewer files than workers; for an index out of
        range.

    Example:
      >>> import meshflow as tf
      >>> from meshflow.data.sharding import auto_shard
      >>> [[int(x) for x in auto_shard(tf.data.Dataset.range(5), 2, i)] for i in range(2)]
      [[0, 2, 4], [1, 3]]
    """
    part, policy = by_policy(dataset, num_workers, index, policy)
    count, at = int(num_workers), int(index)
    return Slice(part, at, None, count) if policy is AutoShardPolicy.DATA else part


def by_policy(
    dataset: Dataset, num_workers: Any, index: Any, policy: Any = None
) -> tuple[Dataset, AutoShardPolicy]:
    """A worker's part as `auto_shard` gives it, but for DATA the whole, to be divided otherwise.

    Args:
      dataset: the whole.
      num_workers: how many workers there are.
      index: the worker's number.
      policy: instead of the option.

    Returns:
      The dataset, and the policy that was used; never AUTO.

    Raises:
      NotFoundError: for FILE, when the dataset does not read files.
      InvalidArgumentError: for FILE, when there are fewer files than workers; for an index out of
        range.
    """
    count, at = integer(num_workers, "num_workers"), integer(index, "index")
    if not 0 <= at < count:
        raise InvalidArgumentError(f"index must be in [0, {count}), got {at}.")
    if policy is None:
        policy = dataset.options().experimental_distribute.auto_shard_policy
    policy = AutoShardPolicy(int(policy))
    if policy in (AutoShardPolicy.OFF, AutoShardPolicy.DATA):
        return dataset, policy
    if policy is AutoShardPolicy.HINT:

        def filled(node: Dataset) -> Dataset | None:
            hint = isinstance(node, ShardHint)
            return Slice(node._parents[0], at, None, count) if hint else None

        return _rewritten(dataset, filled), policy
    try:
        return _by_file(dataset, count, at), AutoShardPolicy.FILE
    except (NotFoundError, _TooFewFiles) as error:
        if policy is AutoShardPolicy.FILE:
            raise
        # Data in memory is the common case, of which nobody needs to be told.
        level = logging.WARNING if isinstance(error, _TooFewFiles) else logging.INFO
        logging.getLogger("meshflow").log(level, "Sharding by DATA instead of FILE: %s", error)
        return dataset, AutoShardPolicy.DATA


class _TooFewFiles(InvalidArgumentError):
    """There are fewer files than workers."""


def _rewritten(node: Dataset, change: Callable[[Dataset], Dataset | None]) -> Dataset:
    """A graph with some nodes changed: those for which a function gives another."""
    changed = change(node)
    if changed is not None:
        return changed
    return _with_parents(node, [_rewritten(p, change) for p in node._parents])


def _with_parents(node: Dataset, parents: list[Dataset]) -> Dataset:
    """A node after other nodes."""
    if all(new is old for new, old in zip(parents, node._parents, strict=True)):
        return node
    made = node._copied()
    made._parents = tuple(parents)
    return made


def _by_file(node: Dataset, count: int, at: int) -> Dataset:
    """A graph that reads a worker's part of the files.

    Raises:
      NotFoundError: when it reads no files.
    """
    if _is_source(node):
        names = node._file_names()  # type: ignore[attr-defined]
        if names is not None:
            _check(len(names), count)
            return node._of_files(names[at::count])  # type: ignore[attr-defined]
        return _with_parents(node, [_shard_of_names(node._parents[0], count, at)])
    if isinstance(node, FlatMap) and _reads_files(node):
        return _with_parents(node, [_shard_of_names(node._parents[0], count, at)])
    if not node._parents:
        raise NotFoundError(
            f"FILE based sharding is not possible: a source of the dataset is {type(node).__name__}, which reads no "
            f"files; {_ADVICE}."
        )
    made = _with_parents(node, [_by_file(p, count, at) for p in node._parents])
    if isinstance(made, Cache):
        made._forget(f"{at}-of-{count}")
    return made


def _is_source(node: Dataset) -> bool:
    return hasattr(node, "_of_files") and not (
        node._file_names() is None and not node._parents  # type: ignore[attr-defined]
    )


def _reads_files(node: FlatMap) -> bool:
    """Whether the datasets of an `interleave` read files."""
    elements = node._parent._elements(Epoch(node._parent))
    try:
        first = next(elements, None)
        return first is not None and any(map(_is_source, _nodes(node._inner(first))))
    finally:
        elements.close()


def _nodes(node: Dataset) -> Iterator[Dataset]:
    yield node
    for parent in node._parents:
        yield from _nodes(parent)


def _shard_of_names(names: Dataset, count: int, at: int) -> Dataset:
    """Some of the names of files; they are divided before they are shuffled, or parts overlap."""
    if isinstance(names, Shuffle):
        return _with_parents(names, [_shard_of_names(names._parents[0], count, at)])
    known = names._count()
    if known >= 0:
        _check(known, count)
    return Slice(names, at, None, count)


def _check(files: int, count: int) -> None:
    if files < count:
        raise _TooFewFiles(
            f"FILE based sharding is not possible: the dataset only has {files} file(s), which is not enough for "
            f"{count} workers; {_ADVICE}, or split the data into more files."
        )
