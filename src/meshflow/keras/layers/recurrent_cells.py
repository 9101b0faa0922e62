"""Cells, which compute one step of a recurrent layer.

The `call` method of a cell takes the inputs of one step and the states, and returns the output and
the next states.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from meshflow.core.values import nest
from meshflow.core.values.dtypes import DTypeLike
from meshflow.core.values.shapes import ShapeLike, TensorShape
from meshflow.core.values.tensor import Tensor
from meshflow.environment.types import Config, PyTree
from meshflow.keras import registry, serialization
from meshflow.keras.engine.layer.base_layer import Layer
from meshflow.keras.engine.symbolic.call_signature import get_call_signature
from meshflow.ops import array

__all__ = ["AbstractRNNCell", "StackedRNNCells"]


def make_zero_states(state_size: PyTree, batch_size: Any, dtype: DTypeLike | None) -> PyTree:
    """Return zeros for each integer or shape (without the batch axis) in a nested `state_size`."""
    if isinstance(state_size, (list, tuple)):
        return [make_zero_states(size, batch_size, dtype) for size in state_size]
    sizes = TensorShape(state_size).as_list() if not isinstance(state_size, int) else [state_size]
    return array.zeros([batch_size, *sizes], dtype)


class AbstractRNNCell(Layer):
    """Base class of cells of users, which define `call`, `state_size` and `output_size`.

    Input shape:
      (batch, features), and a list of states of `state_size`.

    Output shape:
      (batch, output_size), and the new states.

    Example:
      >>> class Sum(tf.keras.layers.AbstractRNNCell):
      ...     state_size = output_size = 2
      ...     def call(self, inputs, states):
      ...         total = states[0] + inputs
      ...         return total, [total]
      >>> tf.keras.layers.RNN(Sum())(tf.ones([1, 3, 2])).numpy()
      array([[3., 3.]], dtype=float32)
    """

    def call(self, inputs: PyTree, states: PyTree) -> Any:
        """Compute the output and the next states; subclasses override this method."""
        raise NotImplementedError(f"{type(self).__name__} must define `call(inputs, states)`.")

    @property
    def state_size(self) -> PyTree:
        """Return the sizes of the states: an integer, a shape, or a list of them."""
        raise NotImplementedError(f"{type(self).__name__} must define `state_size`.")

    @property
    def output_size(self) -> ShapeLike:
        """Return the size of the output."""
        raise NotImplementedError(f"{type(self).__name__} must define `output_size`.")

    def get_initial_state(
        self,
        inputs: Tensor | None = None,
        batch_size: Any = None,
        dtype: DTypeLike | None = None,
    ) -> PyTree:
        """Return zeros for the states.

        Args:
          inputs: Tensor that determines batch size and dtype.
          batch_size: Batch size, if `inputs` is None.
          dtype: Dtype, if `inputs` is None.
        """
        if inputs is not None:
            batch_size, dtype = array.shape(inputs)[0], inputs.dtype
        if batch_size is None or dtype is None:
            raise ValueError(
                "batch_size and dtype cannot be None while constructing initial state. Received: "
                f"batch_size={batch_size}, dtype={dtype}"
            )
        return make_zero_states(self.state_size, batch_size, dtype)


class StackedRNNCells(Layer):
    """Stack of cells that acts as one cell.

    Args:
      cells: The cells, from input to output.
      **kwargs: Arguments of `Layer`.

    Input shape:
      (batch, features), and the states of all cells.

    Output shape:
      The output of the last cell, and all new states.

    Raises:
      ValueError: If an object has no `call` or `state_size`.

    Example:
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
        self._is_reversed = kwargs.pop("reverse_state_order", False)
        super().__init__(**kwargs)
        self.cells = list(cells)

    @property
    def state_size(self) -> PyTree:
        """Return the sizes of the states of each cell."""
        cells = self.cells[::-1] if self._is_reversed else self.cells
        return tuple(c.state_size for c in cells)

    @property
    def output_size(self) -> ShapeLike:
        """Return the size of the output of the last cell."""
        return get_output_size(self.cells[-1])

    def get_initial_state(
        self,
        inputs: Tensor | None = None,
        batch_size: Any = None,
        dtype: DTypeLike | None = None,
    ) -> PyTree:
        """Return the initial states of each cell: zeros, unless the cell defines others."""
        if inputs is not None:
            batch_size, dtype = array.shape(inputs)[0], inputs.dtype
        cells = self.cells[::-1] if self._is_reversed else self.cells
        return tuple(make_initial_state(c, inputs, batch_size, dtype) for c in cells)

    def build(self, input_shape: PyTree) -> None:
        """Build each cell for the output shape of the cell before it."""
        shape = TensorShape(input_shape)
        for cell in self.cells:
            build_cell(cell, shape)
            shape = TensorShape([shape[0], *TensorShape(as_shape(get_output_size(cell))).as_list()])
        self.built = True

    def call(
        self,
        inputs: PyTree,
        states: PyTree,
        constants: Sequence[Tensor] | None = None,
        training: Any = None,
    ) -> tuple[Any, PyTree]:
        """Compute one step of all cells.

        Args:
          inputs: Tensor [batch, features].
          states: States of each cell, in the structure of `state_size`.
          constants: Tensors for cells with a `call` method that takes `constants`.
          training: Whether to apply dropout.

        Returns:
          The output of the last cell and the next states.
        """
        order = self.state_size[::-1] if self._is_reversed else self.state_size
        packed = nest.pack_sequence_as(self.state_size, nest.flatten(states))
        packed = packed[::-1] if self._is_reversed else packed
        next_states = []
        for cell, before, size in zip(self.cells, packed, order, strict=True):
            has_several_states = isinstance(size, (list, tuple))
            inputs, new = call_cell(
                cell, inputs, list(before) if has_several_states else [before], constants, training
            )
            next_states.append(list(new) if has_several_states else nest.flatten(new)[0])
        next_states = next_states[::-1] if self._is_reversed else next_states
        return inputs, nest.pack_sequence_as(states, nest.flatten(next_states))

    def hold_masks(self, inputs: Tensor, training: Any) -> None:
        """Use the same dropout masks in every step until `drop_masks` is called."""
        for cell in self.cells:
            if hasattr(cell, "hold_masks"):
                cell.hold_masks(inputs, training)
            sizes = TensorShape(as_shape(get_output_size(cell))).as_list()
            inputs = array.zeros([inputs.shape[0], *sizes], inputs.dtype)

    def drop_masks(self) -> None:
        """Release the dropout masks that `hold_masks` created."""
        for cell in self.cells:
            if hasattr(cell, "drop_masks"):
                cell.drop_masks()

    def get_config(self) -> Config:
        """Return the configuration, which contains those of the cells."""
        return {**super().get_config(), "cells": [serialization.serialize(c) for c in self.cells]}

    @classmethod
    def from_config(cls, config: Config, custom_objects: dict[str, Any] | None = None) -> Any:
        """Create the layer from its configuration."""
        config = dict(config)
        cells = [registry.LAYERS.deserialize(c, custom_objects) for c in config.pop("cells")]
        return cls(cells, **config)


