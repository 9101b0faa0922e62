"""Drawings of models with Graphviz: boxes for layers and arrows for tensors between them."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

from meshflow.environment import optional_packages
from meshflow.files.atomic_writes import replace_file
from meshflow.files.paths import is_remote, to_path_string
from meshflow.keras.engine.graph.graph import LayerGraph, get_graph
from meshflow.keras.engine.layer.base_layer import Layer
from meshflow.keras.engine.models.model import Model
from meshflow.keras.engine.models.summary import select_layers

if TYPE_CHECKING:
    import pydot

_INSTALL_MESSAGE = (
    "You must install pydot (`pip install pydot`, or 'meshflow-tf[plots]') and install graphviz (see "
    "instructions at https://graphviz.gitlab.io/download/) for plot_model to work."
)


def _load_pydot() -> ModuleType | None:
    try:
        return optional_packages.import_extra("pydot", "plots", "plot_model needs pydot")
    except ImportError:
        return None


def _report_missing_packages() -> None:
    """Report missing packages: print a message in a notebook, so that its other cells run.

    Raises:
      ImportError: Outside a notebook.
    """
    if "IPython.core.magics.namespace" not in sys.modules:
        raise ImportError(_INSTALL_MESSAGE)
    print(_INSTALL_MESSAGE)


def model_to_dot(
    model: Model,
    show_shapes: bool = False,
    show_dtype: bool = False,
    show_layer_names: bool = True,
    rankdir: str = "TB",
    expand_nested: bool = False,
    dpi: float | None = 96,
    subgraph: bool = False,
    layer_range: Sequence[str] | None = None,
    show_layer_activations: bool = False,
    show_trainable: bool = False,
) -> pydot.Dot | pydot.Cluster | None:
    """Convert a model to a graph of pydot.

    Args:
      model: Built model.
      show_shapes: Whether to show the shapes of inputs and outputs.
      show_dtype: Whether to show dtypes.
      show_layer_names: Whether to show the names of layers.
      rankdir: 'TB' from top to bottom, 'LR' from left to right.
      expand_nested: Whether to draw nested models as graphs.
      dpi: Dots per inch.
      subgraph: Whether to return a `pydot.Cluster`, to be added to another graph.
      layer_range: Names (or regular expressions) of the first and the last layer to draw.
      show_layer_activations: Whether to show activations.
      show_trainable: Whether to mark trainable layers.

    Returns:
      A `pydot.Dot`, or a `pydot.Cluster`.

    Raises:
      ImportError: If pydot is missing.
      ValueError: If the model is not built, or no layer matches the range.

    Example:
      >>> model = tf.keras.Sequential([tf.keras.Input([3]), tf.keras.layers.Dense(2, name="out")])
      >>> drawing = tf.keras.utils.model_to_dot(model)
      >>> [node.get_label() for node in drawing.get_nodes()][-1]
      '"out|Dense"'
    """
    pydot = _load_pydot()
    if pydot is None:
        _report_missing_packages()
        return None
    if not model.built:
        raise ValueError(
            "This model has not yet been built. Build the model first by calling `build()` or by "
            "calling the model on a batch of data."
        )
    builder = _DiagramBuilder(
        pydot, show_shapes, show_dtype, show_layer_names, expand_nested, show_layer_activations
    )
    builder.show_trainable = show_trainable
    if subgraph:
        graph = builder.create_cluster(model)
    else:
        graph = pydot.Dot()
        graph.set("rankdir", rankdir)
        graph.set("concentrate", True)
        graph.set("dpi", dpi)
        graph.set_node_defaults(shape="record")
    builder.add_model(graph, model, layer_range)
    return graph


class _DiagramBuilder:
    """Builder of a graph of pydot.

    Args:
      pydot: The package.
      shapes: Whether to show shapes.
      dtypes: Whether to show dtypes.
      names: Whether to show names.
      expand: Whether to draw nested models as graphs.
      activations: Whether to show activations.
    """

    show_trainable = False

    def __init__(
        self,
        pydot: ModuleType,
        shapes: bool,
        dtypes: bool,
        names: bool,
        expand: bool,
        activations: bool,
    ) -> None:
        self._pydot, self._shapes, self._dtypes = pydot, shapes, dtypes
        self._names, self._expand, self._activations = names, expand, activations
        self._arrows: set[tuple[str, str]] = set()

    def create_cluster(self, model: Layer) -> pydot.Cluster:
        """Create an empty frame for a model."""
        cluster = self._pydot.Cluster(style="dashed", graph_name=model.name)
        cluster.set("label", model.name)
        cluster.set("labeljust", "l")
        return cluster

    def add_model(
        self,
        graph: pydot.Dot | pydot.Cluster,
        model: Model,
        layer_range: Sequence[str] | None = None,
    ) -> None:
        """Add the boxes and arrows of a model to a graph."""
        layer_graph = get_graph(model)
        if layer_graph is None:
            # The graph of a subclassed model is unknown, so it is a single box.
            graph.add_node(self._pydot.Node(str(id(model)), label=model.name))
            return
        nodes = layer_graph.nodes
        layers = {id(node.layer): node.layer for node in nodes}
        if layer_range is not None:
            layers = {id(layer): layer for layer in select_layers(model, layer_range)}
        for layer in layers.values():
            if self._get_expanded_graph(layer) is not None:
                subgraph = self.create_cluster(layer)
                self.add_model(subgraph, layer)
                graph.add_subgraph(subgraph)  # type: ignore[arg-type]
            else:
                graph.add_node(self._pydot.Node(str(id(layer)), label=self._format_label(layer)))
        for node in nodes:
            for index, tensor in enumerate(node.keras_inputs if id(node.layer) in layers else ()):
                source = tensor._keras_history
                if id(source.layer) in layers:
                    start = self._find_output_node(source.layer, source.tensor_index)
                    self._add_edge(graph, start, self._find_input_node(node.layer, index))

    def _add_edge(self, graph: pydot.Dot | pydot.Cluster, start: str, end: str) -> None:
        if (start, end) not in self._arrows:
            self._arrows.add((start, end))
            graph.add_edge(self._pydot.Edge(start, end))

    def _get_expanded_graph(self, layer: Layer) -> LayerGraph | None:
        return get_graph(layer) if self._expand else None

    def _find_input_node(self, layer: Layer, index: int) -> str:
        graph = self._get_expanded_graph(layer)
        if graph is None:
            return str(id(layer))
        return str(id(graph.flat_inputs[index]._keras_history.layer))

    def _find_output_node(self, layer: Layer, index: int) -> str:
        graph = self._get_expanded_graph(layer)
        if graph is None:
            return str(id(layer))
        source = graph.flat_outputs[index]._keras_history
        return self._find_output_node(source.layer, source.tensor_index)

    def _format_label(self, layer: Layer) -> str:
        kind, name = type(layer).__name__, layer.name
        wrapped_layer = getattr(layer, "layer", None)
        if wrapped_layer is not None and hasattr(wrapped_layer, "name"):
            kind, name = f"{kind}({type(wrapped_layer).__name__})", f"{name}({wrapped_layer.name})"
        activation = getattr(layer, "activation", None)
        if self._activations and activation is not None:
            kind = f"{{{kind}|{getattr(activation, '__name__', type(activation).__name__)}}}"
        label = f"{name}|{kind}" if self._names else kind
        if self._dtypes:
            label = f"{label}|{layer.dtype or '?'}"
        if self._shapes:
            shapes = [_format_shapes(layer, end) for end in ("input_shape", "output_shape")]
            label = f"{{{label}}}|{{input:|output:}}|{{{{{shapes[0]}}}|{{{shapes[1]}}}}}"
        if self.show_trainable:
            label = f"{'T' if layer.trainable else 'NT'}|{label}"
        # The quotes protect names that are keywords of the DOT language.
        return f'"{label}"'


def _format_shapes(layer: Layer, attribute: str) -> str:
    try:
        shapes = str(getattr(layer, attribute))
    except (AttributeError, RuntimeError):
        return "multiple" if attribute == "output_shape" else "?"
    # Braces of a dictionary of shapes would create boxes.
    return shapes.replace("{", "").replace("}", "")


def plot_model(
    model: Model,
    to_file: str = "model.png",
    show_shapes: bool = False,
    show_dtype: bool = False,
    show_layer_names: bool = True,
    rankdir: str = "TB",
    expand_nested: bool = False,
    dpi: float | None = 96,
    layer_range: Sequence[str] | None = None,
    show_layer_activations: bool = False,
    show_trainable: bool = False,
) -> Any:
    """Draw a model with Graphviz and write the drawing to a file.

    Args:
      model: Built model.
      to_file: Path; its extension selects the format.
      show_shapes: Whether to show the shapes of inputs and outputs.
      show_dtype: Whether to show dtypes.
      show_layer_names: Whether to show the names of layers.
      rankdir: 'TB' from top to bottom, 'LR' from left to right.
      expand_nested: Whether to draw nested models as graphs.
      dpi: Dots per inch.
      layer_range: Names (or regular expressions) of the first and the last layer to draw.
      show_layer_activations: Whether to show activations.
      show_trainable: Whether to mark trainable layers.

    Returns:
      The image in a notebook, None otherwise.

    Raises:
      ImportError: If pydot or Graphviz's program `dot` is missing; a notebook only prints a
        message.
      ValueError: If the model is not built.
    """
    if not model.built:
        raise ValueError(
            "This model has not yet been built. Build the model first by calling `build()` or by "
            "calling the model on a batch of data."
        )
    pydot = _load_pydot()
    if pydot is None or not _has_graphviz(pydot):
        _report_missing_packages()
        return None
    dot: Any = model_to_dot(
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
    to_file = to_path_string(to_file)
    extension = os.path.splitext(to_file)[1][1:] or "png"
    with replace_file(to_file) as file:
        dot.write(file.name, format=extension)
    if "IPython" in sys.modules and extension != "pdf" and not is_remote(to_file):
        from IPython import display  # noqa: PLC0415 - there in a notebook only

        return display.Image(filename=to_file)
    return None


def _has_graphviz(pydot: ModuleType) -> bool:
    """Check whether Graphviz is installed; pydot itself cannot render graphs."""
    try:
        pydot.Dot.create(pydot.Dot())
    except (OSError, AssertionError):
        return False
    return True
