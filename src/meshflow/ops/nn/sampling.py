"""Samplers of classes, and losses over many classes that are computed for a sample of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from meshflow.core.dispatch.dispatch import op
from meshflow.core.dispatch.operands import to_static_value
from meshflow.core.dispatch.symbolic_calls import record_in_graph
from meshflow.core.runtime import philox
from meshflow.core.runtime.errors import InvalidValueError
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.dtypes import float32, int64
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.core.variables.random_streams import draw_op_key
from meshflow.files.gfile import GFile
from meshflow.ops import array, math
from meshflow.ops.nn.cross_entropy import (
    sigmoid_cross_entropy_with_logits,
    softmax_cross_entropy_with_logits,
)
from meshflow.ops.nn.embedding import embedding_lookup

__all__ = [
    "all_candidate_sampler",
    "compute_accidental_hits",
    "fixed_unigram_candidate_sampler",
    "log_uniform_candidate_sampler",
    "nce_loss",
    "sampled_softmax_loss",
    "uniform_candidate_sampler",
]


# Random counters per candidate; TensorFlow's kernels reserve 2048 words for each.
_COUNTERS_PER_CANDIDATE = 512


class Candidates(NamedTuple):
    """Sampled classes, and the expected counts of the true and sampled classes in such a sample."""

    sampled_candidates: Tensor
    true_expected_count: Tensor
    sampled_expected_count: Tensor


@op(same=(), differentiable=False, name="candidate_sampler")
def _sample_classes(
    key: TensorLike,
    probabilities: TensorLike,
    true_classes: TensorLike,
    count: int,
    unique: bool,
    law: str,
) -> tuple[Tensor, Tensor, Tensor]:
    """Sample classes; unique ones by rejection, for which enough counters are reserved."""
    classes = probabilities.shape[0]

    def draw(counters: jax.Array) -> jax.Array:
        low, high = philox.draw_word_pairs(key, counters.astype(jnp.uint64))
        if law == "uniform":
            return ((low | high << 32) % classes).astype(jnp.int64)
        uniform = philox.words_to_float64(low, high)
        if law == "log uniform":
            return (jnp.exp(uniform * np.log1p(classes)).astype(jnp.int64) - 1) % classes
        ends = jnp.cumsum(probabilities)
        return jnp.minimum(jnp.searchsorted(ends, uniform * ends[-1], side="right"), classes - 1)

    expected = probabilities * count
    if unique:

        def is_incomplete(state: tuple[Any, ...]) -> jax.Array:
            return state[1] < count

        def add_candidate(state: tuple[Any, ...]) -> tuple[Any, ...]:
            found, filled, tries, is_taken = state
            drawn = draw(tries)
            found = found.at[filled].set(jnp.where(is_taken[drawn], found[filled], drawn))
            return found, filled + ~is_taken[drawn], tries + 1, is_taken.at[drawn].set(True)

        start: tuple[Any, ...] = (
            jnp.zeros(count, jnp.int64),
            0,
            jnp.int64(0),
            jnp.zeros(classes, bool),
        )
        sampled, _, tries, _ = jax.lax.while_loop(is_incomplete, add_candidate, start)
        by_tries = -jnp.expm1(tries * jnp.log1p(-probabilities))
        expected = jnp.where(tries == count, expected, by_tries)
    else:
        sampled = draw(jax.lax.iota(jnp.int64, count)).astype(jnp.int64)
    expected = expected.astype(jnp.float32)
    return sampled, expected[true_classes], expected[sampled]


def _sample_candidates(
    true_classes: TensorLike,
    num_true: int,
    num_sampled: int,
    unique: bool,
    probabilities: np.ndarray,
    seed: int | None,
    law: str = "by weight",
) -> Candidates:
    true_classes = math.cast(true_classes, int64)
    if len(true_classes.shape) != 2 or true_classes.shape[1] != num_true:
        raise InvalidValueError(
            f"true_classes must have num_true = {num_true} columns, got shape {true_classes.shape}."
        )
    possible = int(np.count_nonzero(probabilities))
    if unique and num_sampled > possible:
        raise InvalidValueError(
            f"Cannot sample {num_sampled} unique classes out of {possible} possible ones."
        )
    key = draw_op_key(
        seed, _COUNTERS_PER_CANDIDATE * num_sampled, f"{law} candidates {probabilities.size}"
    )
    return Candidates(
        *_sample_classes(key, probabilities, true_classes, num_sampled, bool(unique), law)
    )


@record_in_graph
def uniform_candidate_sampler(
    true_classes: TensorLike,
    num_true: int,
    num_sampled: int,
    unique: bool,
    range_max: int,
    seed: int | None = None,
    name: str | None = None,
) -> Candidates:
    """Sample classes with equal probabilities.

    Args:
      true_classes: int64 [batch, num_true].
      num_true: Number of true classes per example.
      num_sampled: Size of the sample.
      unique: Whether the sampled classes must be distinct.
      range_max: Number of classes.
      seed: Seed of the op.
      name: Ignored.

    Returns:
      A named tuple: sampled_candidates int64 [num_sampled], true_expected_count [batch, num_true]
      and sampled_expected_count [num_sampled].

    Example:
      >>> true = tf.constant([[0], [3]], tf.int64)
      >>> sampled, _, _ = tf.random.uniform_candidate_sampler(true, 1, 5, True, range_max=5)
      >>> sorted(sampled.numpy().tolist())
      [0, 1, 2, 3, 4]
    """
    even = np.full(range_max, 1 / range_max)
    return _sample_candidates(true_classes, num_true, num_sampled, unique, even, seed, "uniform")


@record_in_graph
def log_uniform_candidate_sampler(
    true_classes: TensorLike,
    num_true: int,
    num_sampled: int,
    unique: bool,
    range_max: int,
    seed: int | None = None,
    name: str | None = None,
) -> Candidates:
    """Sample classes that are sorted by decreasing frequency, like the words of a vocabulary.

    Class k has the probability (log(k + 2) - log(k + 1)) / log(range_max + 1). The arguments and
    the shapes of the results are those of `uniform_candidate_sampler`.

    Example:
      >>> true = tf.constant([[0]], tf.int64)
      >>> sampled, _, _ = tf.random.log_uniform_candidate_sampler(true, 1, 4, True, range_max=4)
      >>> sorted(sampled.numpy().tolist())
      [0, 1, 2, 3]
    """
    zipf = np.diff(np.log(np.arange(1, range_max + 2))) / np.log(range_max + 1)
    return _sample_candidates(
        true_classes, num_true, num_sampled, unique, zipf, seed, "log uniform"
    )


@record_in_graph
def fixed_unigram_candidate_sampler(
    true_classes: TensorLike,
    num_true: int,
    num_sampled: int,
    unique: bool,
    range_max: int,
    vocab_file: str = "",
    distortion: float = 1.0,
    num_reserved_ids: int = 0,
    num_shards: int = 1,
    shard: int = 0,
    unigrams: Sequence[float] = (),
    seed: int | None = None,
    name: str | None = None,
) -> Candidates:
    """Sample classes in proportion to counts; the result is that of `uniform_candidate_sampler`.

    Args:
      true_classes: int64 [batch, num_true].
      num_true: Number of true classes per example.
      num_sampled: Size of the sample.
      unique: Whether the sampled classes must be distinct.
      range_max: Number of classes.
      vocab_file: File with lines that end with ',' and a count, instead of `unigrams`.
      distortion: Exponent of the counts.
      num_reserved_ids: Number of classes before the first count, which are never sampled.
      num_shards: Number of shards of the classes.
      shard: Index of the shard to sample from.
      unigrams: Counts.
      seed: Seed of the op.
      name: Ignored.

    Example:
      >>> true = tf.constant([[0]], tf.int64)
      >>> sampled, at_true, _ = tf.nn.fixed_unigram_candidate_sampler(
      ...     true, 1, 3, False, range_max=3, unigrams=[1.0, 0.0, 1.0])
      >>> 1 in sampled.numpy(), at_true.numpy().round(3).tolist()
      (False, [[1.5]])
    """
    counts = list(unigrams)
    if vocab_file:
        with GFile(vocab_file) as file:
            counts = [float(line.rsplit(",", 1)[-1]) for line in file if line.strip()]
    weights = np.concatenate([np.zeros(num_reserved_ids), np.asarray(counts, float) ** distortion])
    if len(weights) != range_max:
        raise InvalidValueError(
            f"range_max is {range_max}, but the reserved ids and counts define {len(weights)} classes."
        )
    weights[np.arange(range_max) % num_shards != shard] = 0
    return _sample_candidates(
        true_classes, num_true, num_sampled, unique, weights / weights.sum(), seed
    )


def all_candidate_sampler(
    true_classes: TensorLike,
    num_true: int,
    num_sampled: int,
    unique: bool,
    seed: int | None = None,
    name: str | None = None,
) -> Candidates:
    """Return all classes, each once, for tests of sampled losses.

    The arguments are those of `uniform_candidate_sampler`, and so are the shapes of the results:
    [num_sampled], [batch, num_true] and [num_sampled].

    Example:
      >>> sampled, _, _ = tf.nn.all_candidate_sampler(tf.constant([[1]], tf.int64), 1, 3, True)
      >>> sorted(sampled.numpy().tolist())
      [0, 1, 2]
    """
    sampled = math.cast(array.range(num_sampled), int64)
    true_counts = array.ones_like(math.cast(true_classes, float32))
    return Candidates(sampled, true_counts, array.ones([num_sampled]))


def compute_accidental_hits(
    true_classes: TensorLike,
    sampled_candidates: TensorLike,
    num_true: int,
    seed: int | None = None,
    name: str | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Find sampled classes that are also true classes.

    Args:
      true_classes: int64 [batch, num_true], with static values.
      sampled_candidates: int64 [num_sampled], with static values.
      num_true: Number of true classes per example.
      seed: Ignored.
      name: Ignored.

    Returns:
      (indices, ids, weights): for each hit, its row as int32, its index in the sample as int64, and
      the lowest float32.

    Example:
      >>> true, sampled = tf.constant([[4], [7]], tf.int64), tf.constant([7, 2, 4], tf.int64)
      >>> rows, indices, _ = tf.nn.compute_accidental_hits(true, sampled, num_true=1)
      >>> rows.numpy().tolist(), indices.numpy().tolist()
      ([0, 1], [2, 0])
    """
    true = convert_to_tensor(true_classes).require_value("true_classes of compute_accidental_hits")
    sampled = convert_to_tensor(sampled_candidates).require_value("sampled_candidates")
    indices = {int(class_id): index for index, class_id in enumerate(sampled)}
    pairs = [
        (row, indices[int(class_id)])
        for row, classes in enumerate(true)
        for class_id in classes
        if int(class_id) in indices
    ]
    hits = np.asarray(pairs, np.int64).reshape(-1, 2)
    return (
        convert_to_tensor(hits[:, 0].astype(np.int32)),
        convert_to_tensor(hits[:, 1].astype(np.int64)),
        convert_to_tensor(np.full(len(hits), np.finfo(np.float32).min, np.float32)),
    )


