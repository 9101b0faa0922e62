"""`TrackableResource`: a user-defined resource that is created when it is first used."""

from __future__ import annotations

import contextlib
from typing import Any

from meshflow.core.runtime.devices import device as placed_on
from meshflow.core.tracing.trace import init_scope


class TrackableResource:
    """Base class of resources. Subclasses define how a resource is created, initialized and destroyed.

    Functions use the result of `_create_resource`: a `tf.Variable`, a table, or any object. A
    function is saved with the
    variables and tables among these; the resource itself is loaded as an object without attributes.

    Args:
      device: Device on which the resource is created. Default: the device of variables.

    Example:
      >>> class Counter(tf.saved_model.experimental.TrackableResource):
      ...     def _create_resource(self):
      ...         return tf.Variable(0)
      >>> counter = Counter()
      >>> counter.resource_handle.assign_add(2).numpy().item(), counter.resource_handle.numpy().item()
      (2, 2)
    """

    _resource: Any = None

    def __init__(self, device: str = "") -> None:
        self._resource_device = device

    def _create_resource(self) -> Any:
        raise NotImplementedError(
            f"{type(self).__name__} must have a method _create_resource that returns the resource."
        )

    def _initialize(self) -> None:
        """Initialize the resource. Subclasses call this method themselves."""

    def _destroy_resource(self) -> None:
        """Destroy the resource. Called when the object is deleted."""

    @property
    def resource_handle(self) -> Any:
        """Return the resource, which is created on the first access."""
        if self._resource is None:
            device = getattr(self, "_resource_device", "")
            with init_scope(), placed_on(device) if device else contextlib.nullcontext():
                self._resource = self._create_resource()
        return self._resource

    def _checkpoint_children(self) -> dict[str, Any]:
        return {}

    def __del__(self) -> None:
        if self._resource is not None:
            # The interpreter may be shutting down, so an error cannot be reported.
            with contextlib.suppress(Exception):
                self._destroy_resource()
