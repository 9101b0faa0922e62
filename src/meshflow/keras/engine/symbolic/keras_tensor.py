"""Symbolic tensors of the Functional API.

A `KerasTensor` is a shape, a dtype and a history: the layer call (`Node`) that creates it. It holds
no array and refers to no trace, so even large models are cheap to build. Any op that is called on
one becomes a layer; see `meshflow.keras.engine.graph.op_layers`.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from meshflow.core.values import nest
from meshflow.core.values.composite import is_composite_spec
from meshflow.core.values.dtypes import DType
from meshflow.core.values.shapes import ShapeLike, TensorShape
from meshflow.core.values.specs import TensorSpec, TypeSpec, type_spec_from_value
from meshflow.core.values.tensor import Reference
from meshflow.environment.types import PyTree

if TYPE_CHECKING:
    # Functions with parameters of the type `Tensor` also accept symbolic tensors.
    from meshflow.core.values.tensor import Tensor as _Base
else:
    _Base = object


class KerasHistory(NamedTuple):
    """Origin of a symbolic tensor: output `tensor_index` of call `node_index` of `layer`."""

    layer: Any
    node_index: int
    tensor_index: int


class SymbolicValueError(TypeError, ValueError, AttributeError):
    """Access to the value of a symbolic tensor, for which Keras raises `TypeError` or `ValueError`."""


class ShapelessSpecError(ValueError):
    """Raised for a Keras tensor of an extension type without a shape, such as a distribution."""


class KerasTensor(_Base):
    """Symbolic tensor: the description of a value that a model will compute.

    Attributes:
      shape: Static shape, with None for unknown sizes.
      dtype: Element type.
      name: Name.
    """

    _is_tensor_like = True
    _symbolic_priority = 1
    __array_priority__ = 200

    def __new__(cls, type_spec: TypeSpec | None = None, name: str | None = None) -> KerasTensor:
        """Create an object of the class for the values that the spec describes."""
        value_type = getattr(type_spec, "value_type", None)
        if cls is KerasTensor and isinstance(value_type, type):
            pairs = _specializations.items()
            cls = next((k for base, k in pairs if issubclass(value_type, base)), cls)
        return super().__new__(cls)

    def __init__(self, type_spec: TypeSpec, name: str | None = None) -> None:
        if not hasattr(type_spec, "shape"):
            raise ShapelessSpecError(
                f"KerasTensor only supports specs with a shape, got {type(type_spec).__qualname__}. Define the "
                "property `shape` in the class Spec of the extension type."
            )
        self._type_spec = type_spec
        self._name = name
        # The history is None until a node sets it; each tensor in a graph has one.
        self._keras_history: KerasHistory | Any = None
        self._keras_mask = None
        # Values of shape tensors for each placeholder size that replaces the unknown sizes.
        self.known_values: dict[int, Any] = {}
        # Shapes that replace the unknown one in a trace, by the placeholder size; see `layer.shape_inference`.
        self.related_shapes: dict[int, TensorShape] = {}
        # Weak references: the layers own the nodes, and a tensor may outlive a model.
        self._users: list[weakref.ref[Node]] = []

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_users": []}

    @property
    def type_spec(self) -> TypeSpec:
        """Return shape and dtype as a `TensorSpec`, `SparseTensorSpec` or `RaggedTensorSpec`."""
        return self._type_spec

    @property
    def shape(self) -> TensorShape:
        """Return the static shape, with None for unknown sizes."""
        return self._type_spec.shape

    @property
    def dtype(self) -> DType:
        """Return the element type; that of the first tensor if an extension type defines none."""
        spec = self._type_spec
        if is_composite_spec(spec) and not hasattr(spec, "dtype"):
            spec = next(s for s in nest.flatten_parts(spec) if hasattr(s, "dtype"))
        return spec.dtype

    @property
    def name(self) -> str:
        """Return the name; by default that of the layer that creates the tensor."""
        return self._name or (
            self._keras_history.layer.name if self._keras_history else "keras_tensor"
        )

    @property
    def node(self) -> Node:
        """Return the layer call that creates the tensor."""
        layer, index, _ = self._keras_history
        return layer.inbound_nodes[index]

    @classmethod
    def from_type_spec(cls, type_spec: TypeSpec, name: str | None = None) -> KerasTensor:
        """Return a symbolic tensor for a spec."""
        return cls(type_spec, name)

    @classmethod
    def from_tensor(cls, tensor: object) -> KerasTensor:
        """Return a symbolic tensor for values like one value."""
        return cls(type_spec_from_value(tensor), getattr(tensor, "name", None))

    @classmethod
    def _overload_operator(cls, tensor_class: type, operator: str) -> None:
        """Use an operator of the class of the values, as libraries call this method."""
        setattr(cls, operator, getattr(tensor_class, operator))

    def get_shape(self) -> TensorShape:
        """Return the static shape."""
        return self.shape

    @property
    def ndim(self) -> int | None:  # type: ignore[override]
        """Return the rank."""
        return self.shape.rank

    rank = ndim

    def set_shape(self, shape: ShapeLike) -> None:
        """Merge `shape` into the static shape."""
        merged_shape = self.shape.merge_with(shape)
        if is_composite_spec(self._type_spec):
            _, *others = self._type_spec._serialize()
            self._type_spec = self._type_spec._deserialize((merged_shape, *others))
        else:
            self._type_spec = TensorSpec(merged_shape, self.dtype, self._type_spec.name)

    @property
    def is_composite(self) -> bool:
        """Return whether the values consist of several tensors, such as sparse and ragged ones."""
        return not isinstance(self._type_spec, TensorSpec)

    def ref(self) -> Reference:
        """Return a hashable reference for sets and dictionary keys."""
        return Reference(self)

    def experimental_ref(self) -> Reference:
        """Return `ref()`; the old name of that method."""
        return Reference(self)

    def __hash__(self) -> int:
        raise TypeError("KerasTensor is unhashable. Instead, use tensor.ref() as the key.")

    def _make_use_error(self, use: str) -> SymbolicValueError:
        return SymbolicValueError(
            f"You are using a symbolic Keras input or output as {use}, which is not supported: {self!r} "
            "has no value while the model is being built. Put the code into a keras.layers.Lambda or a "
            "custom Layer's call."
        )

    if not TYPE_CHECKING:  # Type checkers would accept any name.

        def __getattr__(self, name):
            if name in ("array", "require_value", "numpy"):
                raise self._make_use_error("a tensor with a value")
            if not name.startswith("__") and is_composite_spec(self._type_spec):
                found = self._find_attribute(name)
                if found is not NotImplemented:
                    return found
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def _find_attribute(self, name: str) -> Any:
        """Return an attribute of the type of the values; `instance_layers` defines it."""
        return NotImplemented

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise self._make_use_error("a NumPy array")

    def __bool__(self) -> bool:
        raise self._make_use_error("a Python `bool`")

    def __float__(self) -> float:
        raise self._make_use_error("a Python number")

    __int__ = __index__ = __float__  # type: ignore[assignment]

    def __len__(self) -> int:
        raise self._make_use_error("a Python sequence")

    def __iter__(self) -> Iterator[Any]:
        size = self.shape[0] if self.shape.rank else None
        if size is None:
            raise TypeError(
                "Cannot iterate over a symbolic Keras tensor with unknown first dimension."
            )
        return iter([self[i] for i in range(size)])

    def _describe_origin(self) -> str:
        return f"created by layer '{self._keras_history.layer.name}'" if self._keras_history else ""

    def __repr__(self) -> str:
        origin = self._describe_origin()
        described = (
            f"type_spec={self.type_spec}"
            if self.is_composite
            else f"shape={self.shape} dtype={self.dtype.name}"
        )
        return f"<KerasTensor: {described}{origin and f' ({origin})'}>"

    def __str__(self) -> str:
        origin = self._describe_origin()
        return (
            f"KerasTensor(type_spec={self.type_spec}, name={self.name!r}"
            f"{origin and f', description={origin!r}'})"
        )


# Subclasses of `KerasTensor` by the classes of their values; the first match counts.
_specializations: dict[type, type[KerasTensor]] = {}


def register_keras_tensor_specialization(
    cls: type, keras_tensor_subclass: type[KerasTensor]
) -> None:
    """Make the symbolic tensors of the values of a class instances of a subclass of `KerasTensor`."""
    _specializations[cls] = keras_tensor_subclass


class RaggedKerasTensor(KerasTensor):
    """Symbolic ragged tensor."""


class SparseKerasTensor(KerasTensor):
    """Symbolic sparse tensor."""


class Node:
    """One call of a layer on symbolic tensors.

    Attributes:
      layer: The layer.
      args: Positional arguments, with `KerasTensor`s in place of tensors.
      kwargs: Keyword arguments, with `KerasTensor`s in place of tensors.
      outputs: Result structure of `KerasTensor`s.
      keras_inputs: Symbolic tensors among the arguments.
      flat_outputs: Symbolic tensors in the result.
    """

    def __init__(
        self, layer: Any, args: tuple[Any, ...], kwargs: dict[str, Any], outputs: PyTree
    ) -> None:
        self.layer = layer
        # The caller may change lists after the call.
        self.args, self.kwargs = nest.map_structure(lambda value: value, (args, kwargs))
        self.outputs = outputs
        self.keras_inputs = [v for v in nest.flatten((args, kwargs)) if isinstance(v, KerasTensor)]
        self.flat_outputs = [o for o in nest.flatten(outputs) if isinstance(o, KerasTensor)]
        index = len(layer.inbound_nodes)
        layer.inbound_nodes.append(self)
        for position, output in enumerate(self.flat_outputs):
            output._keras_history = KerasHistory(layer, index, position)
        self.index = index
        for tensor in self.keras_inputs:
            tensor._users.append(weakref.ref(self))

    @property
    def users(self) -> list[Node]:
        """Return the calls that use results of this one, with repetitions."""
        nodes = [user() for output in self.flat_outputs for user in output._users]
        return [node for node in nodes if node is not None and node in node.layer.inbound_nodes]

    @property
    def is_input(self) -> bool:
        """Return whether this is the node of an `Input`."""
        return not self.keras_inputs

    @property
    def input_tensors(self) -> PyTree:
        """Return the symbolic inputs, one or a list; for an `Input`, its output."""
        if self.is_input:
            return self.flat_outputs
        return self.keras_inputs[0] if len(self.keras_inputs) == 1 else self.keras_inputs

    @property
    def output_tensors(self) -> PyTree:
        """Return the result; for an `Input`, as a list."""
        return self.flat_outputs if self.is_input else self.outputs

    @property
    def input_shapes(self) -> PyTree:
        """Return the shapes of `input_tensors` as tuples."""
        return _get_sizes(self.input_tensors)

    @property
    def output_shapes(self) -> PyTree:
        """Return the shapes of `output_tensors` as tuples."""
        return _get_sizes(self.output_tensors)

    @property
    def flat_input_ids(self) -> list[str]:
        """Return `str(id(tensor))` of the symbolic tensors among the arguments."""
        return [str(id(tensor)) for tensor in self.keras_inputs]

    @property
    def flat_output_ids(self) -> list[str]:
        """Return `str(id(tensor))` of the symbolic tensors in the result."""
        return [str(id(tensor)) for tensor in self.flat_outputs]

    @property
    def call_args(self) -> tuple[Any, ...]:
        """Return `args`, by the name of Keras."""
        return self.args

    @property
    def call_kwargs(self) -> dict[str, Any]:
        """Return `kwargs`, by the name of Keras."""
        return self.kwargs

    @property
    def outbound_layer(self) -> Any:
        """Return the layer, by TensorFlow's name of this attribute."""
        return self.layer

    @property
    def inbound_layers(self) -> Any:
        """Return the layers that create the inputs: one, or a list."""
        layers = [node.layer for node in self.parent_nodes]
        return layers[0] if len(layers) == 1 else layers

    @property
    def parent_nodes(self) -> list[Node]:
        """Return the calls that create the inputs."""
        return [tensor.node for tensor in self.keras_inputs]

    def iterate_inbound(self) -> Iterator[tuple[Any, int, int, KerasTensor]]:
        """Yield the layer, node index, tensor index and tensor of each input."""
        for tensor in self.keras_inputs:
            yield (*tensor._keras_history, tensor)

    def get_arguments(self, values: dict[int, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments with symbolic tensors replaced by values, keyed by tensor id."""
        return self._replace_tensors(lambda tensor: values[id(tensor)])

    def map_arguments(
        self, tensor_dict: dict[str, list[Any]]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments with symbolic tensors replaced by values, as tools for Keras call this method.

        Args:
          tensor_dict: For `str(id(tensor))`, the value once for each use. One is removed for each use.
        """
        return self._replace_tensors(lambda tensor: tensor_dict[str(id(tensor))].pop())

    def _replace_tensors(
        self, find: Callable[[KerasTensor], Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if len(self.args) == 1 and not self.kwargs and isinstance(self.args[0], KerasTensor):
            return (find(self.args[0]),), {}
        return nest.map_structure(
            lambda v: find(v) if isinstance(v, KerasTensor) else v, (self.args, self.kwargs)
        )


def _get_sizes(structure: PyTree) -> PyTree:
    shape = lambda tensor: tuple(tensor.shape.as_list())
    if isinstance(structure, (list, tuple)):
        return [_get_sizes(part) for part in structure]
    if isinstance(structure, dict):
        return {key: _get_sizes(part) for key, part in structure.items()}
    return shape(structure)


def get_shapes(structure: PyTree) -> PyTree:
    """Return the shapes of a structure of tensors: one `TensorShape`, or the structure of them."""

    def get_shape(tensor: Any) -> TensorShape:
        shape = TensorShape(tensor.shape)
        # Layers store the shapes, which must not contain the symbols of a trace.
        if shape.rank is None:
            return shape
        return TensorShape([n if isinstance(n, int) else None for n in shape.as_list()])

    if hasattr(structure, "shape"):
        return get_shape(structure)
    return nest.map_structure(lambda t: get_shape(t) if hasattr(t, "shape") else None, structure)
