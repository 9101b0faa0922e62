"""What TensorFlow writes for gradients and updates of optimizers into functions that train."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from meshflow.core.runtime.errors import UnimplementedError
from meshflow.saved_model.graph.attributes import Node, is_known, numbers, on_host
from meshflow.saved_model.graph.ops.arrays import ARRAYS
from meshflow.saved_model.graph.ops.networks import NETWORKS

__all__ = ["GRADIENTS", "UPDATES"]


def _summed_axes(node: Node, a: Any, b: Any) -> list[np.ndarray]:
    """Which axes the gradients of two operands are summed over, after these were broadcast."""
    first, second = numbers(a), numbers(b)
    rank = max(len(first), len(second))
    first, second = ([1] * (rank - len(s)) + s for s in (first, second))
    pairs = list(zip(first, second, strict=True))
    return [
        np.array([i for i, (x, y) in enumerate(pairs) if x == 1], np.int32),
        np.array([i for i, (x, y) in enumerate(pairs) if y == 1], np.int32),
    ]


def _stitched(node: Node, *given: Any) -> Any:
    """Rows of several arrays at the places that are said, such as sizes of which some were summed over."""
    places, parts = given[: node["N"]], given[node["N"] :]
    order = np.concatenate([on_host(p).reshape(-1) for p in places])
    library = np if is_known(*parts) else jnp
    inner = np.shape(parts[0])[np.ndim(places[0]) :]
    rows = library.concatenate([library.reshape(p, (-1, *inner)) for p in parts])
    # Of a place that is said twice, the last counts.
    last = {int(place): i for i, place in enumerate(order)}
    chosen = np.array([last.get(i, -1) for i in range(int(order.max(initial=-1)) + 1)], int)
    if (chosen < 0).any():
        raise UnimplementedError(f"node {node.name}: rows that are at no place are not known")
    return rows[chosen]


def _of(forward: Callable[..., Any], x: Any, gradient: Any) -> Any:
    """The gradient of a function of one array."""
    return jax.vjp(forward, jnp.asarray(x))[1](jnp.asarray(gradient))[0]


def _of_activation(op: str) -> Callable[..., Any]:
    """Those that are given the features."""
    return lambda node, gradient, x: _of(lambda v: NETWORKS[op](node, v), x, gradient)


def _bias(node: Node, gradient: Any) -> Any:
    channels = 1 if node["data_format"] == b"NCHW" else np.ndim(gradient) - 1
    return jnp.sum(gradient, [i for i in range(np.ndim(gradient)) if i != channels])


def _of_kernel(op: str) -> Callable[..., Any]:
    def run(node: Node, x: Any, shape: Any, gradient: Any) -> Any:
        kernel = jax.ShapeDtypeStruct(tuple(numbers(shape)), x.dtype)
        transpose = jax.linear_transpose(lambda k: NETWORKS[op](node, x, k), kernel)
        return transpose(gradient)[0]

    return run


def _of_depthwise_input(node: Node, shape: Any, kernel: Any, gradient: Any) -> Any:
    x = jax.ShapeDtypeStruct(tuple(numbers(shape)), gradient.dtype)
    convolve = NETWORKS["DepthwiseConv2dNative"]
    return jax.linear_transpose(lambda v: convolve(node, v, kernel), x)(gradient)[0]


def _of_largest(node: Node, x: Any, y: Any, gradient: Any) -> Any:
    return _of(lambda v: NETWORKS["MaxPool"](node, v), x, gradient)


def _of_average(node: Node, shape: Any, gradient: Any) -> Any:
    zeros = jnp.zeros(numbers(shape), gradient.dtype)
    return _of(lambda v: NETWORKS["AvgPool"](node, v), zeros, gradient)


def _of_slice(node: Node, shape: Any, begin: Any, end: Any, strides: Any, gradient: Any) -> Any:
    zeros = jnp.zeros(numbers(shape), gradient.dtype)
    return _of(lambda v: ARRAYS["StridedSlice"](node, v, begin, end, strides), zeros, gradient)


def _of_normalization(node: Node, gradient: Any, x: Any, scale: Any, *kept: Any) -> list[Any]:
    def forward(v: Any, by: Any, offset: Any) -> Any:
        mean, variance = jnp.asarray(kept[0]), jnp.asarray(kept[1])
        return NETWORKS["FusedBatchNormV3"](node, v, by, offset, mean, variance)[0]

    _, back = jax.vjp(forward, jnp.asarray(x), jnp.asarray(scale), jnp.zeros_like(scale))
    nothing = jnp.zeros((0,), scale.dtype)
    return [*back(jnp.asarray(gradient)), nothing, nothing]


def _cross_entropy(node: Node, logits: Any, labels: Any) -> list[Any]:
    logs = jax.nn.log_softmax(jnp.asarray(logits))
    return [-jnp.sum(labels * logs, -1), jnp.exp(logs) - labels]


def _cross_entropy_of_classes(node: Node, logits: Any, classes: Any) -> list[Any]:
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


def _descent(run: Any, node: Node, variable: Any, rate: Any, gradient: Any) -> list[Any]:
    run.write(variable, run.read(variable) - rate * gradient)
    return []


def _momentum(
    run: Any, node: Node, variable: Any, sums: Any, rate: Any, gradient: Any, share: Any
) -> list[Any]:
    total = run.read(sums) * share + gradient
    run.write(sums, total)
    step = gradient * rate + total * share * rate if node["use_nesterov"] else total * rate
    run.write(variable, run.read(variable) - step)
    return []


def _keras_momentum(
    run: Any, node: Node, variable: Any, sums: Any, rate: Any, gradient: Any, share: Any
) -> list[Any]:
    total = run.read(sums) * share - gradient * rate
    run.write(sums, total)
    step = total * share - gradient * rate if node["use_nesterov"] else total
    run.write(variable, run.read(variable) + step)
    return []


def _adam(run: Any, node: Node, variable: Any, m: Any, v: Any, *more: Any) -> list[Any]:
    first_power, second_power, rate, first, second, epsilon, gradient = more
    run.write(m, run.read(m) * first + gradient * (1 - first))
    run.write(v, run.read(v) * second + jnp.square(gradient) * (1 - second))
    scale = rate * jnp.sqrt(1 - second_power) / (1 - first_power)
    mean = run.read(m)
    if node["use_nesterov"]:
        mean = mean * first + gradient * (1 - first)
    run.write(variable, run.read(variable) - scale * mean / (jnp.sqrt(run.read(v)) + epsilon))
    return []


def _at_rows(how: str) -> Callable[..., Any]:
    def run_it(run: Any, node: Node, variable: Any, rows: Any, updates: Any) -> list[Any]:
        run.write(variable, getattr(run.read(variable).at[jnp.asarray(rows)], how)(updates))
        return []

    return run_it


# What these take first is a run, as all that has variables.
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
