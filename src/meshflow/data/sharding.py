"""Splitting of a dataset between workers that read their input independently."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import cast

from meshflow.core.runtime.errors import InvalidArgumentError, NotFoundError
from meshflow.data.arguments import IntLike, to_int
from meshflow.data.dataset import Dataset
from meshflow.data.epoch import Epoch
from meshflow.data.node import DatasetNode
from meshflow.data.options import AutoShardPolicy
from meshflow.data.transformations import Cache, FlatMap, ShardHint, Shuffle, Slice

_ADVICE = (
    "set tf.data.Options().experimental_distribute.auto_shard_policy to AutoShardPolicy.DATA or OFF"
)


def auto_shard(
    dataset: Dataset, num_workers: IntLike, index: IntLike, policy: AutoShardPolicy | None = None
) -> Dataset:
    """Return the part of a dataset that one of several workers reads.

    The policy is the option `experimental_distribute.auto_shard_policy`:

    * OFF: Every worker reads all elements.
    * FILE: Every worker reads some of the files. The list of files is split before it is shuffled.
    * DATA: Every worker reads all elements and keeps every `num_workers`-th one.
    * AUTO: Like FILE if the dataset reads at least as many files as there are workers, else like
      DATA.
    * HINT: Split where the dataset calls `shard(tf.data.experimental.SHARD_HINT, SHARD_HINT)`.

    Args:
      dataset: The dataset.
      num_workers: Number of workers.
      index: Index of the worker.
      policy: Policy that overrides the option.

    Returns:
      The dataset of the worker.

    Raises:
      NotFoundError: With the policy FILE, if the dataset reads no files.
      InvalidArgumentError: With the policy FILE, if there are fewer files than workers; if the
        index is out of range.

    Example:
      >>> from meshflow.data.sharding import auto_shard
      >>> [[int(x) for x in auto_shard(tf.data.Dataset.range(5), 2, i)] for i in range(2)]
      [[0, 2, 4], [1, 3]]
    """
    part, policy = apply_shard_policy(dataset, num_workers, index, policy)
    count, worker = int(num_workers), int(index)
    return Slice(part, worker, None, count) if policy is AutoShardPolicy.DATA else part


def apply_shard_policy(
    dataset: Dataset, num_workers: IntLike, index: IntLike, policy: AutoShardPolicy | None = None
) -> tuple[Dataset, AutoShardPolicy]:
    """Split a dataset like `auto_shard`, but return the full dataset for the policy DATA.

    The caller then splits the elements itself.

    Args:
      dataset: The dataset.
      num_workers: Number of workers.
      index: Index of the worker.
      policy: Policy that overrides the option.

    Returns:
      The dataset, and the policy that was used, which is never AUTO.

    Raises:
      NotFoundError: With the policy FILE, if the dataset reads no files.
      InvalidArgumentError: With the policy FILE, if there are fewer files than workers; if the
        index is out of range.
    """
    count, worker = to_int(num_workers, "num_workers"), to_int(index, "index")
    if not 0 <= worker < count:
        raise InvalidArgumentError(f"index must be in [0, {count}), got {worker}.")
    if policy is None:
        policy = dataset.options().experimental_distribute.auto_shard_policy
    policy = AutoShardPolicy(int(policy))
    if policy in (AutoShardPolicy.OFF, AutoShardPolicy.DATA):
        return dataset, policy
    if policy is AutoShardPolicy.HINT:

        def replace_hint(node: DatasetNode) -> DatasetNode | None:
            hint = isinstance(node, ShardHint)
            return Slice(node.parents[0], worker, None, count) if hint else None

        return cast(Dataset, _rewrite_graph(dataset, replace_hint)), policy
    try:
        return cast(Dataset, _shard_by_file(dataset, count, worker)), AutoShardPolicy.FILE
    except (NotFoundError, _TooFewFilesError) as error:
        if policy is AutoShardPolicy.FILE:
            raise
        # Data in memory is the common case, which needs no warning.
        level = logging.WARNING if isinstance(error, _TooFewFilesError) else logging.INFO
        logging.getLogger("meshflow").log(level, "Sharding by DATA instead of FILE: %s", error)
        return dataset, AutoShardPolicy.DATA


class _TooFewFilesError(InvalidArgumentError):
    """Raised if there are fewer files than workers."""


def _rewrite_graph(
    node: DatasetNode, change: Callable[[DatasetNode], DatasetNode | None]
) -> DatasetNode:
    """Replace the nodes of a graph for which a function returns another node."""
    replacement = change(node)
    if replacement is not None:
        return replacement
    return _replace_parents(node, [_rewrite_graph(p, change) for p in node.parents])


def _replace_parents(node: DatasetNode, parents: list[DatasetNode]) -> DatasetNode:
    """Return a copy of a node with other parents, or the node itself if they are the same."""
    if all(new is old for new, old in zip(parents, node.parents, strict=True)):
        return node
    copied = node.copy_node()
    copied.parents = tuple(parents)
    return copied


def _shard_by_file(node: DatasetNode, count: int, worker: int) -> DatasetNode:
    """Return a graph that reads a worker's part of the files.

    Raises:
      NotFoundError: If the graph reads no files.
    """
    if _is_file_reader(node):
        names = node.get_file_names()  # type: ignore[attr-defined]
        if names is not None:
            _check_num_files(len(names), count)
            return node.with_files(names[worker::count])  # type: ignore[attr-defined]
        return _replace_parents(node, [_shard_file_names(node.parents[0], count, worker)])
    if isinstance(node, FlatMap) and _reads_files(node):
        return _replace_parents(node, [_shard_file_names(node.parents[0], count, worker)])
    if not node.parents:
        raise NotFoundError(
            f"FILE based sharding is not possible: a source of the dataset is {type(node).__name__}, which reads no "
            f"files; {_ADVICE}."
        )
    sharded = _replace_parents(node, [_shard_by_file(p, count, worker) for p in node.parents])
    if isinstance(sharded, Cache):
        sharded.reset_for_shard(f"{worker}-of-{count}")
    return sharded


def _is_file_reader(node: DatasetNode) -> bool:
    """Check whether a node reads files with known names, or files that its parent names."""
    return hasattr(node, "with_files") and not (
        node.get_file_names() is None and not node.parents  # type: ignore[attr-defined]
    )


def _reads_files(node: FlatMap) -> bool:
    """Check whether the datasets that an `interleave` creates read files."""
    elements = node.parent.iter_elements(Epoch(node.parent))
    try:
        first = next(elements, None)
        return first is not None and any(
            map(_is_file_reader, _iter_nodes(node._create_inner_dataset(first)))
        )
    finally:
        elements.close()


def _iter_nodes(node: DatasetNode) -> Iterator[DatasetNode]:
    yield node
    for parent in node.parents:
        yield from _iter_nodes(parent)


def _shard_file_names(names: DatasetNode, count: int, worker: int) -> DatasetNode:
    """Split the names of files between workers.

    They are split before they are shuffled, so that the parts do not overlap.
    """
    if isinstance(names, Shuffle):
        return _replace_parents(names, [_shard_file_names(names.parents[0], count, worker)])
    num_files = names.count_elements()
    if num_files >= 0:
        _check_num_files(num_files, count)
    return Slice(names, worker, None, count)


def _check_num_files(files: int, count: int) -> None:
    if files < count:
        raise _TooFewFilesError(
            f"FILE based sharding is not possible: the dataset only has {files} file(s), which is not enough for "
            f"{count} workers; {_ADVICE}, or split the data into more files."
        )
