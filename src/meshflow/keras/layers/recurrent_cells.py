"""Cells: what a recurrent layer computes in one step.

A cell's `call` takes the inputs of one step and the states, and gives the output and the next states.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from meshflow.core.values import nest
from meshflow.core.values.shapes import TensorShape
from meshflow.keras import registry, serialization
from meshflow.keras.engine.layer.base_layer import Layer
from meshflow.keras.engine.symbolic.call_signature import call_signature
from meshflow.ops import array

__all__ = ["AbstractRNNCell", "StackedRNNCells"]


def zero_states(state_size: Any, batch_size: Any, dtype: Any) -> Any:
    """Zeros for each size in a nested `state_size`: an int, or a shape without the batch dimension."""
    if isinstance(state_size, (list, tuple)):
        return [zero_states(size, batch_size, dtype) for size in state_size]
    sizes = TensorShape(state_size).as_list() if not isinstance(state_size, int) else [state_size]
    return array.zeros([batch_size, *sizes], dtype)


class AbstractRNNCell(Layer):
    """The base class of users' cells: define `call`, `state_size` and `output_size`.

    Input shape:
      (batch, features), and a list of states of `state_size`.

    Output shape:
      (batch, output_size), and the new states.

    Example:
      >>> import meshflow as tf
      >>> class Sum(tf.keras.layers.AbstractRNNCell):
      ...     state_size = output_size = 2
      ...     def call(self, inputs, states):
      ...         total = states[0] + inputs
      ...         return total, [total]
      >>> tf.keras.layers.RNN(Sum())(tf.ones([1, 3, 2])).numpy()
      array([[3., 3.]], dtype=float32)
    """

    def call(self, inputs: Any, states: Any) -> Any:
        """The output and the next states; override it.

        Raises:
          NotImplementedError: unless a subclass defines it.
        """
        raise NotImplementedError(f"{type(self).__name__} must define `call(inputs, states)`.")

    @property
    def state_size(self) -> Any:
        """Sizes of the states: an int, a shape, or a list of them.

        Raises:
          NotImplementedError: unless a subclass defines it.
        """
        raise NotImplementedError(f"{type(self).__name__} must define `state_size`.")

    @property
    def output_size(self) -> Any:
        """Size of the output.

        Raises:
          NotImplementedError: unless a subclass defines it.
        """
        raise NotImplementedError(f"{type(self).__name__} must define `output_size`.")

    def get_initial_state(
        self, inputs: Any = None, batch_size: Any = None, dtype: Any = None
    ) -> Any:
        """Zeros for the states.

        Args:
          inputs: a tensor whose batch size and dtype are taken.
          batch_size: the batch size, without `inputs`.
          dtype: the dtype, without `inputs`.
        """
        if inputs is not None:
            batch_size, dtype = array.shape(inputs)[0], inputs.dtype
        if batch_size is None or dtype is None:
            raise ValueError(
                "batch_size and dtype cannot be None while constructing initial state. Received: "
                f"batch_size={batch_size}, dtype={dtype}"
            )
        return zero_states(self.state_size, batch_size, dtype)


class StackedRNNCells(Layer):
    """Cells on top of each other, as one cell.

    Args:
      cells: the cells, the first of which gets the inputs.
      **kwargs: arguments of `Layer`.

    Input shape:
      (batch, features), and the states of all cells.

    Output shape:
      What the last cell gives, and all new states.

    Raises:
      ValueError: for an object without `call` or `state_size`.

    Example:
      >>> import meshflow as tf
      >>> cell = tf.keras.layers.StackedRNNCells([tf.keras.layers.GRUCell(4), tf.keras.layers.GRUCell(2)])
      >>> tf.keras.layers.RNN(cell)(tf.ones([3, 5, 6])).shape
      TensorShape([3, 2])
    """

    def __init__(self, cells: Sequence[Any], **kwargs: Any) -> None:
        for cell in cells:
            if not hasattr(cell, "call"):
                raise ValueError(
                    f"All cells must have a `call` method. Received cell without a `call`: {cell}"
                )
            if not hasattr(cell, "state_size"):
                raise ValueError(
                    f"All cells must have a `state_size` attribute. Received cell without a `state_size`: {cell}"
                )
        self._reversed = kwargs.pop("reverse_state_order", False)
        super().__init__(**kwargs)
        self.cells = list(cells)

    @property
    def state_size(self) -> Any:
        """Sizes of the states of each cell."""
        cells = self.cells[::-1] if self._reversed else self.cells
        return tuple(c.state_size for c in cells)

    @property
    def output_size(self) -> Any:
        """Size of the last cell's output."""
        return output_size(self.cells[-1])

    def get_initial_state(
        self, inputs: Any = None, batch_size: Any = None, dtype: Any = None
    ) -> Any:
        """Initial states of each cell, zeros unless a cell has its own."""
        if inputs is not None:
            batch_size, dtype = array.shape(inputs)[0], inputs.dtype
        cells = self.cells[::-1] if self._reversed else self.cells
        return tuple(initial_state(c, inputs, batch_size, dtype) for c in cells)

    def build(self, input_shape: Any) -> None:
        """Builds the cells, each for the output of the one before."""
        shape = TensorShape(input_shape)
        for cell in self.cells:
            build_cell(cell, shape)
            shape = TensorShape([shape[0], *TensorShape(_as_shape(output_size(cell))).as_list()])
        self.built = True

    def call(self, inputs: Any, states: Any, constants: Any = None, training: Any = None) -> Any:
        """One step of all cells.

        Args:
          inputs: a tensor [batch, features].
          states: the states of each cell, in the structure of `state_size`.
          constants: tensors for cells whose `call` takes `constants`.
          training: whether dropout is applied.

        Returns:
          The last cell's output and the next states.
        """
        order = self.state_size[::-1] if self._reversed else self.state_size
        packed = nest.pack_sequence_as(self.state_size, nest.flatten(states))
        packed = packed[::-1] if self._reversed else packed
        after = []
        for cell, before, size in zip(self.cells, packed, order, strict=True):
            many = isinstance(size, (list, tuple))
            inputs, new = call_cell(
                cell, inputs, list(before) if many else [before], constants, training
            )
            after.append(list(new) if many else nest.flatten(new)[0])
        after = after[::-1] if self._reversed else after
        return inputs, nest.pack_sequence_as(states, nest.flatten(after))

    def hold_masks(self, inputs: Any, training: Any) -> Any:
        """Uses the same dropout masks in every step until `drop_masks`."""
        for cell in self.cells:
            if hasattr(cell, "hold_masks"):
                inputs = cell.hold_masks(inputs, training)
            else:
                sizes = TensorShape(_as_shape(output_size(cell))).as_list()
                inputs = array.zeros([inputs.shape[0], *sizes], inputs.dtype)
        return inputs

    def drop_masks(self) -> None:
        """Ends `hold_masks`."""
        for cell in self.cells:
            if hasattr(cell, "drop_masks"):
                cell.drop_masks()

    def get_config(self) -> dict[str, Any]:
        """The configuration: the cells'."""
        return {**super().get_config(), "cells": [serialization.serialize(c) for c in self.cells]}

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Any:
        """The layer with a configuration."""
        config = dict(config)
        cells = [registry.LAYERS.deserialize(c, custom_objects) for c in config.pop("cells")]
        return cls(cells, **config)


