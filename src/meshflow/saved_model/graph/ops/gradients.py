"""Gradient ops, and optimizer updates of variables, in functions that train."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from meshflow.core.runtime.errors import UnimplementedError
from meshflow.environment.types import Array
from meshflow.ops.nn.cross_entropy import compute_cross_entropy
from meshflow.saved_model.graph.format.node_attributes import (
    GraphNode,
    as_host_array,
    as_static_ints,
    is_static,
)
from meshflow.saved_model.graph.ops.arrays import ARRAY_OPS
from meshflow.saved_model.graph.ops.networks import NETWORK_OPS

if TYPE_CHECKING:
    from meshflow.saved_model.graph.ops.control_flow import GraphInterpreter


def _find_broadcast_axes(node: GraphNode, a: Array, b: Array) -> list[np.ndarray]:
    """Return the axes to sum the gradients of two operands over, after the operands were broadcast."""
    first, second = as_static_ints(a), as_static_ints(b)
    rank = max(len(first), len(second))
    first, second = ([1] * (rank - len(s)) + s for s in (first, second))
    pairs = list(zip(first, second, strict=True))
    return [
        np.array([i for i, (x, y) in enumerate(pairs) if x == 1], np.int32),
        np.array([i for i, (x, y) in enumerate(pairs) if y == 1], np.int32),
    ]


def _stitch(node: GraphNode, *inputs: Array) -> Array:
    """Interleave rows of several arrays by their indices. The last row of an index wins."""
    indices, parts = inputs[: node["N"]], inputs[node["N"] :]
    order = np.concatenate([as_host_array(p).reshape(-1) for p in indices])
    library = np if is_static(*parts) else jnp
    inner = np.shape(parts[0])[np.ndim(indices[0]) :]
    rows = library.concatenate([library.reshape(p, (-1, *inner)) for p in parts])
    last = {int(index): i for i, index in enumerate(order)}
    rows_by_index = np.array([last.get(i, -1) for i in range(int(order.max(initial=-1)) + 1)], int)
    if (rows_by_index < 0).any():
        raise UnimplementedError(
            f"node {node.name}: DynamicStitch without a row for each index is not supported"
        )
    return rows[rows_by_index]


def _compute_vjp(forward: Callable[..., Any], x: Array, gradient: Array) -> Array:
    """Return the gradient of a function of one array."""
    return jax.vjp(forward, jnp.asarray(x))[1](jnp.asarray(gradient))[0]


def _make_activation_gradient(op: str) -> Callable[..., Any]:
    """Return the gradient op of an activation that takes the inputs of the activation."""
    return lambda node, gradient, x: _compute_vjp(lambda v: NETWORK_OPS[op](node, v), x, gradient)


def _sum_bias_gradient(node: GraphNode, gradient: Array) -> Array:
    channels = 1 if node["data_format"] == b"NCHW" else np.ndim(gradient) - 1
    return jnp.sum(gradient, [i for i in range(np.ndim(gradient)) if i != channels])


def _make_kernel_gradient(op: str) -> Callable[..., Any]:
    def run(node: GraphNode, x: Array, shape: Array, gradient: Array) -> Array:
        kernel = jax.ShapeDtypeStruct(tuple(as_static_ints(shape)), x.dtype)
        transpose = jax.linear_transpose(lambda k: NETWORK_OPS[op](node, x, k), kernel)
        return transpose(gradient)[0]

    return run


def _compute_depthwise_input_gradient(
    node: GraphNode, shape: Array, kernel: Array, gradient: Array
) -> Array:
    x = jax.ShapeDtypeStruct(tuple(as_static_ints(shape)), gradient.dtype)
    convolve = NETWORK_OPS["DepthwiseConv2dNative"]
    return jax.linear_transpose(lambda v: convolve(node, v, kernel), x)(gradient)[0]


def _compute_max_pool_gradient(node: GraphNode, x: Array, y: Array, gradient: Array) -> Array:
    return _compute_vjp(lambda v: NETWORK_OPS["MaxPool"](node, v), x, gradient)


def _compute_average_pool_gradient(node: GraphNode, shape: Array, gradient: Array) -> Array:
    zeros = jnp.zeros(as_static_ints(shape), gradient.dtype)
    return _compute_vjp(lambda v: NETWORK_OPS["AvgPool"](node, v), zeros, gradient)


def _compute_slice_gradient(
    node: GraphNode, shape: Array, begin: Array, end: Array, strides: Array, gradient: Array
) -> Array:
    zeros = jnp.zeros(as_static_ints(shape), gradient.dtype)
    return _compute_vjp(
        lambda v: ARRAY_OPS["StridedSlice"](node, v, begin, end, strides), zeros, gradient
    )


def _compute_batch_norm_gradient(
    node: GraphNode, gradient: Array, x: Array, scale: Array, *statistics: Array
) -> list[Any]:
    def forward(v: Array, scale: Array, offset: Array) -> Array:
        mean, variance = jnp.asarray(statistics[0]), jnp.asarray(statistics[1])
        return NETWORK_OPS["FusedBatchNormV3"](node, v, scale, offset, mean, variance)[0]

    _, back = jax.vjp(forward, jnp.asarray(x), jnp.asarray(scale), jnp.zeros_like(scale))
    empty = jnp.zeros((0,), scale.dtype)
    return [*back(jnp.asarray(gradient)), empty, empty]


def _compute_cross_entropy(node: GraphNode, logits: Array, labels: Array) -> list[Any]:
    logs = jax.nn.log_softmax(jnp.asarray(logits))
    losses = compute_cross_entropy(jnp.asarray(labels), jnp.asarray(logits), -1)
    return [losses, jnp.exp(logs) - labels]


def _compute_sparse_cross_entropy(node: GraphNode, logits: Array, classes: Array) -> list[Any]:
    hot = jax.nn.one_hot(classes, np.shape(logits)[-1], dtype=logits.dtype)
    return _compute_cross_entropy(node, logits, hot)


GRADIENT_OPS: dict[str, Callable[..., Any]] = {
    "BroadcastGradientArgs": _find_broadcast_axes,
    **dict.fromkeys(("DynamicStitch", "ParallelDynamicStitch"), _stitch),
    **{
        f"{op}Grad": _make_activation_gradient(op)
        for op in ("Relu", "Relu6", "LeakyRelu", "Softplus", "Softsign")
    },
    "EluGrad": lambda node, g, y: jnp.where(y < 0, g * (y + 1), g),
    "SigmoidGrad": lambda node, y, g: g * y * (1 - y),
    "TanhGrad": lambda node, y, g: g * (1 - y * y),
    "SqrtGrad": lambda node, y, g: g / (2 * y),
    "RsqrtGrad": lambda node, y, g: -g * y**3 / 2,
    "ReciprocalGrad": lambda node, y, g: -g * y * y,
    "InvGrad": lambda node, y, g: -g * y * y,
    "IgammaGradA": lambda node, a, x: jax.lax.igamma_grad_a(*jnp.broadcast_arrays(a, x)),
    "RandomGammaGrad": lambda node, a, y: jax.lax.random_gamma_grad(*jnp.broadcast_arrays(a, y)),
    "BiasAddGrad": _sum_bias_gradient,
    "Conv2DBackpropFilter": _make_kernel_gradient("Conv2D"),
    "Conv3DBackpropFilterV2": _make_kernel_gradient("Conv3D"),
    "DepthwiseConv2dNativeBackpropFilter": _make_kernel_gradient("DepthwiseConv2dNative"),
    "DepthwiseConv2dNativeBackpropInput": _compute_depthwise_input_gradient,
    "MaxPoolGrad": _compute_max_pool_gradient,
    "AvgPoolGrad": _compute_average_pool_gradient,
    "StridedSliceGrad": _compute_slice_gradient,
    "FusedBatchNormGradV3": _compute_batch_norm_gradient,
    "SoftmaxCrossEntropyWithLogits": _compute_cross_entropy,
    "SparseSoftmaxCrossEntropyWithLogits": _compute_sparse_cross_entropy,
}


# ---- variables ---------------------------------------------------------------------------


def _apply_gradient_descent(
    run: GraphInterpreter, node: GraphNode, variable: object, rate: Array, gradient: Array
) -> list[Any]:
    run.write(variable, run.read(variable) - rate * gradient)
    return []


def _apply_momentum(
    run: GraphInterpreter, node: GraphNode, variable: object, sums: object, *options: Array
) -> list[Any]:
    rate, gradient, momentum = options
    total = run.read(sums) * momentum + gradient
    run.write(sums, total)
    step = gradient * rate + total * momentum * rate if node["use_nesterov"] else total * rate
    run.write(variable, run.read(variable) - step)
    return []


def _apply_keras_momentum(
    run: GraphInterpreter, node: GraphNode, variable: object, sums: object, *options: Array
) -> list[Any]:
    rate, gradient, momentum = options
    total = run.read(sums) * momentum - gradient * rate
    run.write(sums, total)
    step = total * momentum - gradient * rate if node["use_nesterov"] else total
    run.write(variable, run.read(variable) + step)
    return []


def _apply_adam(
    run: GraphInterpreter, node: GraphNode, variable: object, m: object, v: object, *options: Any
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


def _make_scatter_update(method: str) -> Callable[..., Any]:
    def update(
        run: GraphInterpreter, node: GraphNode, variable: object, rows: Array, updates: Array
    ) -> list[Any]:
        run.write(variable, getattr(run.read(variable).at[jnp.asarray(rows)], method)(updates))
        return []

    return update


# The first argument of these functions is the run, which provides access to variables.
UPDATE_OPS: dict[str, Callable[..., Any]] = {
    "ResourceApplyGradientDescent": _apply_gradient_descent,
    "ResourceApplyMomentum": _apply_momentum,
    "ResourceApplyKerasMomentum": _apply_keras_momentum,
    "ResourceApplyAdam": _apply_adam,
    "ResourceScatterUpdate": _make_scatter_update("set"),
    "ResourceScatterAdd": _make_scatter_update("add"),
    "ResourceScatterMax": _make_scatter_update("max"),
    "ResourceScatterMin": _make_scatter_update("min"),
}
