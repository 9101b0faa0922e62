"""Checks integer labels on the host before a step: inside a compiled step it would be too late."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from meshflow.core.values import nest
from meshflow.keras.losses import SparseCategoricalCrossentropy
from meshflow.keras.losses.label_check import check_labels


class CompiledModel(Protocol):
    """What the check reads of a compiled model."""

    compiled_loss: Any

    @property
    def outputs(self) -> Any: ...
    @property
    def output_names(self) -> list[str] | None: ...


class LabelGuard:
    """Refuses integer labels outside the range of a sparse categorical loss.

    Args:
      model: a compiled model; its losses and output shapes say which labels are checked.
    """

    def __init__(self, model: CompiledModel) -> None:
        self._model = model
        self._classes: list[tuple[str, int | None]] | None = None

    def _find_classes(self) -> list[tuple[str, int | None]] | None:
        """For each output its name and number of classes (None: not checked); None while shapes are unknown."""
        model = self._model
        container = model.compiled_loss
        if container is None:
            return []
        outputs, losses = model.outputs, container.losses or nest.flatten(container._user_losses)
        if not any(map(_takes_class_numbers, losses)):
            return []
        if container.predicted_shapes:
            shapes, names = container.predicted_shapes, container.output_names
        elif outputs and len(losses) == len(outputs):
            shapes = [output.shape for output in outputs]
            names = container.output_names or model.output_names or []
        else:
            return None
        return [
            (name, shape[-1] if _takes_class_numbers(loss) and shape.rank else None)
            for name, loss, shape in zip(names, losses, shapes, strict=False)
        ]

    def check(self, batch: Any) -> None:
        """Checks the labels of one host batch, or has them checked when the step is traced.

        Raises:
          InvalidArgumentError: naming the output, the label, its position and the valid range.
        """
        if self._classes is None:
            self._classes = self._find_classes()
        if self._classes is None:
            # The first step of a model without known outputs: its trace tells them, before it runs.
            model = self._model
            model.compiled_loss.when_traced.append(lambda: self.check(batch))
            return
        if not self._classes or not isinstance(batch, tuple) or len(batch) < 2:
            return
        targets = [batch[1]] if isinstance(batch[1], np.ndarray) else nest.flatten(batch[1])
        if len(targets) != len(self._classes):
            return
        for (name, classes), labels in zip(self._classes, targets, strict=True):
            if classes is None or labels is None or not isinstance(labels, np.ndarray):
                continue
            if labels.dtype.kind not in "iuf" or not labels.size:
                continue
            if not (labels.max() < classes and labels.min() >= 0):
                _refuse(name, classes, labels)


def _takes_class_numbers(loss: Any) -> bool:
    """Whether a loss is the sparse cross entropy, of all classes."""
    name = "sparse_categorical_crossentropy"
    sparse = loss == name or isinstance(loss, SparseCategoricalCrossentropy)
    sparse = sparse or getattr(getattr(loss, "fn", loss), "__name__", "") == name
    return sparse and getattr(loss, "ignore_class", None) is None


def _refuse(name: str, classes: int, labels: np.ndarray) -> None:
    check_labels(labels, classes, name)
