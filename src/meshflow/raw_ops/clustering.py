"""Raw ops of k-means clustering: initial centers and the nearest centers of points, with TensorFlow's random numbers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from meshflow.core.runtime.errors import InvalidArgumentError
from meshflow.core.runtime.import_paths import get_public_package
from meshflow.core.runtime.philox_host import PhiloxWordStream
from meshflow.core.values.tensor import Tensor, TensorLike

tf: Any = get_public_package()


class _PhiloxNumbers:
    """The numbers that TensorFlow's class SimplePhilox draws for a seed."""

    def __init__(self, seed: int) -> None:
        self._words = PhiloxWordStream([0, 0, seed])

    def _draw_word(self) -> int:
        return int(self._words.take(1)[0])

    def draw_float(self) -> np.float32:
        """Draw a number in [0, 1), float32."""
        bits = np.uint32(127 << 23 | self._draw_word() & 0x7FFFFF)
        return bits.view(np.float32) - np.float32(1)

    def draw_index(self, count: int) -> int:
        """Draw an integer in [0, count)."""
        if count & (count - 1) == 0:
            return self._draw_64_bits() & (count - 1)
        # Numbers of the last, incomplete range are rejected.
        limit = (1 << 64) - 1
        limit -= limit % count + 1
        while (number := self._draw_64_bits()) > limit:
            pass
        return number % count

    def _draw_64_bits(self) -> int:
        low = self._draw_word()
        return low | self._draw_word() << 32


def _sample_centers(points: Any, count: Any, seed: Any, num_retries: Any) -> np.ndarray:
    """Choose points as initial centers by k-means++ (Arthur and Vassilvitskii 2007), float32 [count, dimensions]."""
    count, num_retries = int(count), int(num_retries)
    if points.ndim != 2:
        raise InvalidArgumentError("Input points should be a matrix.")
    if not len(points):
        raise InvalidArgumentError("Expected points.rows() > 0.")
    if count <= 0:
        raise InvalidArgumentError("Expected num_to_sample > 0.")
    if count > len(points):
        raise InvalidArgumentError(
            f"Expected num_to_sample <= points.rows(). {count} vs {len(points)}."
        )
    if num_retries < 0:
        num_retries = 2 + int(math.log(count))
    random = _PhiloxNumbers(int(seed))
    norms = np.float32(0.5) * np.square(points).sum(axis=1)
    nearest = np.full(len(points), np.inf, np.float32)
    chosen: list[int] = []

    def draw_sample(sums: np.ndarray) -> int:
        if not chosen:
            return random.draw_index(len(points))
        while True:
            if sums[-1] > 0:
                index = int(np.searchsorted(sums, random.draw_float() * sums[-1], side="right"))
            else:
                index = random.draw_index(len(points))
            if min(index, len(points) - 1) not in chosen:
                return min(index, len(points) - 1)

    for _ in range(count):
        sums = np.cumsum(nearest, dtype=np.float32)
        candidates = []
        for _ in range(1 + num_retries):
            index = draw_sample(sums)
            distances = np.minimum(nearest, norms - points @ points[index] + norms[index])
            candidates.append((distances.sum(), index, distances))
        _, index, nearest = min(candidates, key=lambda candidate: candidate[0])
        chosen.append(index)
    return points[chosen]


def _run_markov_chain(distances: Any, seed: Any) -> np.ndarray:
    """Return the last state of a chain over candidates, which k-MC2 (Bachem et al. 2016) adds as a center, int64."""
    if distances.ndim != 1:
        raise InvalidArgumentError("Input distances should be a vector.")
    if not len(distances):
        raise InvalidArgumentError("Expected distances_tensor.size() > 0.")
    random, state = _PhiloxNumbers(int(seed)), 0
    for candidate in range(1, len(distances)):
        if distances[candidate] > random.draw_float() * distances[state]:
            state = candidate
    return np.array(state, np.int64)


def _run_on_host(function: Callable[..., np.ndarray], spec: Any, *inputs: Any) -> Tensor:
    """Compute on the host, at once or by a callback of a compiled program; inputs are values and their dtypes."""
    tensors = [tf.convert_to_tensor(value, dtype) for value, dtype in inputs]
    if tf.executing_eagerly():
        return tf.constant(function(*[t.numpy() for t in tensors]))
    result: Tensor = tf.numpy_function(function, tensors, spec)
    return result


def _initialize_centers(
    points: TensorLike,
    num_to_sample: TensorLike,
    seed: TensorLike,
    num_retries_per_sample: TensorLike,
) -> Tensor:
    inputs = [(value, "int64") for value in (num_to_sample, seed, num_retries_per_sample)]
    points = tf.convert_to_tensor(points, "float32")
    spec = tf.TensorSpec([tf.get_static_value(num_to_sample), points.shape[-1]])
    return _run_on_host(_sample_centers, spec, (points, "float32"), *inputs)


def _choose_candidate(distances: TensorLike, seed: TensorLike) -> Tensor:
    spec = tf.TensorSpec([], "int64")
    return _run_on_host(_run_markov_chain, spec, (distances, "float32"), (seed, "int64"))


def _find_nearest(points: TensorLike, centers: TensorLike, k: TensorLike) -> tuple[Tensor, Tensor]:
    """Return the indices of the nearest centers of each point, and the squared distances to these."""
    points, centers = (tf.convert_to_tensor(value, "float32") for value in (points, centers))
    half_norms = [tf.reduce_sum(value**2, 1) / 2 for value in (points, centers)]
    products = tf.matmul(points, centers, transpose_b=True)
    distances = 2 * (half_norms[0][:, None] - products + half_norms[1])
    count = tf.minimum(tf.cast(k, "int32"), tf.shape(centers)[0])
    nearest, indices = tf.nn.top_k(-distances, count)
    return tf.cast(indices, "int64"), -nearest


CLUSTERING_OPS: dict[str, Callable[..., Any]] = {
    "KmeansPlusPlusInitialization": _initialize_centers,
    "KMC2ChainInitialization": _choose_candidate,
    "NearestNeighbors": _find_nearest,
}
