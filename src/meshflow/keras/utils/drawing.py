"""Models as drawings: a box for each layer, an arrow for each tensor that goes from one to another."""

from __future__ import annotations

import os
import sys
from typing import Any

from meshflow.environment import extras
from meshflow.files.paths import is_remote, text
from meshflow.files.replacing import replacing
from meshflow.keras.engine.models.summary import chosen_layers

__all__ = ["model_to_dot", "plot_model"]

_HELP = (
    "You must install pydot (`pip install pydot`, or 'meshflow[plots]') and install graphviz (see "
    "instructions at https://graphviz.gitlab.io/download/) for plot_model to work."
)


def _pydot() -> Any:
    try:
        return extras.load("pydot", "plots", "plot_model needs pydot")
    except ImportError:
        return None


def _refuse() -> None:
    """Says what is missing: in a notebook, whose other cells may go on, by a line of text.

    Raises:
      ImportError: elsewhere.
    """
    if "IPython.core.magics.namespace" not in sys.modules:
        raise ImportError(_HELP)
    print(_HELP)


def model_to_dot(
    model: Any,
    show_shapes: bool = False,
    show_dtype: bool = False,
    show_layer_names: bool = True,
    rankdir: str = "TB",
    expand_nested: bool = False,
    dpi: float | None = 96,
    subgraph: bool = False,
    layer_range: Any = None,
    show_layer_activations: bool = False,
    show_trainable: bool = False,
) -> Any:
    """A model as a graph of pydot's.

    Args:
      model: the model, which must be built.
      show_shapes: whether shapes of inputs and outputs are shown.
      show_dtype: whether dtypes are shown.
      show_layer_names: whether layers' names are shown.
      rankdir: 'TB' from top to bottom, 'LR' from left to right.
      expand_nested: whether models in the model are drawn as graphs.
      dpi: dots per inch.
      subgraph: whether to return a `pydot.Cluster`, to be put into another graph.
      layer_range: names (or expressions that match them) of the first and the last layer to draw.
      show_layer_activations: whether activations are shown.
      show_trainable: whether it is shown which layers are trained.

    Returns:
      A `pydot.Dot`, or a `pydot.Cluster`.

    Raises:
      ImportError: without the package pydot.
      ValueError: for a model that is not built, or a range that names no layers.

    Example:
      >>> import meshflow as tf
      >>> model = tf.keras.Sequential([tf.keras.Input([3]), tf.keras.layers.Dense(2, name="out")])
      >>> drawing = tf.keras.utils.model_to_dot(model)
      >>> [node.get_label() for node in drawing.get_nodes()][-1]
      '"out|Dense"'
    """
    pydot = _pydot()
    if pydot is None:
        _refuse()
        return None
    if not model.built:
        raise ValueError(
            "This model has not yet been built. Build the model first by calling `build()` or by "
            "calling the model on a batch of data."
        )
    drawn = _Drawing(
        pydot, show_shapes, show_dtype, show_layer_names, expand_nested, show_layer_activations
    )
    drawn.show_trainable = show_trainable
    if subgraph:
        graph = drawn.cluster(model)
    else:
        graph = pydot.Dot()
        graph.set("rankdir", rankdir)
        graph.set("concentrate", True)
        graph.set("dpi", dpi)
        graph.set_node_defaults(shape="record")
    drawn.draw(graph, model, layer_range)
    return graph


