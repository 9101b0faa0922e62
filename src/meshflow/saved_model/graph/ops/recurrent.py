"""Recurrent ops that compute a step or a sequence at once, with gates in one product."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from jax import lax

from meshflow.core.runtime.errors import InvalidArgumentError, UnimplementedError
from meshflow.environment.types import Array
from meshflow.saved_model.graph.format.node_attributes import GraphNode

# The hidden state and the cell.
_State: TypeAlias = tuple[Array, Array]
_LSTM_OUTPUTS = ("i", "cs", "f", "o", "ci", "co", "h")
_CUDNN_OUTPUTS = ("output", "output_h", "output_c", "reserve_space")
RECURRENT_OUTPUTS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("LSTMBlockCell", "BlockLSTM", "BlockLSTMV2"), _LSTM_OUTPUTS),
    "GRUBlockCell": ("r", "u", "c", "h"),
    "CudnnRNN": _CUDNN_OUTPUTS,
    **dict.fromkeys(("CudnnRNNV2", "CudnnRNNV3"), (*_CUDNN_OUTPUTS, "host_reserved")),
}


def _make_lstm_step(
    node: GraphNode, weights: tuple[Array, ...]
) -> Callable[[Array, Array, Array], list[Array]]:
    """Return a step of an LSTM, which maps an input, the cell and the hidden state to the seven outputs.

    Version 1 of the ops orders the gates as input, cell, forget, output, and adds a bias to the forget gate. Version 2
    orders them as input, forget, cell, output.
    """
    w, wci, wcf, wco, b = weights
    is_v2, limit, has_peephole = node.op == "BlockLSTMV2", node["cell_clip"], node["use_peephole"]

    def step(x: Array, cs_prev: Array, h_prev: Array) -> list[Array]:
        gates = jnp.split(jnp.concatenate([x, h_prev], 1) @ w + b, 4, axis=1)
        i, f, ci, o = gates if is_v2 else (gates[0], gates[2] + node["forget_bias"], *gates[1::2])
        if has_peephole:
            i, f = i + cs_prev * wci, f + cs_prev * wcf
        i, f, ci = jax.nn.sigmoid(i), jax.nn.sigmoid(f), jnp.tanh(ci)
        cs = i * ci + f * cs_prev
        if limit > 0:
            cs = jnp.clip(cs, -limit, limit)
        o = jax.nn.sigmoid(o + cs * wco if has_peephole else o)
        co = jnp.tanh(cs)
        return [i, cs, f, o, ci, co, o * co]

    return step


def _run_lstm_cell(
    node: GraphNode, x: Array, cs_prev: Array, h_prev: Array, *weights: Array
) -> list[Array]:
    return _make_lstm_step(node, weights)(x, cs_prev, h_prev)


def _run_lstm(
    node: GraphNode, seq_len_max: Array, x: Array, cs_prev: Array, h_prev: Array, *weights: Array
) -> list[Array]:
    """Compute all steps; those from `seq_len_max` on are zero."""
    step = _make_lstm_step(node, weights)

    def advance(state: _State, step_input: Any) -> tuple[_State, list[Array]]:
        outputs = step(step_input, *state)
        return (outputs[1], outputs[-1]), outputs

    _, outputs = lax.scan(advance, (cs_prev, h_prev), x)
    is_used = (jnp.arange(x.shape[0]) < seq_len_max)[:, None, None]
    return [jnp.where(is_used, output, 0) for output in outputs]


def _run_gru_cell(
    node: GraphNode, x: Array, h_prev: Array, w_ru: Array, w_c: Array, b_ru: Array, b_c: Array
) -> list[Array]:
    r, u = jnp.split(jax.nn.sigmoid(jnp.concatenate([x, h_prev], 1) @ w_ru + b_ru), 2, axis=1)
    c = jnp.tanh(jnp.concatenate([x, h_prev * r], 1) @ w_c + b_c)
    return [r, u, c, (1 - u) * c + u * h_prev]


def _advance_cudnn_lstm(parts: Sequence[Array], h: Array, c: Array) -> tuple[Array, Array]:
    i, f, g, o = parts
    c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
    return jax.nn.sigmoid(o) * jnp.tanh(c), c


# Number of gates by the mode of cuDNN.
_NUM_GATES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}


def _run_direction(
    mode: str, x: Array, h: Array, c: Array, layer: tuple[Array, ...], lengths: Array | None
) -> tuple[Array, Array, Array]:
    """Run one direction of one layer, and return its outputs and its last states."""
    w, r, b_w, b_r = layer
    count = _NUM_GATES[mode]

    def advance(state: _State, step: tuple[Array, Array]) -> tuple[_State, Array]:
        (h, c), (products, position) = state, step
        recurrent = jnp.split(h @ r.T + b_r, count, axis=1)
        inputs = jnp.split(products, count, axis=1)
        if mode == "lstm":
            parts = [a + b for a, b in zip(inputs, recurrent, strict=True)]
            new_h, new_c = _advance_cudnn_lstm(parts, h, c)
        elif mode == "gru":
            reset = jax.nn.sigmoid(inputs[0] + recurrent[0])
            update = jax.nn.sigmoid(inputs[1] + recurrent[1])
            new_h = (1 - update) * jnp.tanh(inputs[2] + reset * recurrent[2]) + update * h
            new_c = c
        else:
            activate = jnp.tanh if mode == "rnn_tanh" else jax.nn.relu
            new_h, new_c = activate(inputs[0] + recurrent[0]), c
        if lengths is None:
            return (new_h, new_c), new_h
        is_used = (position < lengths)[:, None]
        state = jnp.where(is_used, new_h, h), jnp.where(is_used, new_c, c)
        return state, jnp.where(is_used, new_h, 0)

    # The products with the inputs of all steps do not depend on each other.
    steps = x @ w.T + b_w, jnp.arange(x.shape[0])
    (h, c), outputs = lax.scan(advance, (h, c), steps)
    return outputs, h, c


def _split_parameters(
    params: Array, count: int, units: int, sizes: list[int], directions: int
) -> list[tuple[Array, ...]]:
    """Return the weights and biases of each direction of each layer; cuDNN stores all weights before all biases."""
    rows = count * units
    needed = directions * sum(rows * (size + units + 2) for size in sizes)
    if params.shape[0] != needed:
        raise InvalidArgumentError(
            f"cuDNN's params have {params.shape[0]} values, but these layers need {needed}. Pass the weights of all "
            "layers, then their biases."
        )
    position = 0

    def take(*shape: int) -> Array:
        nonlocal position
        start, position = position, position + math.prod(shape)
        return params[start:position].reshape(shape)

    weights = [(take(rows, n), take(rows, units)) for n in sizes for _ in range(directions)]
    biases = [(take(rows), take(rows)) for _ in weights]
    return [(*w, *b) for w, b in zip(weights, biases, strict=True)]


def _reverse(x: Array, lengths: Array | None) -> Array:
    """Reverse the first axis, and of each sequence only its own steps."""
    if lengths is None:
        return x[::-1]
    steps = jnp.arange(x.shape[0])[:, None]
    return jnp.take_along_axis(
        x, jnp.where(steps < lengths, lengths - 1 - steps, steps)[:, :, None], 0
    )


def _run_cudnn(
    node: GraphNode,
    x: Array,
    input_h: Array,
    input_c: Array,
    params: Array,
    lengths: Array | None = None,
) -> list[Array]:
    mode, is_bidirectional = node.text("rnn_mode"), node.text("direction") == "bidirectional"
    has_dropout = node["dropout"] > 0 and node["is_training"]
    if has_dropout or node.text("input_mode") == "skip_input":
        raise UnimplementedError(
            f"{node.op} has no dropout and no input_mode='skip_input' here. Use tf.keras.layers.LSTM or GRU."
        )
    if node.op == "CudnnRNNV3":
        if node["num_proj"]:
            raise UnimplementedError("CudnnRNNV3 has no projections here: num_proj must be 0.")
        if not node["time_major"]:
            x, input_h, input_c = (jnp.swapaxes(a, 0, 1) for a in (x, input_h, input_c))
    directions, units = 1 + is_bidirectional, input_h.shape[2]
    num_layers = input_h.shape[0] // directions
    sizes = [x.shape[2], *[directions * units] * (num_layers - 1)]
    layers = _split_parameters(params, _NUM_GATES[mode], units, sizes, directions)
    cells = input_c if mode == "lstm" else jnp.zeros_like(input_h)
    last_h, last_c = [], []
    for first in range(0, len(layers), directions):
        outputs = []
        for k in range(first, first + directions):
            is_reversed = k > first
            inputs = _reverse(x, lengths) if is_reversed else x
            result, h, c = _run_direction(mode, inputs, input_h[k], cells[k], layers[k], lengths)
            outputs.append(_reverse(result, lengths) if is_reversed else result)
            last_h.append(h)
            last_c.append(c)
        x = jnp.concatenate(outputs, axis=2)
    states = [jnp.stack(last_h), jnp.stack(last_c) if mode == "lstm" else jnp.zeros(0, x.dtype)]
    if node.op == "CudnnRNNV3" and not node["time_major"]:
        x = jnp.swapaxes(x, 0, 1)
        states = [jnp.swapaxes(s, 0, 1) if s.ndim == 3 else s for s in states]
    reserved = jnp.zeros(0, x.dtype)
    extra = [] if node.op == "CudnnRNN" else [jnp.zeros(0, jnp.int8)]
    return [x, *states, reserved, *extra]


RECURRENT_OPS: dict[str, Callable[..., Any]] = {
    "LSTMBlockCell": _run_lstm_cell,
    **dict.fromkeys(("BlockLSTM", "BlockLSTMV2"), _run_lstm),
    "GRUBlockCell": _run_gru_cell,
    **dict.fromkeys(("CudnnRNN", "CudnnRNNV2", "CudnnRNNV3"), _run_cudnn),
}
