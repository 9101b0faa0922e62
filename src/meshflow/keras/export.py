"""`tf.keras.export`: SavedModels with functions of one's own choice, for serving."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from meshflow import saved_model
from meshflow.checkpoint.graph import is_trackable
from meshflow.core.functions.function import Function, function
from meshflow.core.variables.module import Module
from meshflow.core.variables.variable import Variable
from meshflow.files.paths import text
from meshflow.keras.engine.layer.base_layer import Layer
from meshflow.keras.engine.saving.exporting import specs_of_signature
from meshflow.lookup.table import Table
from meshflow.saved_model.calls import calls_of
from meshflow.version import VERSION

__all__ = ["ExportArchive"]


class ExportArchive(Module):
    """Collects functions (endpoints) and the variables that they use, and writes them as a SavedModel.

    Attributes:
      variables: those of what is tracked.
      trainable_variables: those of them that are trained.
      non_trainable_variables: the others.

    Example:
      >>> import tempfile
      >>> import meshflow as tf
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
        """The variables of what is tracked."""
        return (*self.trainable_variables, *self.non_trainable_variables)

    @property
    def trainable_variables(self) -> tuple[Variable, ...]:
        """Those that are trained."""
        return self._found_in("trainable_variables")

    @property
    def non_trainable_variables(self) -> tuple[Variable, ...]:
        """Those that are not trained."""
        return self._found_in("non_trainable_variables")

    def _found_in(self, name: str) -> tuple[Variable, ...]:
        found = {id(v): v for r in self._resources for v in getattr(r, name, ())}
        return tuple(found.values())

    def track(self, resource: Any) -> None:
        """Takes what the endpoints use: a layer, model, other module, variable, or lookup table.

        Args:
          resource: the thing; layers must be built. Whatever a checkpoint can hold is taken, but no list or
            dictionary.

        Raises:
          ValueError: for a layer that is not built, or something that can not be tracked.
        """
        if getattr(resource, "built", True) is False:
            raise ValueError(
                f"The layer {resource.name!r} must be built before it is tracked: call it, or its `build()`."
            )
        taken = is_trackable(resource) or isinstance(resource, Table)
        if not taken or isinstance(resource, (list, tuple, Mapping)):
            raise ValueError(
                "Invalid resource type. Expected an instance of a TensorFlow `Trackable` (such as a Keras `Layer` or "
                f"`Model`). Received instead an object of type {type(resource)}: {resource!r}"
            )
        self._resources.append(resource)

    def add_endpoint(
        self, name: str, fn: Callable[..., Any], input_signature: Any = None, **kwargs: Any
    ) -> Function:
        """Adds a function, which the loaded object has as an attribute and as a signature.

        Args:
          name: the attribute's name.
          fn: a function of tensors; or a `tf.function` that has been called or has an `input_signature`.
          input_signature: a list with a `tf.TensorSpec`, an `InputSpec`, an `Input` or a tensor, or a structure of
            them, for each argument.
          **kwargs: `jax2tf_kwargs` and `is_static` of Keras on JAX, which are accepted: functions are written as
            they are.

        Returns:
          The endpoint, a `tf.function`, for use in other ones.

        Raises:
          ValueError: for a name that is taken, or a function without a signature.
          TypeError: for an unknown argument, or something else in the signature.
        """
        unknown = sorted(set(kwargs) - {"jax2tf_kwargs", "is_static"})
        if unknown:
            raise TypeError(f"add_endpoint: unknown arguments {unknown} for endpoint {name!r}.")
        if name in self._endpoints:
            raise ValueError(f"Endpoint name '{name}' is already taken.")
        if input_signature is not None:
            own: Any = function(_by_name(fn), input_signature=specs_of_signature(input_signature))
        elif isinstance(fn, Function):
            own = fn
            if not list(calls_of(fn)):
                raise ValueError(
                    f"The `tf.function` of endpoint {name!r} has never been called. To add it as an endpoint you must "
                    "either provide a function that has been called at least once, or an `input_signature`."
                )
        else:
            raise ValueError(
                "If the `fn` argument provided is not a `tf.function`, you must provide an `input_signature` argument "
                f"to specify the shape and dtype of the function's arguments; endpoint {name!r} has none."
            )
        setattr(self, name, own)
        self._endpoints.append(name)
        return own

    def track_and_add_endpoint(
        self, name: str, resource: Any, input_signature: Any, **kwargs: Any
    ) -> Function:
        """`track`, and `add_endpoint` with the layer's or model's call as it predicts.

        Args:
          name: the endpoint's name.
          resource: a built layer or model.
          input_signature: as of `add_endpoint`.
          **kwargs: as of `add_endpoint`.

        Returns:
          The endpoint, a `tf.function`.

        Raises:
          ValueError: as `track` and `add_endpoint`.
        """
        self.track(resource)
        return self.add_endpoint(name, resource.__call__, input_signature, **kwargs)

    def add_variable_collection(self, name: str, variables: Any) -> None:
        """Adds variables that the loaded object has as an attribute.

        Args:
          name: the attribute's name.
          variables: the variables.

        Raises:
          ValueError: for something else than a list of variables.
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

    def write_out(self, filepath: Any, options: Any = None, verbose: bool = True) -> None:
        """Writes the SavedModel. The first endpoint is its default signature, unless one is called so.

        Args:
          filepath: the folder.
          options: a `tf.saved_model.SaveOptions`.
          verbose: whether it is said where, and which endpoints there are.

        Raises:
          ValueError: without endpoints.
        """
        if not self._endpoints:
            raise ValueError("No endpoints have been set yet. Call add_endpoint().")
        signatures = {name: getattr(self, name) for name in self._endpoints}
        signatures.setdefault("serving_default", signatures[self._endpoints[0]])
        saved_model.save(self, filepath, signatures=signatures, options=options)
        if verbose:
            names = ", ".join(map(repr, self._endpoints))
            print(
                f"Saved artifact at '{text(filepath)}'. The following endpoints are available: {names}."
            )


def _by_name(fn: Callable[..., Any]) -> Callable[..., Any]:
    """A layer's `__call__` with the parameters of its `call`, so that what is loaded takes them by name."""
    layer = getattr(fn, "__self__", None)
    if not isinstance(layer, Layer) or fn.__name__ != "__call__":
        return fn

    def call(*args: Any, **kwargs: Any) -> Any:
        return fn(*args, **kwargs)

    call.__signature__ = inspect.signature(layer.call)  # type: ignore[attr-defined]
    return call
