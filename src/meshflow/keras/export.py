"""`tf.keras.export`: SavedModels with explicitly chosen functions, for serving."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from meshflow import saved_model
from meshflow.checkpoint.object_graph import is_trackable
from meshflow.core.functions.decorator import function
from meshflow.core.functions.function import Function
from meshflow.core.variables.module import Module
from meshflow.core.variables.variable import Variable
from meshflow.environment.types import PyTree, StrPath
from meshflow.files.paths import to_path_string
from meshflow.keras.engine.layer.base_layer import Layer
from meshflow.keras.engine.saving.model_export import parse_input_signature
from meshflow.lookup.table import Table
from meshflow.saved_model.saving.function_discovery import iterate_signatures
from meshflow.version import VERSION

__all__ = ["ExportArchive"]


class ExportArchive(Module):
    """Collection of functions (endpoints) and their variables that is written as a SavedModel.

    Attributes:
      variables: Variables of the tracked objects.
      trainable_variables: Trainable variables of the tracked objects.
      non_trainable_variables: Other variables of the tracked objects.

    Example:
      >>> import tempfile
      >>> model = tf.keras.Sequential([tf.keras.Input([3]), tf.keras.layers.Dense(2)])
      >>> archive = tf.keras.export.ExportArchive()
      >>> archive.track(model)
      >>> endpoint = archive.add_endpoint("call", model.call, [tf.TensorSpec([None, 3], "float32")])
      >>> folder = tempfile.mkdtemp()
      >>> archive.write_out(folder, verbose=False)
      >>> tf.saved_model.load(folder).call(tf.ones([4, 3])).shape
      TensorShape([4, 2])
    """

    def __init__(self) -> None:
        super().__init__()
        self._endpoints: list[str] = []
        self._resources: list[Any] = []
        self.tensorflow_version = VERSION

    @property
    def variables(self) -> tuple[Variable, ...]:
        """Return the variables of the tracked objects."""
        return (*self.trainable_variables, *self.non_trainable_variables)

    @property
    def trainable_variables(self) -> tuple[Variable, ...]:
        """Return the trainable variables of the tracked objects."""
        return self._collect_variables("trainable_variables")

    @property
    def non_trainable_variables(self) -> tuple[Variable, ...]:
        """Return the non-trainable variables of the tracked objects."""
        return self._collect_variables("non_trainable_variables")

    def _collect_variables(self, name: str) -> tuple[Variable, ...]:
        variables = {id(v): v for r in self._resources for v in getattr(r, name, ())}
        return tuple(variables.values())

    def track(self, resource: object) -> None:
        """Track an object that endpoints use: a layer, model, other module, variable or lookup table.

        Args:
          resource: The object, which a checkpoint must be able to store. Layers must be built.
            Lists and dictionaries are not accepted.

        Raises:
          ValueError: If a layer is not built, or if the object cannot be tracked.
        """
        if getattr(resource, "built", True) is False:
            raise ValueError(
                f"The layer {getattr(resource, 'name', resource)!r} must be built before it is tracked: call it, or its `build()`."
            )
        is_accepted = is_trackable(resource) or isinstance(resource, Table)
        if not is_accepted or isinstance(resource, (list, tuple, Mapping)):
            raise ValueError(
                "Invalid resource type. Expected an instance of a TensorFlow `Trackable` (such as a Keras `Layer` or "
                f"`Model`). Received instead an object of type {type(resource)}: {resource!r}"
            )
        self._resources.append(resource)

    def add_endpoint(
        self, name: str, fn: Callable[..., Any], input_signature: PyTree = None, **kwargs: Any
    ) -> Function:
        """Add a function, which the loaded object has as an attribute and as a signature.

        Args:
          name: Name of the attribute.
          fn: Function of tensors, or a `tf.function` that has been called or has an
            `input_signature`.
          input_signature: List with a `tf.TensorSpec`, `InputSpec`, `Input` or tensor, or a
            structure of them, for each argument.
          **kwargs: `jax2tf_kwargs` and `is_static` of Keras on JAX, which have no effect.

        Returns:
          The endpoint, a `tf.function`, for use in other endpoints.

        Raises:
          ValueError: If the name is already in use, or if the function has no signature.
          TypeError: If an argument is unknown, or the signature contains another object.
        """
        unknown = sorted(set(kwargs) - {"jax2tf_kwargs", "is_static"})
        if unknown:
            raise TypeError(f"add_endpoint: unknown arguments {unknown} for endpoint {name!r}.")
        if name in self._endpoints:
            raise ValueError(f"Endpoint name '{name}' is already taken.")
        if input_signature is not None:
            endpoint: Any = function(
                _wrap_layer_call(fn), input_signature=parse_input_signature(input_signature)
            )
        elif isinstance(fn, Function):
            endpoint = fn
            if not list(iterate_signatures(fn)):
                raise ValueError(
                    f"The `tf.function` of endpoint {name!r} has never been called. To add it as an endpoint you must "
                    "either provide a function that has been called at least once, or an `input_signature`."
                )
        else:
            raise ValueError(
                "If the `fn` argument provided is not a `tf.function`, you must provide an `input_signature` argument "
                f"to specify the shape and dtype of the function's arguments; endpoint {name!r} has none."
            )
        setattr(self, name, endpoint)
        self._endpoints.append(name)
        return endpoint

    def track_and_add_endpoint(
        self, name: str, resource: Any, input_signature: PyTree, **kwargs: Any
    ) -> Function:
        """Track a layer or model, and add an endpoint that calls it for inference.

        Args:
          name: Name of the endpoint.
          resource: Built layer or model.
          input_signature: See `add_endpoint`.
          **kwargs: See `add_endpoint`.

        Returns:
          The endpoint, a `tf.function`.

        Raises:
          ValueError: See `track` and `add_endpoint`.
        """
        self.track(resource)
        return self.add_endpoint(name, resource.__call__, input_signature, **kwargs)

    def add_variable_collection(self, name: str, variables: object) -> None:
        """Add a list of variables, which the loaded object has as an attribute.

        Args:
          name: Name of the attribute.
          variables: The variables.

        Raises:
          ValueError: If `variables` is not a list of variables.
        """
        if not isinstance(variables, (list, tuple, set)):
            raise ValueError(
                f"Expected `variables` to be a list/tuple/set. Received instead object of type {type(variables)}."
            )
        others = [v for v in variables if not isinstance(v, Variable)]
        if others:
            raise ValueError(
                f"Expected all elements in `variables` to be `tf.Variable` instances. Found {others[0]!r}."
            )
        setattr(self, name, list(variables))

    def write_out(
        self,
        filepath: StrPath,
        options: saved_model.SaveOptions | None = None,
        verbose: bool = True,
    ) -> None:
        """Write the SavedModel; unless an endpoint is named `serving_default`, this is the first one.

        Args:
          filepath: Directory.
          options: A `tf.saved_model.SaveOptions`.
          verbose: Whether to print the directory and the names of the endpoints.

        Raises:
          ValueError: If there are no endpoints.
        """
        if not self._endpoints:
            raise ValueError("No endpoints have been set yet. Call add_endpoint().")
        signatures = {name: getattr(self, name) for name in self._endpoints}
        signatures.setdefault("serving_default", signatures[self._endpoints[0]])
        saved_model.save(self, filepath, signatures=signatures, options=options)
        if verbose:
            names = ", ".join(map(repr, self._endpoints))
            print(
                f"Saved artifact at '{to_path_string(filepath)}'. The following endpoints are available: {names}."
            )


def _wrap_layer_call(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Give `__call__` of a layer the signature of `call`, for arguments by name after loading."""
    layer = getattr(fn, "__self__", None)
    if not isinstance(layer, Layer) or fn.__name__ != "__call__":
        return fn

    def call(*args: Any, **kwargs: Any) -> Any:
        return fn(*args, **kwargs)

    call.__signature__ = inspect.signature(layer.call)  # type: ignore[attr-defined]
    return call
