"""Weights of layers in files of Keras 1, and of recurrent layers that used cuDNN, in the form of Keras 2."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

_Arrays = list[np.ndarray]


def convert_weights(layer: Any, weights: Sequence[np.ndarray], keras_version: str) -> _Arrays:
    """Convert the stored weights of a layer to the shapes and the order of Keras 2.

    Args:
      layer: The layer, or a wrapper or model with layers.
      weights: The stored arrays.
      keras_version: Version of Keras in the file, "1" if it has none.

    Raises:
      ValueError: If weights of a GRU are those of the other variant (`reset_after`).
    """
    converted, name = list(weights), type(layer).__name__
    if name == "Bidirectional":
        count = len(converted) // 2
        halves = (layer.forward_layer, converted[:count]), (layer.backward_layer, converted[count:])
        return [w for part, arrays in halves for w in convert_weights(part, arrays, keras_version)]
    if name == "TimeDistributed":
        return convert_weights(layer.layer, converted, keras_version)
    if name in ("Model", "Sequential", "Functional"):
        return _convert_nested(layer, converted, keras_version)
    if not (converted and getattr(layer, "weights", None)):
        return converted
    if keras_version == "1" and name in _FROM_KERAS_1:
        converted = _FROM_KERAS_1[name](layer, converted)
    if name in _CONVOLUTIONS and converted[0].ndim == 4:
        # Theano stored kernels as [filters, channels, rows, columns].
        shape, transposed = tuple(layer.weights[0].shape), np.transpose(converted[0], (3, 2, 0, 1))
        if converted[0].shape != shape and transposed.shape == shape:
            count = 2 if name == "ConvLSTM2D" else 1
            converted[:count] = [np.transpose(w, (3, 2, 0, 1)) for w in converted[:count]]
    num_gates = {"LSTM": 4, "CuDNNLSTM": 4, "GRU": 3, "CuDNNGRU": 3}.get(name)
    return converted if num_gates is None else _convert_recurrent(layer, converted, num_gates)


def _convert_nested(model: Any, weights: _Arrays, keras_version: str) -> _Arrays:
    """Convert the weights of a model in a model: the trainable ones of all layers precede the other ones."""
    layers = [layer for layer in model.layers if layer.weights]
    counts = [len(layer.trainable_weights) for layer in layers]
    counts += [len(layer.non_trainable_weights) for layer in layers]
    if sum(counts) != len(weights):
        return weights
    pieces = iter(np.cumsum([0, *counts]).tolist())
    start, groups = next(pieces), []
    for stop in pieces:
        groups.append(weights[start:stop])
        start = stop
    trained, frozen = groups[: len(layers)], groups[len(layers) :]
    parts = [
        convert_weights(layer, first + second, keras_version)
        for layer, first, second in zip(layers, trained, frozen, strict=True)
    ]
    sizes = counts[: len(layers)]
    return [w for part, n in zip(parts, sizes, strict=True) for w in part[:n]] + [
        w for part, n in zip(parts, sizes, strict=True) for w in part[n:]
    ]


def _convert_convolution_1d(layer: Any, weights: _Arrays) -> _Arrays:
    kernel = weights[0]
    if kernel.ndim != 4:
        return weights
    if kernel.shape[:2] != (layer.kernel_size[0], 1) or kernel.shape[3] != layer.filters:
        kernel = np.transpose(kernel, (2, 3, 1, 0))
    return [kernel[:, 0], *weights[1:]]


def _make_transposition(first: Sequence[int] | None, last: Sequence[int] | None) -> Callable[[Any, _Arrays], _Arrays]:  # fmt: skip
    """Return a function that transposes a kernel by the axes for `channels_first` and `channels_last`."""

    def transpose(layer: Any, weights: _Arrays) -> _Arrays:
        axes = first if layer.data_format == "channels_first" else last
        return weights if axes is None else [np.transpose(weights[0], axes), *weights[1:]]

    return transpose


def _join_gates(weights: _Arrays, order: Sequence[int]) -> _Arrays:
    """Join the kernels, recurrent kernels and biases of gates, which Keras 1 stored gate by gate."""
    if len(weights) != 3 * len(order):
        return weights
    return [np.concatenate([weights[3 * g + kind] for g in order], axis=-1) for kind in range(3)]


# Keras 1 ordered the gates of an LSTM as input, cell, forget, output.
_LSTM_GATES = (0, 2, 1, 3)


def _convert_convolutional_lstm(layer: Any, weights: _Arrays) -> _Arrays:
    joined = _join_gates(weights, _LSTM_GATES)
    if layer.data_format == "channels_first":
        joined[:2] = [np.transpose(w, (2, 3, 1, 0)) for w in joined[:2]]
    return joined


_FROM_KERAS_1: dict[str, Callable[[Any, _Arrays], _Arrays]] = {
    "Conv1D": _convert_convolution_1d,
    "Conv2D": _make_transposition((2, 3, 1, 0), None),
    "Conv2DTranspose": _make_transposition((2, 3, 0, 1), (0, 1, 3, 2)),
    "Conv3D": _make_transposition((2, 3, 4, 1, 0), None),
    "GRU": lambda layer, weights: _join_gates(weights, (0, 1, 2)),
    "LSTM": lambda layer, weights: _join_gates(weights, _LSTM_GATES),
    "ConvLSTM2D": _convert_convolutional_lstm,
}
_CONVOLUTIONS = ("Conv1D", "Conv2D", "Conv3D", "Conv2DTranspose", "ConvLSTM2D")


def _convert_recurrent(layer: Any, weights: _Arrays, num_gates: int) -> _Arrays:
    """Convert the weights of cuDNN: transposed kernels, and two biases in one vector."""
    if len(weights) != 3:
        return weights
    kernel, recurrent, bias = weights
    width = layer.units * num_gates
    if bias.shape not in ((width,), (2, width), (2 * width,)):
        return weights
    if num_gates == 3:
        resets_after = bias.shape != (width,)
        if resets_after != bool(layer.reset_after):
            source, target = (f"GRU(reset_after={x})" for x in (resets_after, layer.reset_after))
            raise ValueError(f"{source} is not compatible with {target}")
    if bias.shape != (2 * width,):
        return weights
    kernel = np.hstack([k.T.reshape(k.shape, order="F") for k in np.hsplit(kernel, num_gates)])
    recurrent = np.hstack([k.T for k in np.hsplit(recurrent, num_gates)])
    biases = bias.reshape(2, -1)
    return [kernel, recurrent, biases if num_gates == 3 else biases.sum(axis=0)]
