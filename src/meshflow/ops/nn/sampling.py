"""Samplers of classes, and losses over many classes of which only a sample is computed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from meshflow.core.dispatch.dispatch import op
from meshflow.core.dispatch.operands import static_value
from meshflow.core.runtime import philox
from meshflow.core.runtime.errors import InvalidValueError
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.dtypes import float32, int64
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.core.variables.random import op_key
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


# Where TensorFlow's kernels keep 2048 words for each.
_COUNTS_PER_CANDIDATE = 512


class Candidates(NamedTuple):
    """Sampled classes, and how often true and sampled ones are expected in such a sample."""

    sampled_candidates: Tensor
    true_expected_count: Tensor
    sampled_expected_count: Tensor


@op(same=(), differentiable=False, name="candidate_sampler")
def _sample(
    key: TensorLike,
    probabilities: TensorLike,
    true_classes: TensorLike,
    count: int,
    unique: bool,
    law: str,
) -> Any:
    """Draws classes; unique ones by drawing until there are enough, which the counts allow for."""
    classes = probabilities.shape[0]

    def draw(numbers: Any) -> Any:
        low, high = philox.word_pairs(key, numbers.astype(jnp.uint64))
        if law == "uniform":
            return ((low | high << 32) % classes).astype(jnp.int64)
        share = philox.double(low, high)
        if law == "log uniform":
            return (jnp.exp(share * np.log1p(classes)).astype(jnp.int64) - 1) % classes
        ends = jnp.cumsum(probabilities)
        return jnp.minimum(jnp.searchsorted(ends, share * ends[-1], side="right"), classes - 1)

    expected = probabilities * count
    if unique:

        def more(state: Any) -> Any:
            return state[1] < count

        def one(state: Any) -> Any:
            found, filled, tries, taken = state
            drawn = draw(tries)
            found = found.at[filled].set(jnp.where(taken[drawn], found[filled], drawn))
            return found, filled + ~taken[drawn], tries + 1, taken.at[drawn].set(True)

        start = (jnp.zeros(count, jnp.int64), 0, jnp.int64(0), jnp.zeros(classes, bool))
        sampled, _, tries, _ = jax.lax.while_loop(more, one, start)
        by_tries = -jnp.expm1(tries * jnp.log1p(-probabilities))
        expected = jnp.where(tries == count, expected, by_tries)
    else:
        sampled = draw(jax.lax.iota(jnp.int64, count)).astype(jnp.int64)
    expected = expected.astype(jnp.float32)
    return sampled, expected[true_classes], expected[sampled]


def _candidates(
    true_classes: TensorLike,
    num_true: int,
    num_sampled: int,
    unique: bool,
    probabilities: np.ndarray,
    seed: Any,
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
    key = op_key(
        seed, _COUNTS_PER_CANDIDATE * num_sampled, f"{law} candidates {probabilities.size}"
    )
    return Candidates(*_sample(key, probabilities, true_classes, num_sampled, bool(unique), law))


def uniform_candidate_sampler(
    true_classes: TensorLike,
    num_true: int,
    num_sampled: int,
    unique: bool,
    range_max: int,
    seed: Any = None,
    name: str | None = None,
) -> Candidates:
    """Samples classes, all of them equally likely.

    Args:
      true_classes: int64 [batch, num_true].
      num_true: true classes per example.
      num_sampled: size of the sample.
      unique: whether the sampled classes are all different.
      range_max: number of classes.
      seed: seed of this op.
      name: ignored.

    Returns:
      A named tuple: sampled_candidates int64 [num_sampled], true_expected_count [batch, num_true] and
      sampled_expected_count [num_sampled].

    Example:
      >>> import meshflow as tf
      >>> true = tf.constant([[0], [3]], tf.int64)
      >>> sampled, _, _ = tf.random.uniform_candidate_sampler(true, 1, 5, True, range_max=5)
      >>> sorted(sampled.numpy().tolist())
      [0, 1, 2, 3, 4]
    """
    even = np.full(range_max, 1 / range_max)
    return _candidates(true_classes, num_true, num_sampled, unique, even, seed, "uniform")


def log_uniform_candidate_sampler(
    true_classes: TensorLike,
    num_true: int,
    num_sampled: int,
    unique: bool,
    range_max: int,
    seed: Any = None,
    name: str | None = None,
) -> Candidates:
    """Samples classes that are numbered by falling frequency, as words of a vocabulary are.

    Class k has the probability (log(k + 2) - log(k + 1)) / log(range_max + 1); arguments and result
    as in `uniform_candidate_sampler`.

    Args:
      true_classes: int64 [batch, num_true].
      num_true: true classes per example.
      num_sampled: size of the sample.
      unique: whether the sampled classes are all different.
      range_max: number of classes.
      seed: seed of this op.
      name: ignored.

    Example:
      >>> import meshflow as tf
      >>> true = tf.constant([[0]], tf.int64)
      >>> sampled, _, _ = tf.random.log_uniform_candidate_sampler(true, 1, 4, True, range_max=4)
      >>> sorted(sampled.numpy().tolist())
      [0, 1, 2, 3]
    """
    zipf = np.diff(np.log(np.arange(1, range_max + 2))) / np.log(range_max + 1)
    return _candidates(true_classes, num_true, num_sampled, unique, zipf, seed, "log uniform")


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
    seed: Any = None,
    name: str | None = None,
) -> Candidates:
    """Samples classes by given counts.

    Args:
      true_classes: int64 [batch, num_true].
      num_true: true classes per example.
      num_sampled: size of the sample.
      unique: whether the sampled classes are all different.
      range_max: number of classes.
      vocab_file: a file whose lines end with ',' and a count; instead of `unigrams`.
      distortion: power of the counts.
      num_reserved_ids: classes before the first count, which are never sampled.
      num_shards: number of parts that the classes are divided into.
      shard: the part to sample from.
      unigrams: counts.
      seed: seed of this op.
      name: ignored.

    Returns:
      As `uniform_candidate_sampler`.

    Example:
      >>> import meshflow as tf
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
            f"range_max is {range_max}, but there are {len(weights)} reserved ids and counts."
        )
    weights[np.arange(range_max) % num_shards != shard] = 0
    return _candidates(true_classes, num_true, num_sampled, unique, weights / weights.sum(), seed)


