"""`TrackableResource`: a resource of a program's own, such as a table, that is made when it is first needed."""

from __future__ import annotations

import contextlib
from typing import Any

from meshflow.core.runtime.devices import device as placed_on
from meshflow.core.tracing.trace import init_scope

__all__ = ["TrackableResource"]


class TrackableResource:
    """Base class of resources: subclasses say how one is made, filled and given up.

    Functions use what `_create_resource` gives: a `tf.Variable`, a table, or any object. They are saved with the
    variables and tables among these; the resource itself is an object without attributes where they are loaded.

    Args:
      device: where the resource is made; default where variables are.

    Example:
      >>> import meshflow as tf
      >>> class Counter(tf.saved_model.experimental.TrackableResource):
      ...     def _create_resource(self):
      ...         return tf.Variable(0)
      >>> counter = Counter()
      >>> counter.resource_handle.assign_add(2).numpy().item(), counter.resource_handle.numpy().item()
      (2, 2)
    """

    _made: Any = None

    def __init__(self, device: str = "") -> None:
        self._resource_device = device

    def _create_resource(self) -> Any:
        raise NotImplementedError(
            f"{type(self).__name__} must have a method _create_resource, which gives the resource."
        )

    def _initialize(self) -> None:
        """Fills the resource; to be called by the subclass."""

    def _destroy_resource(self) -> None:
        """Gives up the resource; called when the object is deleted."""

    @property
    def resource_handle(self) -> Any:
        """The resource, which is made when this is first asked for."""
        if self._made is None:
            device = getattr(self, "_resource_device", "")
            with init_scope(), placed_on(device) if device else contextlib.nullcontext():
                self._made = self._create_resource()
        return self._made

    def _checkpoint_children(self) -> dict[str, Any]:
        return {}

    def __del__(self) -> None:
        if self._made is not None:
            # The interpreter may be ending: there is nobody to tell.
            with contextlib.suppress(Exception):
                self._destroy_resource()