def _compute_sampled_logits(
    weights: TensorLike | Sequence[TensorLike],
    biases: TensorLike,
    labels: TensorLike,
    inputs: TensorLike,
    num_sampled: int,
    num_classes: int,
    num_true: int,
    sampled_values: Sequence[Tensor] | None,
    remove_accidental_hits: bool,
    seed: int | None,
) -> tuple[Tensor, Tensor]:
    """Compute logits of true and sampled classes minus their log-frequencies, and the targets."""
    labels = math.cast(labels, int64)
    inputs = convert_to_tensor(inputs)
    if sampled_values is None:
        sampled_values = log_uniform_candidate_sampler(
            labels, num_true, num_sampled, True, num_classes, seed
        )
    sampled, true_expected, sampled_expected = (array.stop_gradient(v) for v in sampled_values)
    size = to_static_value(inputs.shape[1], "inputs")
    flat = array.reshape(labels, [-1])
    true_rows = array.reshape(embedding_lookup(weights, flat), [-1, num_true, size])
    true_biases = array.reshape(embedding_lookup(biases, flat), [-1, num_true])
    true = math.reduce_sum(array.expand_dims(inputs, 1) * true_rows, 2) + true_biases
    true = true - math.cast(math.log(true_expected), true.dtype)
    others = math.matmul(inputs, embedding_lookup(weights, sampled), transpose_b=True)
    others = others + embedding_lookup(biases, sampled)
    if remove_accidental_hits:
        same = math.equal(array.expand_dims(labels, 2), math.cast(sampled, int64))
        hit = math.cast(math.reduce_any(same, 1), others.dtype)
        others = others + hit * np.asarray(np.finfo(np.float32).min, others.dtype.as_numpy_dtype)
    others = others - math.cast(math.log(sampled_expected), others.dtype)
    logits = array.concat([true, others], 1)
    targets = array.concat([array.ones_like(true) / num_true, array.zeros_like(others)], 1)
    return logits, array.stop_gradient(targets)


