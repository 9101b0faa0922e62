"""Range check of integer labels on the host before a step, because a compiled step cannot raise errors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from meshflow.core.values import nest
from meshflow.environment.types import PyTree
from meshflow.keras.losses import SparseCategoricalCrossentropy
from meshflow.keras.losses.label_check import check_labels


class CompiledModel(Protocol):
    """The attributes of a compiled model that the check reads."""

    compiled_loss: Any

    @property
    def outputs(self) -> PyTree:
        """Return the symbolic outputs, None for a subclassed model."""

    @property
    def output_names(self) -> list[str] | None:
        """Return the names of the outputs, None for a subclassed model."""


class LabelRangeCheck:
    """Check that integer labels are in the range of a sparse categorical loss.

    Args:
      model: A compiled model; its losses and output shapes determine the labels to check.
    """

    def __init__(self, model: CompiledModel) -> None:
        self._model = model
        self._classes: list[tuple[str, int | None]] | None = None

    def _find_classes(self) -> list[tuple[str, int | None]] | None:
        """Return the name and number of classes of each output; None while the shapes are unknown.

        The number is None for an output without a check.
        """
        model = self._model
        container = model.compiled_loss
        if container is None:
            return []
        outputs, losses = model.outputs, container.losses
        if not losses:
            losses = _flatten_by_name(container._user_losses, model.output_names or [])
        if not any(map(_takes_class_indices, losses)):
            return []
        if container.prediction_shapes:
            shapes, names = container.prediction_shapes, container.output_names
        elif outputs and len(losses) == len(outputs):
            shapes = [output.shape for output in outputs]
            names = container.output_names or model.output_names or []
        else:
            return None
        return [
            (name, shape[-1] if _takes_class_indices(loss) and shape.rank else None)
            for name, loss, shape in zip(names, losses, shapes, strict=False)
        ]

    def check(self, batch: PyTree) -> None:
        """Check the labels of a host batch now, or when the step is traced.

        Args:
          batch: A tuple (x, y) or (x, y, sample_weight).

        Raises:
          InvalidArgumentError: if a label is out of range; the message names the output, the label,
            its position and the valid range.
        """
        if self._classes is None:
            self._classes = self._find_classes()
        if self._classes is None:
            # The outputs are known once the first step is traced, which happens before it runs.
            model = self._model
            model.compiled_loss.trace_callbacks.append(lambda: self.check(batch))
            return
        if not self._classes or not isinstance(batch, tuple) or len(batch) < 2:
            return
        targets = _flatten_by_name(batch[1], [name for name, _ in self._classes])
        if len(targets) != len(self._classes):
            return
        for (name, classes), labels in zip(self._classes, targets, strict=True):
            if classes is None or labels is None or not isinstance(labels, np.ndarray):
                continue
            if labels.dtype.kind not in "iuf" or not labels.size:
                continue
            if not (labels.max() < classes and labels.min() >= 0):
                check_labels(labels, classes, name)


def _flatten_by_name(structure: PyTree, names: list[str]) -> list[Any]:
    """Return the entries of a structure by output, in the order of the outputs."""
    if isinstance(structure, np.ndarray):
        return [structure]
    if isinstance(structure, Mapping) and set(structure) <= set(names):
        return [structure.get(name) for name in names]
    return nest.flatten(structure)


def _takes_class_indices(loss: object) -> bool:
    """Check whether a loss is the sparse categorical cross entropy without an ignored class."""
    name = "sparse_categorical_crossentropy"
    is_sparse = loss == name or isinstance(loss, SparseCategoricalCrossentropy)
    is_sparse = is_sparse or getattr(getattr(loss, "fn", loss), "__name__", "") == name
    return is_sparse and getattr(loss, "ignore_class", None) is None
