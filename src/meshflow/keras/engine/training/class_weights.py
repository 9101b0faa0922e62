"""Sample weights from the classes of labels: the argument `class_weight` of `fit`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from meshflow.core.runtime.errors import InvalidValueError
from meshflow.core.values import nest
from meshflow.environment.types import PyTree
from meshflow.keras import settings

if TYPE_CHECKING:
    from meshflow.environment.types import Array

# The weight of each class by integer label.
_Weights: TypeAlias = Mapping[int, float]
# Weights for one output, by output name, or by output index.
ClassWeight: TypeAlias = _Weights | Mapping[str, _Weights | None] | Sequence[_Weights | None]


class ClassWeights:
    """The weights of the classes of each output.

    Args:
      class_weight: Weight of each class for a single output; or such a dictionary or None for each
        output, in a dictionary by output name or in a list.
      output_names: Names of the model's outputs, or None for `output_1`, `output_2`, and so on.

    Raises:
      TypeError: if `class_weight` has another structure.
    """

    def __init__(
        self, class_weight: ClassWeight, output_names: Sequence[str] | None = None
    ) -> None:
        self._output_names = output_names
        self._single: _Weights | None = None
        if isinstance(class_weight, (list, tuple)):
            entries: dict[Any, Any] = dict(enumerate(class_weight))
        elif isinstance(class_weight, Mapping) and _is_by_name(class_weight):
            entries = dict(class_weight)
        else:
            entries = {}
            self._single = class_weight  # type: ignore[assignment]
        self._by_output: dict[str | int, _Weights] = {
            key: value for key, value in entries.items() if value is not None
        }
        for value in [self._single] if self._single is not None else self._by_output.values():
            if not isinstance(value, Mapping):
                raise TypeError(
                    "class_weight must be a dictionary from class numbers to weights, such as {0: 1.0, 1: 2.0}, or for "
                    f"several outputs such dictionaries by output name or in a list, got {class_weight!r}."
                )

    def add_to_batch(self, x: PyTree, y: PyTree, sample_weight: PyTree) -> tuple[Any, Any, Any]:
        """Multiply the sample weights of a batch by the weights of its classes.

        Args:
          x: Inputs.
          y: Labels; one-hot labels have more than one column.
          sample_weight: Weights per example, or None.

        Returns:
          (x, y, sample_weight).

        Raises:
          ValueError: if a label has no weight, or an output has no labels.
        """
        names = self._list_names(y)
        if self._single is not None:
            if y is None:
                raise ValueError("`class_weight` needs labels `y`.")
            if len(names) > 1:
                raise ValueError(
                    "`class_weight` is only supported for Models with a single output if it is one dictionary of classes. "
                    f"For several outputs, pass one per output, such as {{{names[0]!r}: {{0: 1.0, 1: 2.0}}}}."
                )
            by_name = {names[0]: self._single}
        else:
            by_name = self._match_names(names)
        weights = self._split_sample_weight(sample_weight, names)
        for name, label in zip(names, nest.flatten(y), strict=True):
            if name in by_name:
                weight = _weigh_labels(label, by_name[name], name)
                given = weights[name]
                if given is not None:
                    # A weight of an example applies to all of its labels, such as pixels.
                    weight = given.reshape(given.shape + (1,) * (weight.ndim - given.ndim)) * weight
                weights[name] = weight
        if isinstance(y, Mapping):
            return x, y, {name: weight for name, weight in weights.items() if weight is not None}
        return x, y, list(weights.values()) if nest.is_nested(y) else weights[names[0]]

    def _list_names(self, y: PyTree) -> list[str]:
        """List the names of outputs in the order of the flat labels."""
        if isinstance(y, Mapping):
            return sorted(y)
        count = len(nest.flatten(y)) if y is not None else 0
        if self._output_names is not None and len(self._output_names) == count:
            return list(self._output_names)
        return [f"output_{i + 1}" for i in range(count)]

    def _match_names(self, names: list[str]) -> dict[str, _Weights]:
        """Return the weights by the names of the labels."""
        # A list has the order of the outputs, and a dictionary of labels is flattened by name.
        ordered = [name for name in self._output_names or () if name in names] or names
        by_name = {
            ordered[key] if isinstance(key, int) and key < len(ordered) else key: value
            for key, value in self._by_output.items()
        }
        unknown = [key for key in by_name if key not in names]
        if unknown:
            raise ValueError(
                f"`class_weight` has entries for the outputs {unknown}, but the outputs with labels are {names}."
            )
        return by_name  # type: ignore[return-value]

    def _split_sample_weight(self, sample_weight: PyTree, names: list[str]) -> dict[str, Any]:
        """Return the sample weight of each output; a single array belongs to all outputs."""
        if isinstance(sample_weight, Mapping):
            return {name: sample_weight.get(name) for name in names}
        flat = nest.flatten(sample_weight)
        if len(flat) not in (1, len(names)):
            raise ValueError(
                f"The batch has labels for {len(names)} outputs {names}, but {len(flat)} sample weights."
            )
        return dict(zip(names, flat * len(names) if len(flat) == 1 else flat, strict=True))


def _is_by_name(class_weight: Mapping[Any, Any]) -> bool:
    values = [value for value in class_weight.values() if value is not None]
    return bool(class_weight) and all(isinstance(value, Mapping) for value in values)


def _weigh_labels(y: Array, class_weight: _Weights, name: str) -> Array:
    """Return the weight of each label.

    Args:
      y: Integer labels, or one-hot labels with more than one column.
      class_weight: Weight of each class.
      name: Name of the output.
    """
    is_one_hot = y.ndim > 1 and y.shape[-1] > 1
    dtype = settings.floatx()
    if isinstance(y, jax.Array) and not y.is_fully_addressable:
        # The labels are on the devices of several processes, which cannot check them.
        size = max(class_weight, default=0) + 1
        table = np.array([class_weight.get(label, 1.0) for label in range(size)], dtype)
        return jnp.asarray(table)[_to_labels(y, is_one_hot)]
    labels = _to_labels(np.asarray(y), is_one_hot)
    present, indices = np.unique(labels, return_inverse=True)
    missing = sorted(set(present.tolist()) - set(class_weight))
    if missing:
        raise InvalidValueError(
            "Expected `class_weight` to be a dict with keys from 0 to one less than the number of classes, or at least "
            f"all classes in the data. The classes {missing} exist in the data but not in `class_weight` (output {name!r})."
        )
    table = np.array([class_weight[label] for label in present.tolist()], dtype)
    return table[indices.reshape(labels.shape)]


def _to_labels(y: Array, is_one_hot: bool) -> Array:
    if is_one_hot:
        return y.argmax(-1).astype(np.int64)
    return (y[..., 0] if y.ndim > 1 else y).round().astype(np.int64)
