"""Gradients of tensors of graphs: names of TensorFlow's module `tensorflow.python.ops.gradient_checker`.

Values of functions are compared by `tf.test.compute_gradient`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from meshflow.core.runtime.import_paths import get_public_package
from meshflow.environment.types import PyTree

tf: Any = get_public_package()
_gradients: Any = importlib.import_module(f"{tf.__name__}.test.gradients")


def compute_gradient(
    x: PyTree,
    x_shape: PyTree,
    y: PyTree,
    y_shape: Sequence[int],
    x_init_value: Any = None,
    delta: float = 1e-3,
    init_targets: Any = None,
    extra_feed_dict: Mapping[Any, Any] | None = None,
) -> PyTree:
    """Compute Jacobians of a tensor of a graph by `tf.gradients` and by central differences.

    Args:
      x: Tensor, or a list of tensors.
      x_shape: Its shape, or a list of shapes.
      y: Tensor that depends on `x`.
      y_shape: Its shape.
      x_init_value: Values of `x`; default: random numbers in [0, 1).
      delta: Step of the differences.
      init_targets: Operations that run first.
      extra_feed_dict: Values of other tensors.

    Returns:
      (theoretical, numerical): arrays [size of `x`, size of `y`], or one such pair for each tensor in a list.
      A complex element counts as two real ones.
    """
    session = tf.compat.v1.get_default_session()
    for target in init_targets or ():
        session.run(target)
    feeds, is_list = dict(extra_feed_dict or {}), isinstance(x, list)
    tensors, shapes = (x, x_shape) if is_list else ([x], [x_shape])
    values = x_init_value if is_list else [x_init_value]
    arrays = [
        np.asarray(np.random.random_sample(s) if v is None else v, t.dtype.as_numpy_dtype)
        for t, s, v in zip(tensors, shapes, values or [None] * len(tensors), strict=True)
    ]
    dy = tf.compat.v1.placeholder(y.dtype, shape=y_shape)
    gradients = tf.compat.v1.gradients(y, tensors, dy)
    results = []
    for tensor, gradient, array in zip(tensors, gradients, arrays, strict=True):
        others = feeds | {t: a for t, a in zip(tensors, arrays, strict=True) if t is not tensor}
        column = np.zeros(y_shape, y.dtype.as_numpy_dtype)
        rows = [
            _gradients.view_as_reals(
                _densify(session.run(gradient, others | {tensor: array, dy: unit}), array)
            )
            for unit in _gradients.perturb(column, 1)
        ]
        size = _gradients.view_as_reals(array).size
        exact = (
            np.stack(rows, 1)
            if rows
            else np.zeros((size, 0), _gradients.view_as_reals(array).dtype)
        )
        differences = [
            _gradients.view_as_reals(
                session.run(y, others | {tensor: up}) - session.run(y, others | {tensor: down})
            )
            / (2 * delta)
            for up, down in zip(
                _gradients.perturb(array, delta), _gradients.perturb(array, -delta), strict=True
            )
        ]
        results.append((exact, np.stack(differences) if differences else np.zeros_like(exact)))
    return results if is_list else results[0]


def compute_gradient_error(*args: PyTree, **kwargs: PyTree) -> float:
    """Return the largest difference of the Jacobians of `compute_gradient`, which has the same arguments."""
    results = compute_gradient(*args, **kwargs)
    pairs = results if isinstance(results, list) else [results]
    return _gradients.find_max_error(*zip(*pairs, strict=True))


def compute_function_gradient(
    f: Callable[..., PyTree], x: Sequence[Any], delta: float | None = None
) -> tuple[tuple[np.ndarray, ...], tuple[np.ndarray, ...]]:
    """Compute Jacobians of a function as `tf.test.compute_gradient`, and in a graph by its default session."""
    session = tf.compat.v1.get_default_session()
    if session is None:
        exact, numeric = tf.test.compute_gradient(f, x, delta)
        return exact, numeric
    arrays = session.run([tf.convert_to_tensor(v) for v in x])
    inputs = [tf.compat.v1.placeholder(a.dtype, a.shape) for a in arrays]
    y = tf.convert_to_tensor(f(*inputs))
    shapes = [a.shape for a in arrays]
    size = session.run(tf.shape(y), dict(zip(inputs, arrays, strict=True)))
    pairs = compute_gradient(inputs, shapes, y, size, arrays, delta or 1.0 / 1024)
    return tuple(e.T for e, _ in pairs), tuple(n.T for _, n in pairs)


def _densify(gradient: PyTree, like: np.ndarray) -> np.ndarray:
    if not hasattr(gradient, "indices"):
        return np.asarray(gradient)
    dense = np.zeros_like(like)
    np.add.at(dense, gradient.indices, gradient.values)
    return dense
