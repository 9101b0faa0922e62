"""Names of TensorFlow's private modules of checkpoints, which tests and classes with their own saved values use."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

from meshflow.checkpoint.object_graph import ObjectGraph, list_children
from meshflow.checkpoint.object_graph_message import collect_arrays
from meshflow.checkpoint.views import TrackableView
from meshflow.core.runtime.eager import use_session
from meshflow.core.runtime.import_paths import get_public_package
from meshflow.core.values.dtypes import DTypeLike
from meshflow.core.values.shapes import ShapeLike
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.core.variables.module import ObservableAttributes
from meshflow.core.variables.variable import Variable
from meshflow.shims.private_structures import ObjectIdentityDictionary

tf: Any = get_public_package()


def add_variable(
    trackable: ObservableAttributes,
    name: str,
    shape: ShapeLike | None = None,
    dtype: DTypeLike = "float32",
    initializer: Callable[..., TensorLike] | type | TensorLike | None = None,
    trainable: bool = True,
) -> Variable:
    """Create a variable as a child of an object.

    Args:
      trackable: The object.
      name: Name of the variable, and of the child.
      shape: Its shape; None for that of the value `initializer`.
      dtype: Its dtype.
      initializer: Value, initializer or class of an initializer. Default: Glorot's uniform one.
      trainable: Whether the variable is trainable.

    Raises:
      ValueError: If the child exists, or there is a shape and a value.
    """
    if name in list_children(trackable):
        raise ValueError(
            f"A variable named {name!r} already declared in this object: use another name."
        )
    if isinstance(initializer, type):
        initializer = initializer()
    if initializer is not None and not callable(initializer):
        if shape is not None:
            raise ValueError(
                f"add_variable {name!r}: if initializer is a constant, do not specify shape."
            )
        value = tf.convert_to_tensor(initializer, dtype)
    else:
        create = initializer or tf.compat.v1.glorot_uniform_initializer()
        value = create(tf.TensorShape(shape), dtype=tf.as_dtype(dtype))
    variable = tf.Variable(value, trainable=trainable, name=name, dtype=dtype)
    return trackable._track_trackable(variable, name)


def gather_initializers(root_trackable: object) -> list[Any]:
    """Return the initializers of the variables of a graph below an object; other variables have values already."""
    objects = ObjectGraph(root_trackable).objects
    return [v.initializer for v in objects if hasattr(v, "set_initial_value")]


def serialize_graph_view(graph_view: TrackableView) -> tuple[Any, ...]:
    """Return the values of the objects of a view by their keys, in a dictionary for each object; then None, {}, None."""
    owners: dict[str, Any] = {}
    with use_session():
        arrays = collect_arrays(graph_view.root, owners)
    values = ObjectIdentityDictionary()
    for key, owner in owners.items():
        values.setdefault(owner, {})[key] = arrays[key]
    return values, None, {}, None


def list_objects(root_trackable: object) -> list[Any]:
    """Return the objects that a checkpoint of an object would save."""
    return list(ObjectGraph(root_trackable).objects)


class SaveSpec:
    """A value that a `SaveableObject` saves.

    Args:
      tensor: The value, or a function that returns it.
      slice_spec: Ignored.
      name: Key of the value in the checkpoint.
      dtype: Dtype, by default that of the tensor.
      device: Ignored.
    """

    def __init__(
        self,
        tensor: TensorLike | Callable[[], TensorLike],
        slice_spec: str,
        name: str,
        dtype: DTypeLike | None = None,
        device: object = None,
    ) -> None:
        self._tensor, self.slice_spec, self.name = tensor, slice_spec, name
        self.dtype = getattr(tensor, "dtype", None) if dtype is None else dtype

    @property
    def tensor(self) -> TensorLike:
        """Return the value."""
        return self._tensor() if callable(self._tensor) else self._tensor


class SaveableObject:
    """Values that a checkpoint saves for an object; subclasses define `restore`.

    Args:
      op: The object, or a tensor of it.
      specs: The values.
      name: Key of the object in the checkpoint.
    """

    def __init__(self, op: object, specs: Sequence[SaveSpec], name: str) -> None:
        self.op, self.specs, self.name = op, specs, name

    def restore(self, restored_tensors: Sequence[Tensor], restored_shapes: object) -> object:
        """Assign values of a checkpoint.

        Args:
          restored_tensors: A value for each spec.
          restored_shapes: Ignored.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define `restore`.")


class VariableSaveable(SaveableObject):
    """Saved value of a variable.

    Args:
      var: The variable.
      slice_spec: Ignored.
      name: Key of the value in the checkpoint.
    """

    def __init__(self, var: Variable, slice_spec: str, name: str) -> None:
        super().__init__(var, [SaveSpec(var.read_value, slice_spec, name, var.dtype)], name)

    def restore(self, restored_tensors: Sequence[Tensor], restored_shapes: object) -> object:
        """Assign the value to the variable."""
        return cast(Variable, self.op).assign(restored_tensors[0])


class BaseSaverBuilder:
    """Namespace of the classes of saved values."""

    SaveableObject, SaveSpec = SaveableObject, SaveSpec
    ResourceVariableSaveable = VariableSaveable


ObjectGraphView = TrackableView