def _as_shape(size: Any) -> Any:
    return [size] if isinstance(size, (int, np.integer)) else size


def output_size(cell: Any) -> Any:
    """Size of a cell's output: `output_size`, or the size of its first state."""
    size = getattr(cell, "output_size", None)
    if size is not None:
        return size
    states = cell.state_size
    return states[0] if isinstance(states, (list, tuple)) else states


def initial_state(cell: Any, inputs: Any, batch_size: Any, dtype: Any) -> Any:
    """A cell's own initial states, or zeros."""
    own = getattr(cell, "get_initial_state", None)
    if own is not None:
        return own(inputs=None, batch_size=batch_size, dtype=dtype)
    return zero_states(cell.state_size, batch_size, dtype)


def build_cell(cell: Any, shape: TensorShape, named: bool = True) -> None:
    """Builds a cell for inputs of one step, by default under its own name."""
    if isinstance(cell, Layer) and not cell.built:
        with cell._calling(None, named):
            cell._build_input_shape = shape
            cell.build(shape)
            cell.built = True


def call_cell(cell: Any, inputs: Any, states: Any, constants: Any, training: Any) -> Any:
    """Calls a cell with those of the optional arguments that its `call` takes."""
    optional = call_signature(type(cell))
    kwargs: dict[str, Any] = {}
    if constants and "constants" in optional.names:
        kwargs["constants"] = constants
    if optional.takes_training:
        kwargs["training"] = training
    run = cell if isinstance(cell, Layer) else cell.call
    return run(inputs, states, **kwargs)
