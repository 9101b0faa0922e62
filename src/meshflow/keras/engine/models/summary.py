"""Table of layers, output shapes and parameter counts for `model.summary()`."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from meshflow.core.variables.variable import Variable
from meshflow.environment.html_tables import format_table
from meshflow.keras.engine.graph.graph import LayerGraph
from meshflow.keras.engine.layer.base_layer import Layer
from meshflow.keras.engine.symbolic.keras_tensor import Node

# A field continues on the next line after one of these.
_BREAK_MARKS = ("),", "},", "],", "',")


class LayerStack(Protocol):
    """Interface of models that a summary uses."""

    @property
    def name(self) -> str:
        """Return the name of the model."""

    @property
    def layers(self) -> Sequence[Layer]:
        """Return the direct sublayers, each a row of the summary."""

    @property
    def trainable_weights(self) -> list[Variable]:
        """Return the weights that training updates, including those of sublayers."""

    @property
    def non_trainable_weights(self) -> list[Variable]:
        """Return the weights that training does not update, including those of sublayers."""


def print_summary(
    model: LayerStack,
    line_length: int | None = None,
    positions: list[float] | None = None,
    print_fn: Callable[[str], Any] | None = None,
    expand_nested: bool = False,
    show_trainable: bool = False,
    layer_range: Sequence[str] | None = None,
) -> None:
    """Print the summary of a model; see `Model.summary` for the arguments."""
    out = print_fn or print

    def write(rows: str) -> None:
        for row in rows.split("\n"):
            out(row)

    graph = getattr(model, "_graph", None)
    linear = graph is None or _is_chain(graph.nodes)
    headings = ["Layer (type)", "Output Shape", "Param #"]
    if linear:
        length = line_length or 65
        stops = positions or [0.45, 0.85, 1.0]
    else:
        length = line_length or 98
        stops = positions or [0.3, 0.6, 0.7, 1.0]
        headings.append("Connected to")
    if show_trainable:
        length += 11
        stops = [*[s * (1 - 11 / length) for s in stops], 1.0]
        headings.append("Trainable")
    # Positions of at most 1 are fractions of a line; others are indices of characters.
    unit = length if stops[-1] <= 1 else 1
    columns = [int(s * unit) for s in stops[: len(headings)]]
    write(f'Model: "{model.name}"')
    write("_" * length)
    write(_format_row(headings, columns))
    write("=" * length)
    for layer in select_layers(model, layer_range):
        _write_layer(write, layer, columns, linear, show_trainable, graph, expand_nested, 0, False)
    write("=" * length)
    write("\n".join(_count_parameters(model)))
    write("_" * length)


def _is_chain(nodes: list[Node]) -> bool:
    """Check whether each call feeds only the next one and no layer is called twice."""
    sources = [id(tensor.node) for node in nodes for tensor in node.keras_inputs]
    starts = sum(not node.keras_inputs for node in nodes)
    layers = {id(node.layer) for node in nodes}
    return starts <= 1 and len(set(sources)) == len(sources) and len(layers) == len(nodes)


def _format_memory(weights: list[Variable]) -> str:
    """Format the memory size of weights in the largest unit in which it is below 1024."""
    size = float(sum(count_scalars([w]) * w.dtype.size for w in weights))
    for unit in ("Byte", "KB", "MB", "GB", "TB"):
        if size < 1024:
            return f"{size:.2f} {unit}"
        size /= 1024
    return f"{size:.2f} PB"


def select_layers(model: LayerStack, layer_range: Sequence[str] | None) -> Sequence[Layer]:
    """Return the layers between two named ones, or all for None."""
    layers = model.layers
    if layer_range is None:
        return layers
    if len(layer_range) != 2:
        raise ValueError(
            f"layer_range must be a list or tuple of length 2. Received: {layer_range!r}"
        )
    names = [layer.name for layer in layers]
    ends = [next((i for i, n in enumerate(names) if re.match(r, n)), None) for r in layer_range]
    if None in ends:
        raise ValueError(
            f"Passed layer_names {layer_range} do not match the layers of the model: {names}."
        )
    low, high = sorted(e for e in ends if e is not None)
    return layers[low : high + 1]


def _write_layer(
    write: Callable[[str], Any],
    layer: Layer,
    columns: list[int],
    linear: bool,
    show_trainable: bool,
    graph: LayerGraph | None,
    expand: bool,
    depth: int,
    is_last: bool,
) -> None:
    """Write the row of a layer; with `expand`, followed by a frame with its sublayers.

    After the last layer in a frame (`is_last`), the end of the frame replaces the empty line.
    """
    fields = [f"{layer.name} ({type(layer).__name__})", *_describe_layer(layer)]
    if not linear:
        fields.append(_format_connections(layer, graph))
    if show_trainable:
        fields.append("Y" if layer.trainable else "N")
    write(_format_row(fields, columns, depth))
    sublayers = select_layers(layer, None) if expand and hasattr(layer, "layers") else []
    bars, width = "|" * depth, columns[-1] - 2 * depth
    if sublayers:
        write(f"{bars}|{'¯' * (width - 2)}|{bars}")
        for sublayer in sublayers:
            _write_layer(
                write,
                sublayer,
                columns,
                linear,
                show_trainable,
                graph,
                expand,
                depth + 1,
                sublayer is sublayers[-1],
            )
        write(f"{bars}{'¯' * width}{bars}")
    elif not is_last:
        write(f"{bars}{' ' * width}{bars}")


def _describe_layer(layer: Layer) -> tuple[str, str]:
    """Return the output shape and the number of parameters as text."""
    try:
        shape = layer.output_shape
    except AttributeError:
        shape = "multiple"
    is_used = layer.built or layer.weights
    return str(shape), str(count_scalars(layer.weights)) if is_used else "0 (unused)"


def format_html(model: LayerStack) -> str:
    """Format the summary of a model as an HTML table."""
    graph = getattr(model, "_graph", None)
    is_chain = graph is None or _is_chain(graph.nodes)
    head = ["Layer", "Type", "Output shape", "Parameters"]
    rows = []
    for layer in model.layers:
        row = [layer.name, type(layer).__name__, *_describe_layer(layer)]
        rows.append(row if is_chain else [*row, _format_connections(layer, graph)])
    caption = f"{type(model).__name__} {model.name!r}"
    notes = _count_parameters(model)
    return format_table(head if is_chain else [*head, "Connected to"], rows, caption, notes)


def _count_parameters(model: LayerStack) -> list[str]:
    """Return a line for the number of all, trainable and other parameters."""
    trainable, non_trainable = model.trainable_weights, model.non_trainable_weights
    groups = {
        "Total": [*trainable, *non_trainable],
        "Trainable": trainable,
        "Non-trainable": non_trainable,
    }
    return [
        f"{label} params: {count_scalars(weights)} ({_format_memory(weights)})"
        for label, weights in groups.items()
    ]


def _format_connections(layer: Layer, graph: LayerGraph | None) -> str:
    relevant = {id(n) for n in graph.nodes} if graph is not None else set()
    texts = []
    for node in layer.inbound_nodes:
        if id(node) in relevant:
            for tensor in node.keras_inputs:
                source, node_index, tensor_index = tensor._keras_history
                texts.append(f"'{source.name}[{node_index}][{tensor_index}]'")
    return "[" + ", ".join(texts) + "]"


def _format_row(fields: list[str], columns: list[int], depth: int = 0) -> str:
    """Format a row: several lines if a field is wider than its column or contains several items."""
    columns = columns[: len(fields)]
    starts, remaining, lines = [0, *columns[:-1]], list(fields), []
    bars = "|" * depth
    while any(remaining):
        line = f"{bars} "
        for i, (start, end) in enumerate(zip(starts, columns, strict=True)):
            final = i == len(columns) - 1
            room = end - start - (0 if final else 3) - (depth if i == 0 else 0)
            text = remaining[i][:room]
            breaks = [text.index(mark) + 2 for mark in _BREAK_MARKS if mark in text]
            text = text[: min(breaks, default=room)]
            remaining[i] = remaining[i][len(text) :]
            line += text.ljust(end - len(line) - (depth if final else 0))
        lines.append(line + bars)
    return "\n".join(lines)


def count_scalars(weights: Sequence[Variable]) -> int:
    """Count the scalars in variables."""
    return sum(int(np.prod(tuple(w.shape), dtype=np.int64)) for w in weights)
