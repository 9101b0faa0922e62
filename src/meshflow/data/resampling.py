"""Rejection sampling, such that classes have a target distribution."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

import numpy as np

from meshflow.core.values import dtypes
from meshflow.core.values.specs import TensorSpec
from meshflow.core.values.tensor import TensorLike
from meshflow.data import structure
from meshflow.data.arguments import UNKNOWN_CARDINALITY
from meshflow.data.epoch import Epoch
from meshflow.data.execution.map_function import ElementFunction
from meshflow.data.node import DatasetNode
from meshflow.data.sources import make_seed_words
from meshflow.data.transformations import Unary
from meshflow.environment.types import PyTree

__all__ = ["Resample"]


class Resample(Unary):
    """Pairs of a class and an element, such that the classes have a target distribution.

    An element of class c is kept with probability `target[c] / present[c]`, scaled such that the
    largest probability is 1 (rejection sampling).

    Args:
      parent: The dataset.
      class_func: Function from an element to its class.
      target: Target probability of each class.
      present: Probability of each class in the dataset, None to estimate it while iterating.
      seed: Seed of the random choices, or None.
    """

    def __init__(
        self,
        parent: DatasetNode,
        class_func: Callable[..., Any],
        target: TensorLike,
        present: TensorLike | None,
        seed: int | None,
    ) -> None:
        super().__init__(parent)
        self._class = ElementFunction(class_func, parent.element_spec, "rejection_resample")
        self._target = np.asarray(structure.to_array(target), np.float64)
        self._present = (
            None if present is None else np.asarray(structure.to_array(present), np.float64)
        )
        self._words = make_seed_words(seed)
        self.reshuffles, self.epoch = True, 0

    def get_seed_words(self) -> list[int]:
        """Return the words of the seed."""
        return self._words

    def _infer_spec(self) -> PyTree:
        class_spec = self._class.output_spec
        return class_spec or TensorSpec([], dtypes.int64), self.parent.element_spec

    def count_elements(self) -> int:
        """Return UNKNOWN_CARDINALITY, because elements are rejected at random."""
        return UNKNOWN_CARDINALITY

    def iter_elements(self, epoch: Epoch) -> Generator[Any, None, None]:
        """Iterate over pairs of class and element, accepted with a probability that depends on the class."""
        rng = epoch.create_generator(self)
        # The estimate starts with a uniform distribution, as if each class had occurred twice.
        counts = np.full(len(self._target), 2.0) if self._present is None else None
        for element in self.parent.iter_elements(epoch):
            label = self._class(element)
            if counts is not None:
                counts[int(label)] += 1
            shares = self._present if counts is None else counts / counts.sum()
            assert shares is not None
            ratio = np.where(shares > 0, self._target / np.maximum(shares, 1e-30), 0)
            if rng.random() * ratio.max() <= ratio[int(label)]:
                yield label, element