def as_shape(size: ShapeLike) -> ShapeLike:
    """Convert an integer size to a shape."""
    return [size] if isinstance(size, (int, np.integer)) else size


def get_output_size(cell: Any) -> ShapeLike:
    """Return the size of the output of a cell: `output_size`, or the size of its first state."""
    with contextlib.suppress(NotImplementedError):
        size = getattr(cell, "output_size", None)
        if size is not None:
            return size
    states = cell.state_size
    return states[0] if isinstance(states, (list, tuple)) else states


def make_initial_state(
    cell: Any, inputs: Tensor | None, batch_size: Any, dtype: DTypeLike | None
) -> PyTree:
    """Return the initial states that a cell defines, or zeros."""
    make_states = getattr(cell, "get_initial_state", None)
    if make_states is not None:
        return make_states(inputs=None, batch_size=batch_size, dtype=dtype)
    return make_zero_states(cell.state_size, batch_size, dtype)


def build_cell(cell: object, shape: PyTree, named: bool = True) -> None:
    """Build a cell for the inputs of one step, by default within its own name scope."""
    if isinstance(cell, Layer) and not cell.built:
        with cell._call_scope(None, named):
            cell._build_input_shape = shape
            cell.build(shape)
            cell.built = True


def call_cell(
    cell: Any, inputs: PyTree, states: PyTree, constants: Sequence[Tensor] | None, training: Any
) -> Any:
    """Call a cell with the optional arguments that its `call` method accepts."""
    signature = get_call_signature(type(cell))
    kwargs: dict[str, Any] = {}
    if constants and "constants" in signature.arg_names:
        kwargs["constants"] = constants
    if signature.expects_training_arg:
        kwargs["training"] = training
    run = cell if isinstance(cell, Layer) else cell.call
    return run(inputs, states, **kwargs)
