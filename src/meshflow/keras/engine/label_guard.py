"""Checks integer labels on the host before a step: inside a compiled step it would be too late."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from meshflow.core import nest

if TYPE_CHECKING:
    from meshflow.keras.engine.compiling import Compiling


class LabelGuard:
    """Refuses integer labels outside the range of a sparse categorical loss.

    Args:
      model: a compiled model; its losses and output shapes say which labels are checked.
    """

    def __init__(self, model: Compiling) -> None:
        self._model = model
        self._classes: list[tuple[str, int | None]] | None = None

    def _find_classes(self) -> list[tuple[str, int | None]]:
        """For each output its name and number of classes, None when labels are not checked."""
        from meshflow.keras.losses import SparseCategoricalCrossentropy

        model: Any = self._model
        container = model.compiled_loss
        outputs = model.outputs
        if not outputs or container is None:
            return []
        names = container.output_names or model.output_names or []
        losses = container.losses or nest.flatten(container._user_losses)
        if len(losses) != len(outputs):
            return []
        found = []
        for name, loss, output in zip(names, losses, outputs, strict=False):
            sparse = loss == "sparse_categorical_crossentropy" or isinstance(
                loss, SparseCategoricalCrossentropy
            )
            sparse = sparse or getattr(loss, "__name__", "") == "sparse_categorical_crossentropy"
            ignored = getattr(loss, "ignore_class", None) is not None
            classes = output.shape[-1] if sparse and not ignored and output.shape.rank else None
            found.append((name, classes))
        return found if any(c is not None for _, c in found) else []

    def check(self, batch: Any) -> None:
        """Checks the labels of one host batch.

        Raises:
          InvalidArgumentError: naming the output, the label, its position and the valid range.
        """
        if self._classes is None:
            self._classes = self._find_classes()
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
            if labels.max() >= classes or labels.min() < 0:
                _refuse(name, classes, labels)


def _refuse(name: str, classes: int, labels: np.ndarray) -> None:
    from meshflow.keras.losses.label_check import check_labels

    check_labels(labels, classes, name)