class _Drawing:
    """What is drawn into one graph.

    Args:
      pydot: the package.
      shapes: whether shapes are shown.
      dtypes: whether dtypes are.
      names: whether names are.
      expand: whether nested models are drawn as graphs.
      activations: whether activations are shown.
    """

    show_trainable = False

    def __init__(
        self, pydot: Any, shapes: bool, dtypes: bool, names: bool, expand: bool, activations: bool
    ) -> None:
        self._pydot, self._shapes, self._dtypes = pydot, shapes, dtypes
        self._names, self._expand, self._activations = names, expand, activations
        self._arrows: set[tuple[str, str]] = set()

    def cluster(self, model: Any) -> Any:
        """An empty frame for a model."""
        cluster = self._pydot.Cluster(style="dashed", graph_name=model.name)
        cluster.set("label", model.name)
        cluster.set("labeljust", "l")
        return cluster

    def draw(self, graph: Any, model: Any, layer_range: Any = None) -> None:
        """Adds boxes and arrows of a model to a graph."""
        graph_of_layers = _graph(model)
        if graph_of_layers is None:
            # What a subclass's `call` does is Python's secret.
            graph.add_node(self._pydot.Node(str(id(model)), label=model.name))
            return
        nodes = graph_of_layers.nodes
        layers = {id(node.layer): node.layer for node in nodes}
        if layer_range is not None:
            layers = {id(layer): layer for layer in chosen_layers(model, layer_range)}
        for layer in layers.values():
            if self._opened(layer):
                inner = self.cluster(layer)
                self.draw(inner, layer)
                graph.add_subgraph(inner)
            else:
                graph.add_node(self._pydot.Node(str(id(layer)), label=self._label(layer)))
        for node in nodes:
            for place, tensor in enumerate(node.keras_inputs if id(node.layer) in layers else ()):
                source = tensor._keras_history
                if id(source.layer) in layers:
                    start = self._exit(source.layer, source.tensor_index)
                    self._arrow(graph, start, self._entrance(node.layer, place))

    def _arrow(self, graph: Any, start: str, end: str) -> None:
        if (start, end) not in self._arrows:
            self._arrows.add((start, end))
            graph.add_edge(self._pydot.Edge(start, end))

    def _opened(self, layer: Any) -> bool:
        return self._expand and _graph(layer) is not None

    def _entrance(self, layer: Any, place: int) -> str:
        if not self._opened(layer):
            return str(id(layer))
        return str(id(_graph(layer).flat_inputs[place]._keras_history.layer))

    def _exit(self, layer: Any, place: int) -> str:
        if not self._opened(layer):
            return str(id(layer))
        source = _graph(layer).flat_outputs[place]._keras_history
        return self._exit(source.layer, source.tensor_index)

    def _label(self, layer: Any) -> str:
        kind, name = type(layer).__name__, layer.name
        inside = getattr(layer, "layer", None)
        if inside is not None and hasattr(inside, "name"):
            kind, name = f"{kind}({type(inside).__name__})", f"{name}({inside.name})"
        activation = getattr(layer, "activation", None)
        if self._activations and activation is not None:
            kind = f"{{{kind}|{getattr(activation, '__name__', type(activation).__name__)}}}"
        label = f"{name}|{kind}" if self._names else kind
        if self._dtypes:
            label = f"{label}|{layer.dtype or '?'}"
        if self._shapes:
            ends = [_shapes(layer, end) for end in ("input_shape", "output_shape")]
            label = f"{{{label}}}|{{input:|output:}}|{{{{{ends[0]}}}|{{{ends[1]}}}}}"
        if self.show_trainable:
            label = f"{'T' if layer.trainable else 'NT'}|{label}"
        # In quotes, as a name may be a word of the language of graphs.
        return f'"{label}"'


def _graph(layer: Any) -> Any:
    """A model's graph of layers; None for other layers and subclassed models."""
    return layer._current_graph() if hasattr(layer, "_current_graph") else None


def _shapes(layer: Any, end: str) -> str:
    try:
        found = str(getattr(layer, end))
    except (AttributeError, RuntimeError):
        return "multiple" if end == "output_shape" else "?"
    if type(layer).__name__ == "InputLayer" and not found.startswith("["):
        found = f"[{found}]"
    # Braces of a dictionary of shapes would open boxes.
    return found.replace("{", "").replace("}", "")


def plot_model(
    model: Any,
    to_file: str = "model.png",
    show_shapes: bool = False,
    show_dtype: bool = False,
    show_layer_names: bool = True,
    rankdir: str = "TB",
    expand_nested: bool = False,
    dpi: float | None = 96,
    layer_range: Any = None,
    show_layer_activations: bool = False,
    show_trainable: bool = False,
) -> Any:
    """Draws a model into a file, by Graphviz.

    Args:
      model: the model, which must be built.
      to_file: the file; the end of its name says of which kind it is.
      show_shapes: whether shapes of inputs and outputs are shown.
      show_dtype: whether dtypes are shown.
      show_layer_names: whether layers' names are shown.
      rankdir: 'TB' from top to bottom, 'LR' from left to right.
      expand_nested: whether models in the model are drawn as graphs.
      dpi: dots per inch.
      layer_range: names (or expressions that match them) of the first and the last layer to draw.
      show_layer_activations: whether activations are shown.
      show_trainable: whether it is shown which layers are trained.

    Returns:
      In a notebook the image, else None.

    Raises:
      ImportError: without the package pydot or Graphviz's program `dot`; a notebook only prints it.
      ValueError: for a model that is not built.
    """
    if not model.built:
        raise ValueError(
            "This model has not yet been built. Build the model first by calling `build()` or by "
            "calling the model on a batch of data."
        )
    pydot = _pydot()
    if pydot is None or not _draws(pydot):
        _refuse()
        return None
    dot = model_to_dot(
        model,
        show_shapes,
        show_dtype,
        show_layer_names,
        rankdir,
        expand_nested,
        dpi,
        layer_range=layer_range,
        show_layer_activations=show_layer_activations,
        show_trainable=show_trainable,
    )
    to_file = text(to_file)
    ending = os.path.splitext(to_file)[1][1:] or "png"
    with replacing(to_file) as file:
        dot.write(file.name, format=ending)
    if "IPython" in sys.modules and ending != "pdf" and not is_remote(to_file):
        from IPython import display  # noqa: PLC0415 - there in a notebook only

        return display.Image(filename=to_file)
    return None


def _draws(pydot: Any) -> bool:
    """Whether Graphviz is there: pydot only writes what it reads."""
    try:
        pydot.Dot.create(pydot.Dot())
    except (OSError, AssertionError):
        return False
    return True