def all_candidate_sampler(
    true_classes: TensorLike,
    num_true: int,
    num_sampled: int,
    unique: bool,
    seed: Any = None,
    name: str | None = None,
) -> Candidates:
    """All classes, each once: for tests of sampled losses; arguments as in `uniform_candidate_sampler`.

    The results have the shapes (num_sampled,), (batch, num_true) and (num_sampled,).

    Example:
      >>> import meshflow as tf
      >>> sampled, _, _ = tf.nn.all_candidate_sampler(tf.constant([[1]], tf.int64), 1, 3, True)
      >>> sorted(sampled.numpy().tolist())
      [0, 1, 2]
    """
    once = array.ones([num_sampled])
    return Candidates(
        math.cast(array.range(num_sampled), int64),
        array.ones_like(math.cast(true_classes, float32)),
        once,
    )


def compute_accidental_hits(
    true_classes: TensorLike,
    sampled_candidates: TensorLike,
    num_true: int,
    seed: Any = None,
    name: str | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Where sampled classes are true ones.

    Args:
      true_classes: int64 [batch, num_true], known values.
      sampled_candidates: int64 [num_sampled], known values.
      num_true: true classes per example.
      seed: ignored.
      name: ignored.

    Returns:
      (indices, ids, weights): of each hit, the row int32, the place in the sample int64, and the
      lowest float32.

    Example:
      >>> import meshflow as tf
      >>> true, sampled = tf.constant([[4], [7]], tf.int64), tf.constant([7, 2, 4], tf.int64)
      >>> rows, places, _ = tf.nn.compute_accidental_hits(true, sampled, num_true=1)
      >>> rows.numpy().tolist(), places.numpy().tolist()
      ([0, 1], [2, 0])
    """
    true = convert_to_tensor(true_classes)._concrete("true_classes of compute_accidental_hits")
    sampled = convert_to_tensor(sampled_candidates)._concrete("sampled_candidates")
    places = {int(number): place for place, number in enumerate(sampled)}
    found = [
        (row, places[int(number)])
        for row, numbers in enumerate(true)
        for number in numbers
        if int(number) in places
    ]
    hits = np.asarray(found, np.int64).reshape(-1, 2)
    return (
        convert_to_tensor(hits[:, 0].astype(np.int32)),
        convert_to_tensor(hits[:, 1].astype(np.int64)),
        convert_to_tensor(np.full(len(hits), np.finfo(np.float32).min, np.float32)),
    )


def _sampled_logits(
    weights: Any,
    biases: Any,
    labels: TensorLike,
    inputs: TensorLike,
    num_sampled: int,
    num_classes: int,
    num_true: int,
    sampled_values: Any,
    remove_accidental_hits: bool,
    seed: Any,
) -> tuple[Tensor, Tensor]:
    """Logits of the true and the sampled classes, less their logarithmic frequencies; targets."""
    labels = math.cast(labels, int64)
    inputs = convert_to_tensor(inputs)
    if sampled_values is None:
        sampled_values = log_uniform_candidate_sampler(
            labels, num_true, num_sampled, True, num_classes, seed
        )
    sampled, true_expected, sampled_expected = (array.stop_gradient(v) for v in sampled_values)
    size = static_value(inputs.shape[1], "inputs")
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
    weights: Any,
    biases: TensorLike,
    labels: TensorLike,
    inputs: TensorLike,
    num_sampled: int,
    num_classes: int,
    num_true: int = 1,
    sampled_values: Any = None,
    remove_accidental_hits: bool = False,
    name: str = "nce_loss",
) -> Tensor:
    """Noise-contrastive estimation: true classes are told from sampled ones, one by one.

    Args:
      weights: [num_classes, size], or a list of tensors that hold consecutive rows.
      biases: [num_classes].
      labels: int64 [batch, num_true].
      inputs: [batch, size].
      num_sampled: size of the sample.
      num_classes: number of classes.
      num_true: true classes per example.
      sampled_values: what a sampler returned; default `log_uniform_candidate_sampler`.
      remove_accidental_hits: whether sampled classes that are true ones are left out.
      name: ignored.

    Returns:
      Losses [batch].

    Example:
      >>> import meshflow as tf
      >>> weights, biases = tf.zeros([10, 3]), tf.zeros([10])
      >>> labels = tf.constant([[1], [2]], tf.int64)
      >>> tf.nn.nce_loss(weights, biases, labels, tf.ones([2, 3]), num_sampled=4, num_classes=10).shape
      TensorShape([2])
    """
    logits, targets = _sampled_logits(
        *(weights, biases, labels, inputs, num_sampled, num_classes, num_true, sampled_values),
        *(remove_accidental_hits, None),
    )
    return math.reduce_sum(sigmoid_cross_entropy_with_logits(targets, logits), 1)


def sampled_softmax_loss(
    weights: Any,
    biases: TensorLike,
    labels: TensorLike,
    inputs: TensorLike,
    num_sampled: int,
    num_classes: int,
    num_true: int = 1,
    sampled_values: Any = None,
    remove_accidental_hits: bool = True,
    seed: Any = None,
    name: str = "sampled_softmax_loss",
) -> Tensor:
    """Softmax cross-entropy over the true classes and a sample of the others, for training only.

    Args:
      weights: [num_classes, size], or a list of tensors that hold consecutive rows.
      biases: [num_classes].
      labels: int64 [batch, num_true].
      inputs: [batch, size].
      num_sampled: size of the sample.
      num_classes: number of classes.
      num_true: true classes per example.
      sampled_values: what a sampler returned; default `log_uniform_candidate_sampler`.
      remove_accidental_hits: whether sampled classes that are true ones are left out.
      seed: seed of the sampler.
      name: ignored.

    Returns:
      Losses [batch].

    Example:
      >>> import meshflow as tf
      >>> weights, biases = tf.zeros([10, 3]), tf.zeros([10])
      >>> labels = tf.constant([[1], [2]], tf.int64)
      >>> tf.nn.sampled_softmax_loss(weights, biases, labels, tf.ones([2, 3]), 4, 10).shape
      TensorShape([2])
    """
    logits, targets = _sampled_logits(
        *(weights, biases, labels, inputs, num_sampled, num_classes, num_true, sampled_values),
        *(remove_accidental_hits, seed),
    )
    return softmax_cross_entropy_with_logits(targets, logits)
