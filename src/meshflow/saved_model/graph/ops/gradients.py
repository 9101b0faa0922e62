"""Gradient ops, and optimizer updates of variables, in functions that train."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from meshflow.core.runtime.errors import UnimplementedError
from meshflow.environment.types import Array
from meshflow.saved_model.graph.attributes import Node, is_known, numbers, on_host
from meshflow.saved_model.graph.ops.arrays import ARRAYS
from meshflow.saved_model.graph.ops.networks import NETWORKS

if TYPE_CHECKING:
    from meshflow.saved_model.graph.control import Interpreter

__all__ = ["GRADIENTS", "UPDATES"]


def _summed_axes(node: Node, a: Array, b: Array) -> list[np.ndarray]:
    """Return the axes to sum the gradients of two operands over, after the operands were broadcast."""
    first, second = numbers(a), numbers(b)
    rank = max(len(first), len(second))
    first, second = ([1] * (rank - len(s)) + s for s in (first, second))
    pairs = list(zip(first, second, strict=True))
    return [
        np.array([i for i, (x, y) in enumerate(pairs) if x == 1], np.int32),
        np.array([i for i, (x, y) in enumerate(pairs) if y == 1], np.int32),
    ]


def _stitched(node: Node, *inputs: Array) -> Array:
    """Interleave rows of several arrays by their indices. The last row of an index wins."""
    indices, parts = inputs[: node["N"]], inputs[node["N"] :]
    order = np.concatenate([on_host(p).reshape(-1) for p in indices])
    library = np if is_known(*parts) else jnp
    inner = np.shape(parts[0])[np.ndim(indices[0]) :]
    rows = library.concatenate([library.reshape(p, (-1, *inner)) for p in parts])
    last = {int(index): i for i, index in enumerate(order)}
    rows_by_index = np.array([last.get(i, -1) for i in range(int(order.max(initial=-1)) + 1)], int)
    if (rows_by_index < 0).any():
        raise UnimplementedError(
            f"node {node.name}: DynamicStitch without a row for each index is not supported"
        )
    return rows[rows_by_index]


def _of(forward: Callable[..., Any], x: Array, gradient: Array) -> Array:
    """Return the gradient of a function of one array."""
    return jax.vjp(forward, jnp.asarray(x))[1](jnp.asarray(gradient))[0]


def _of_activation(op: str) -> Callable[..., Any]:
    """Return the gradient op of an activation that takes the inputs of the activation."""
    return lambda node, gradient, x: _of(lambda v: NETWORKS[op](node, v), x, gradient)


def _bias(node: Node, gradient: Array) -> Array:
    channels = 1 if node["data_format"] == b"NCHW" else np.ndim(gradient) - 1
    return jnp.sum(gradient, [i for i in range(np.ndim(gradient)) if i != channels])


def _of_kernel(op: str) -> Callable[..., Any]:
    def run(node: Node, x: Array, shape: Array, gradient: Array) -> Array:
        kernel = jax.ShapeDtypeStruct(tuple(numbers(shape)), x.dtype)
        transpose = jax.linear_transpose(lambda k: NETWORKS[op](node, x, k), kernel)
        return transpose(gradient)[0]

    return run


def _of_depthwise_input(node: Node, shape: Array, kernel: Array, gradient: Array) -> Array:
    x = jax.ShapeDtypeStruct(tuple(numbers(shape)), gradient.dtype)
    convolve = NETWORKS["DepthwiseConv2dNative"]
    return jax.linear_transpose(lambda v: convolve(node, v, kernel), x)(gradient)[0]


def _of_largest(node: Node, x: Array, y: Array, gradient: Array) -> Array:
    return _of(lambda v: NETWORKS["MaxPool"](node, v), x, gradient)


def _of_average(node: Node, shape: Array, gradient: Array) -> Array:
    zeros = jnp.zeros(numbers(shape), gradient.dtype)
    return _of(lambda v: NETWORKS["AvgPool"](node, v), zeros, gradient)


def _of_slice(
    node: Node, shape: Array, begin: Array, end: Array, strides: Array, gradient: Array
) -> Array:
    zeros = jnp.zeros(numbers(shape), gradient.dtype)
    return _of(lambda v: ARRAYS["StridedSlice"](node, v, begin, end, strides), zeros, gradient)


def _of_normalization(
    node: Node, gradient: Array, x: Array, scale: Array, *statistics: Array
) -> list[Any]:
    def forward(v: Array, scale: Array, offset: Array) -> Array:
        mean, variance = jnp.asarray(statistics[0]), jnp.asarray(statistics[1])
        return NETWORKS["FusedBatchNormV3"](node, v, scale, offset, mean, variance)[0]

    _, back = jax.vjp(forward, jnp.asarray(x), jnp.asarray(scale), jnp.zeros_like(scale))
    empty = jnp.zeros((0,), scale.dtype)
    return [*back(jnp.asarray(gradient)), empty, empty]


def _cross_entropy(node: Node, logits: Array, labels: Array) -> list[Any]:
    logs = jax.nn.log_softmax(jnp.asarray(logits))
    return [-jnp.sum(labels * logs, -1), jnp.exp(logs) - labels]


def _cross_entropy_of_classes(node: Node, logits: Array, classes: Array) -> list[Any]:
    hot = jax.nn.one_hot(classes, np.shape(logits)[-1], dtype=logits.dtype)
    return _cross_entropy(node, logits, hot)


GRADIENTS: dict[str, Callable[..., Any]] = {
    "BroadcastGradientArgs": _summed_axes,
    **dict.fromkeys(("DynamicStitch", "ParallelDynamicStitch"), _stitched),
    **{
        f"{op}Grad": _of_activation(op)
        for op in ("Relu", "Relu6", "LeakyRelu", "Softplus", "Softsign")
    },
    "EluGrad": lambda node, g, y: jnp.where(y < 0, g * (y + 1), g),
    "SigmoidGrad": lambda node, y, g: g * y * (1 - y),
    "TanhGrad": lambda node, y, g: g * (1 - y * y),
    "SqrtGrad": lambda node, y, g: g / (2 * y),
    "RsqrtGrad": lambda node, y, g: -g * y**3 / 2,
    "ReciprocalGrad": lambda node, y, g: -g * y * y,
    "InvGrad": lambda node, y, g: -g * y * y,
    "BiasAddGrad": _bias,
    "Conv2DBackpropFilter": _of_kernel("Conv2D"),
    "Conv3DBackpropFilterV2": _of_kernel("Conv3D"),
    "DepthwiseConv2dNativeBackpropFilter": _of_kernel("DepthwiseConv2dNative"),
    "DepthwiseConv2dNativeBackpropInput": _of_depthwise_input,
    "MaxPoolGrad": _of_largest,
    "AvgPoolGrad": _of_average,
    "StridedSliceGrad": _of_slice,
    "FusedBatchNormGradV3": _of_normalization,
    "SoftmaxCrossEntropyWithLogits": _cross_entropy,
    "SparseSoftmaxCrossEntropyWithLogits": _cross_entropy_of_classes,
}


# ---- variables ---------------------------------------------------------------------------


def _descent(
    run: Interpreter, node: Node, variable: object, rate: Array, gradient: Array
) -> list[Any]:
    run.write(variable, run.read(variable) - rate * gradient)
    return []


def _momentum(
    run: Interpreter, node: Node, variable: object, sums: object, *options: Array
) -> list[Any]:
    rate, gradient, momentum = options
    total = run.read(sums) * momentum + gradient
    run.write(sums, total)
    step = gradient * rate + total * momentum * rate if node["use_nesterov"] else total * rate
    run.write(variable, run.read(variable) - step)
    return []


def _keras_momentum(
    run: Interpreter, node: Node, variable: object, sums: object, *options: Array
) -> list[Any]:
    rate, gradient, momentum = options
    total = run.read(sums) * momentum - gradient * rate
    run.write(sums, total)
    step = total * momentum - gradient * rate if node["use_nesterov"] else total
    run.write(variable, run.read(variable) + step)
    return []


def _adam(
    run: Interpreter, node: Node, variable: object, m: object, v: object, *options: Any
) -> list[Any]:
    beta_1_power, beta_2_power, rate, beta_1, beta_2, epsilon, gradient = options
    run.write(m, run.read(m) * beta_1 + gradient * (1 - beta_1))
    run.write(v, run.read(v) * beta_2 + jnp.square(gradient) * (1 - beta_2))
    scale = rate * jnp.sqrt(1 - beta_2_power) / (1 - beta_1_power)
    mean = run.read(m)
    if node["use_nesterov"]:
        mean = mean * beta_1 + gradient * (1 - beta_1)
    run.write(variable, run.read(variable) - scale * mean / (jnp.sqrt(run.read(v)) + epsilon))
    return []


def _at_rows(method: str) -> Callable[..., Any]:
    def update(
        run: Interpreter, node: Node, variable: object, rows: Array, updates: Array
    ) -> list[Any]:
        run.write(variable, getattr(run.read(variable).at[jnp.asarray(rows)], method)(updates))
        return []

    return update


# The first argument of these functions is the run, which provides access to variables.
UPDATES: dict[str, Callable[..., Any]] = {
    "ResourceApplyGradientDescent": _descent,
    "ResourceApplyMomentum": _momentum,
    "ResourceApplyKerasMomentum": _keras_momentum,
    "ResourceApplyAdam": _adam,
    "ResourceScatterUpdate": _at_rows("set"),
    "ResourceScatterAdd": _at_rows("add"),
    "ResourceScatterMax": _at_rows("max"),
    "ResourceScatterMin": _at_rows("min"),
}
