"""`tf.__internal__.tracking`: objects that checkpoints save with their attributes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from meshflow.checkpoint.object_graph import list_children
from meshflow.core.variables.module import ObservableAttributes

__all__ = [
    "AutoTrackable",
    "Trackable",
    "TrackableReference",
    "list_children",
    "no_automatic_dependency_tracking",
    "sticky_attribute_assignment",
    "wrap",
]

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")


class Trackable(ObservableAttributes):
    """Base class of objects that a checkpoint saves with the objects that `_track_trackable` adds.

    Example:
      >>> import os, tempfile
      >>> class Counter(tf.__internal__.tracking.AutoTrackable):
      ...     def __init__(self):
      ...         self.steps = tf.Variable(0)
      >>> path = os.path.join(tempfile.mkdtemp(), "counter")
      >>> _ = tf.train.Checkpoint(counter=Counter()).write(path)
      >>> [name for name, _ in tf.train.list_variables(path) if name.startswith("counter")]
      ['counter/steps/.ATTRIBUTES/VARIABLE_VALUE']
    """

    @property
    def _tracked_names(self) -> set[str] | None:  # type: ignore[override]
        """Return the names that were passed to `_track_trackable`, or None if all attributes are saved."""
        return self.__dict__.setdefault("_names_of_tracked", set())


class AutoTrackable(Trackable):
    """Object that a checkpoint saves with the variables and trackable objects in its attributes."""

    _tracked_names = None


class TrackableReference(NamedTuple):
    """Name and object of a dependency."""

    name: str
    ref: Any


def no_automatic_dependency_tracking(method: F) -> F:
    """Return a method unchanged: objects are tracked when a checkpoint is saved."""
    return method


def sticky_attribute_assignment(trackable: object, name: str, value: T) -> T:
    """Return a value unchanged."""
    return value


def wrap(value: T) -> T:
    """Return a value unchanged: lists and dictionaries are tracked when a checkpoint is saved."""
    return value