def nce_loss(
    weights: TensorLike | Sequence[TensorLike],
    biases: TensorLike,
    labels: TensorLike,
    inputs: TensorLike,
    num_sampled: int,
    num_classes: int,
    num_true: int = 1,
    sampled_values: Sequence[Tensor] | None = None,
    remove_accidental_hits: bool = False,
    name: str = "nce_loss",
) -> Tensor:
    """Compute the noise-contrastive estimation loss, which discriminates true from sampled classes.

    Args:
      weights: [num_classes, size], or a list of tensors with consecutive rows.
      biases: [num_classes].
      labels: int64 [batch, num_true].
      inputs: [batch, size].
      num_sampled: Size of the sample.
      num_classes: Number of classes.
      num_true: Number of true classes per example.
      sampled_values: Result of a sampler; by default of `log_uniform_candidate_sampler`.
      remove_accidental_hits: Whether to ignore sampled classes that are true classes.
      name: Ignored.

    Returns:
      Losses [batch].

    Example:
      >>> weights, biases = tf.zeros([10, 3]), tf.zeros([10])
      >>> labels = tf.constant([[1], [2]], tf.int64)
      >>> tf.nn.nce_loss(weights, biases, labels, tf.ones([2, 3]), num_sampled=4, num_classes=10).shape
      TensorShape([2])
    """
    logits, targets = _compute_sampled_logits(
        *(weights, biases, labels, inputs, num_sampled, num_classes, num_true, sampled_values),
        *(remove_accidental_hits, None),
    )
    return math.reduce_sum(sigmoid_cross_entropy_with_logits(targets, logits), 1)


def sampled_softmax_loss(
    weights: TensorLike | Sequence[TensorLike],
    biases: TensorLike,
    labels: TensorLike,
    inputs: TensorLike,
    num_sampled: int,
    num_classes: int,
    num_true: int = 1,
    sampled_values: Sequence[Tensor] | None = None,
    remove_accidental_hits: bool = True,
    seed: int | None = None,
    name: str = "sampled_softmax_loss",
) -> Tensor:
    """Compute the softmax cross-entropy over the true classes and a sample of the others.

    The loss is meant for training only.

    The arguments are those of `nce_loss`; `seed` is the seed of the sampler.

    Returns:
      Losses [batch].

    Example:
      >>> weights, biases = tf.zeros([10, 3]), tf.zeros([10])
      >>> labels = tf.constant([[1], [2]], tf.int64)
      >>> tf.nn.sampled_softmax_loss(weights, biases, labels, tf.ones([2, 3]), 4, 10).shape
      TensorShape([2])
    """
    logits, targets = _compute_sampled_logits(
        *(weights, biases, labels, inputs, num_sampled, num_classes, num_true, sampled_values),
        *(remove_accidental_hits, seed),
    )
    return softmax_cross_entropy_with_logits(targets, logits)
