"""Cells of `tf.compat.v1.nn.rnn_cell`, wrappers of cells, and loops over time of TensorFlow 1."""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

from meshflow.core.runtime.context import context
from meshflow.core.values import nest
from meshflow.core.values.dtypes import DTypeLike
from meshflow.core.values.shapes import ShapeLike, TensorShape
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.environment.types import Config, PyTree
from meshflow.keras import activations, initializers
from meshflow.keras.engine.layer.base_layer import Layer
from meshflow.legacy.compat.public_package import tf
from meshflow.legacy.compat.variables import variable_scope
from meshflow.legacy.graph.graph import get_default_graph, has_explicit_graph

# An object with the methods of `RNNCell`.
Cell: TypeAlias = Any


class LSTMStateTuple(NamedTuple):
    """Cell state and hidden state of an LSTM."""

    c: Any
    h: Any


def _make_cell_name(base: str) -> str:
    """Return the name of a cell that no other cell in the current scope of the graph has."""
    scope = "/".join(context.name_scopes)
    names = {v.name for v in get_default_graph().list_variables()}
    candidates = itertools.chain([base], (f"{base}_{i}" for i in itertools.count(1)))

    def is_free(name: str) -> bool:
        prefix = f"{scope}/{name}/" if scope else f"{name}/"
        return not any(n.startswith(prefix) for n in names)

    return next(filter(is_free, candidates))


class RNNCell(Layer):
    """Base class of cells: `call(inputs, state)` returns the output and the new state."""

    def __call__(self, inputs: TensorLike, state: PyTree, *args: Any, **kwargs: Any) -> Any:
        """Return the output and the new state."""
        is_in_graph = has_explicit_graph() or get_default_graph().is_calling_layer
        if is_in_graph and not self.built and not self._user_named:
            self._name = _make_cell_name(re.sub(r"_\d+$", "", self._name))
        return super().__call__(inputs, state, *args, **kwargs)

    @property
    def state_size(self) -> PyTree:
        """Return the size of each state."""
        raise NotImplementedError("Abstract method")

    @property
    def output_size(self) -> PyTree:
        """Return the size of the output."""
        raise NotImplementedError("Abstract method")

    def zero_state(self, batch_size: object, dtype: DTypeLike | None) -> PyTree:
        """Return states of zeros."""
        return nest.map_structure(
            lambda size: tf.zeros([batch_size, int(size)], dtype), self.state_size
        )

    def get_initial_state(
        self,
        inputs: Tensor | None = None,
        batch_size: object = None,
        dtype: DTypeLike | None = None,
    ) -> PyTree:
        """Return states of zeros for a batch of inputs."""
        if inputs is not None:
            batch_size, dtype = tf.shape(inputs)[0], inputs.dtype
        return self.zero_state(batch_size, dtype)


class _DenseCell(RNNCell):
    """Cell with matrix products of inputs and state.

    Args:
      num_units: Size of the state.
      activation: Function of the new values; tanh by default.
      **kwargs: Arguments of `Layer`; `reuse` is ignored.
    """

    _initializer: object = None

    def __init__(self, num_units: int, activation: object = None, **kwargs: Any) -> None:
        for name in ("reuse", "num_unit_shards", "num_proj_shards"):
            kwargs.pop(name, None)
        super().__init__(**kwargs)
        self._num_units = num_units
        self._activation = activations.get(activation or "tanh")

    @property
    def state_size(self) -> PyTree:
        """Return the size of each state."""
        return self._num_units

    @property
    def output_size(self) -> PyTree:
        """Return the size of the output."""
        return self._num_units

    def _add_product(
        self, prefix: str, rows: int, columns: int, bias: object = "zeros"
    ) -> tuple[Any, Any]:
        """Return a new kernel and a new bias."""
        kernel = self.add_weight(
            name=f"{prefix}kernel",
            shape=(rows, columns),
            initializer=self._initializer or "glorot_uniform",
        )
        return kernel, self.add_weight(name=f"{prefix}bias", shape=(columns,), initializer=bias)

    def get_config(self) -> Config:
        """Return the configuration."""
        return {
            **super().get_config(),
            "num_units": self._num_units,
            "activation": activations.serialize(self._activation),
        }


class BasicRNNCell(_DenseCell):
    """Cell that computes `activation([x, h] @ kernel + bias)`."""

    def build(self, inputs_shape: ShapeLike) -> None:
        """Create the weights."""
        self._kernel, self._bias = self._add_product(
            "", (TensorShape(inputs_shape)[-1] or 0) + self._num_units, self._num_units
        )
        self.built = True

    def call(self, inputs: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Return the output and the new state, which are equal."""
        output = self._activation(tf.concat([inputs, state], 1) @ self._kernel + self._bias)
        return output, output


class GRUCell(_DenseCell):
    """Gated cell that applies the reset gate before the matrix product.

    Args:
      num_units: Size of the state.
      activation: Function of the new values; tanh by default.
      kernel_initializer: Initializer of the kernels.
      bias_initializer: Initializer of the biases; by default 1 for gates and 0 for values.
      **kwargs: Arguments of `Layer`.
    """

    def __init__(
        self,
        num_units: int,
        activation: object = None,
        reuse: object = None,
        kernel_initializer: object = None,
        bias_initializer: object = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(num_units, activation, **kwargs)
        self._initializer, self._bias_initializer = (
            initializers.get(kernel_initializer),
            bias_initializer,
        )

    def build(self, inputs_shape: ShapeLike) -> None:
        """Create the weights."""
        rows, units = (TensorShape(inputs_shape)[-1] or 0) + self._num_units, self._num_units
        self._gate_kernel, self._gate_bias = self._add_product(
            "gates/", rows, 2 * units, self._bias_initializer or "ones"
        )
        self._kernel, self._bias = self._add_product(
            "candidate/", rows, units, self._bias_initializer or "zeros"
        )
        self.built = True

    def call(self, inputs: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Return the output and the new state, which are equal."""
        gates = tf.sigmoid(tf.concat([inputs, state], 1) @ self._gate_kernel + self._gate_bias)
        reset, update = tf.split(gates, 2, axis=1)
        values = self._activation(tf.concat([inputs, reset * state], 1) @ self._kernel + self._bias)
        output = update * state + (1 - update) * values
        return output, output


class LSTMCell(_DenseCell):
    """LSTM cell.

    Args:
      num_units: Size of the state.
      use_peepholes: Whether gates depend on the cell state.
      cell_clip: Largest absolute value of the cell state.
      initializer: Initializer of the weights.
      num_proj: Size of the output, if it is projected.
      proj_clip: Largest absolute value of a projected output.
      num_unit_shards: Ignored.
      num_proj_shards: Ignored.
      forget_bias: Added to the forget gate.
      state_is_tuple: Whether the state is an `LSTMStateTuple` instead of one tensor.
      activation: Function of the values; tanh by default.
      reuse: Ignored.
      **kwargs: Arguments of `Layer`.

    Example:
      >>> cell = tf.compat.v1.nn.rnn_cell.LSTMCell(4)
      >>> output, state = cell(tf.ones([2, 3]), cell.zero_state(2, tf.float32))
      >>> output.shape, state.c.shape
      (TensorShape([2, 4]), TensorShape([2, 4]))
    """

    def __init__(
        self,
        num_units: int,
        use_peepholes: bool = False,
        cell_clip: float | None = None,
        initializer: object = None,
        num_proj: int | None = None,
        proj_clip: float | None = None,
        num_unit_shards: object = None,
        num_proj_shards: object = None,
        forget_bias: float = 1.0,
        state_is_tuple: bool = True,
        activation: object = None,
        reuse: object = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(num_units, activation, **kwargs)
        self._use_peepholes, self._cell_clip, self._num_proj = use_peepholes, cell_clip, num_proj
        self._initializer, self._proj_clip, self._forget_bias = (
            initializers.get(initializer),
            proj_clip,
            forget_bias,
        )
        self._state_is_tuple = state_is_tuple

    @property
    def state_size(self) -> PyTree:
        """Return the size of each state."""
        size = self._num_proj or self._num_units
        return (
            LSTMStateTuple(self._num_units, size)
            if self._state_is_tuple
            else self._num_units + size
        )

    @property
    def output_size(self) -> PyTree:
        """Return the size of the output."""
        return self._num_proj or self._num_units

    def build(self, inputs_shape: ShapeLike) -> None:
        """Create the weights."""
        rows = (TensorShape(inputs_shape)[-1] or 0) + self.output_size
        self._kernel, self._bias = self._add_product("", rows, 4 * self._num_units)
        if self._use_peepholes:
            self._peepholes = [
                self.add_weight(
                    name=f"w_{n}_diag",
                    shape=(self._num_units,),
                    initializer=self._initializer or "glorot_uniform",
                )
                for n in ("f", "i", "o")
            ]
        if self._num_proj is not None:
            self._projection = self.add_weight(
                name="projection/kernel",
                shape=(self._num_units, self._num_proj),
                initializer=self._initializer or "glorot_uniform",
            )
        self.built = True

    def call(self, inputs: Tensor, state: PyTree) -> tuple[Tensor, Any]:
        """Return the output and the new state."""
        cell, hidden = (
            state
            if self._state_is_tuple
            else tf.split(state, [self._num_units, self.output_size], axis=1)
        )
        product = tf.concat([inputs, hidden], 1) @ self._kernel + self._bias
        gate, values, forget, output_gate = tf.split(product, 4, axis=1)
        if self._use_peepholes:
            forget, gate = forget + self._peepholes[0] * cell, gate + self._peepholes[1] * cell
        cell = tf.sigmoid(forget + self._forget_bias) * cell + tf.sigmoid(gate) * self._activation(
            values
        )
        if self._cell_clip is not None:
            cell = tf.clip_by_value(cell, -self._cell_clip, self._cell_clip)
        if self._use_peepholes:
            output_gate = output_gate + self._peepholes[2] * cell
        output = tf.sigmoid(output_gate) * self._activation(cell)
        if self._num_proj is not None:
            output = output @ self._projection
            if self._proj_clip is not None:
                output = tf.clip_by_value(output, -self._proj_clip, self._proj_clip)
        return output, LSTMStateTuple(cell, output) if self._state_is_tuple else tf.concat(
            [cell, output], 1
        )


class BasicLSTMCell(LSTMCell):
    """LSTM cell without options.

    Args:
      num_units: Size of the state.
      forget_bias: Added to the forget gate.
      state_is_tuple: Whether the state is an `LSTMStateTuple` instead of one tensor.
      activation: Function of the values; tanh by default.
      reuse: Ignored.
      **kwargs: Arguments of `Layer`.
    """

    def __init__(
        self,
        num_units: int,
        forget_bias: float = 1.0,
        state_is_tuple: bool = True,
        activation: object = None,
        reuse: object = None,
        **kwargs: Any,
    ) -> None:
        kwargs |= {
            "forget_bias": forget_bias,
            "state_is_tuple": state_is_tuple,
            "activation": activation,
        }
        super().__init__(num_units, **kwargs)


class MultiRNNCell(RNNCell):
    """Stack of cells.

    Args:
      cells: The cells.
      state_is_tuple: True: the state is a tuple of the states of the cells.
    """

    def __init__(self, cells: Sequence[Any], state_is_tuple: bool = True) -> None:
        super().__init__()
        if not state_is_tuple:
            raise NotImplementedError("MultiRNNCell: the state is always a tuple.")
        self._cells = list(cells)

    @property
    def state_size(self) -> PyTree:
        """Return the size of each state."""
        return tuple(cell.state_size for cell in self._cells)

    @property
    def output_size(self) -> PyTree:
        """Return the size of the output."""
        return self._cells[-1].output_size

    def call(self, inputs: Tensor, state: Sequence[Any]) -> tuple[Tensor, tuple[Any, ...]]:
        """Return the output of the last cell, and the new states."""
        states = []
        for index, (cell, cell_state) in enumerate(zip(self._cells, state, strict=True)):
            with tf.name_scope(f"cell_{index}"):
                inputs, new_state = cell(inputs, cell_state)
            states.append(new_state)
        return inputs, tuple(states)


class _Wrapper(RNNCell):
    """Base class of cells that change the inputs or outputs of another cell.

    Args:
      cell: The other cell.
      **kwargs: Arguments of `Layer`.
    """

    # The names of weights contain the name of the other cell only.
    _opens_scope = False

    def __init__(self, cell: Cell, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.cell = cell

    @property
    def wrapped_cell(self) -> Any:
        """Return the other cell."""
        return self.cell

    @property
    def state_size(self) -> PyTree:
        """Return the size of each state."""
        return self.cell.state_size

    @property
    def output_size(self) -> PyTree:
        """Return the size of the output."""
        return self.cell.output_size

    def zero_state(self, batch_size: object, dtype: DTypeLike | None) -> PyTree:
        """Return states of zeros."""
        if hasattr(self.cell, "zero_state"):
            return self.cell.zero_state(batch_size, dtype)
        return self.cell.get_initial_state(batch_size=batch_size, dtype=dtype)

    def call(self, inputs: Tensor, state: PyTree, **kwargs: Any) -> tuple[Tensor, PyTree]:
        """Return the output and the new state."""
        return self._call_cell(inputs, state, **kwargs)

    def _call_cell(self, inputs: Tensor, state: PyTree, **kwargs: Any) -> tuple[Tensor, PyTree]:
        return self.cell(inputs, state, **kwargs)


class DropoutWrapper(_Wrapper):
    """Cell with dropout of the inputs, outputs and states of another cell.

    Args:
      cell: The other cell.
      input_keep_prob: Probability that an input is kept.
      output_keep_prob: Probability that an output is kept.
      state_keep_prob: Probability that a state is kept; the cell state of an LSTM is never changed.
      variational_recurrent: False: each step has its own mask.
      input_size: Ignored.
      dtype: Ignored.
      seed: Seed of the masks.
      dropout_state_filter_visitor: Ignored.
      **kwargs: Arguments of `Layer`.
    """

    def __init__(
        self,
        cell: Cell,
        input_keep_prob: TensorLike = 1.0,
        output_keep_prob: TensorLike = 1.0,
        state_keep_prob: TensorLike = 1.0,
        variational_recurrent: bool = False,
        input_size: object = None,
        dtype: object = None,
        seed: int | None = None,
        dropout_state_filter_visitor: object = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(cell, **kwargs)
        if variational_recurrent:
            raise NotImplementedError(
                "DropoutWrapper: variational_recurrent is not available; use recurrent_dropout."
            )
        for value in (input_keep_prob, output_keep_prob, state_keep_prob):
            if isinstance(value, (int, float)) and not 0 <= value <= 1:
                raise ValueError(
                    f"DropoutWrapper: probabilities must be between 0 and 1, got {value}."
                )
        self._input_keep_prob, self._output_keep_prob = input_keep_prob, output_keep_prob
        self._state_keep_prob, self._seed = state_keep_prob, seed

    def _drop(self, value: Tensor, keep_prob: TensorLike) -> Tensor:
        if isinstance(keep_prob, (int, float)) and keep_prob == 1:
            return value
        return tf.nn.dropout(value, rate=1 - keep_prob, seed=self._seed)

    def _call_cell(self, inputs: Tensor, state: PyTree, **kwargs: Any) -> tuple[Tensor, PyTree]:
        output, new_state = self.cell(self._drop(inputs, self._input_keep_prob), state, **kwargs)
        if isinstance(new_state, LSTMStateTuple):
            new_state = LSTMStateTuple(new_state.c, self._drop(new_state.h, self._state_keep_prob))
        else:
            new_state = nest.map_structure(
                lambda s: self._drop(s, self._state_keep_prob), new_state
            )
        return self._drop(output, self._output_keep_prob), new_state


class ResidualWrapper(_Wrapper):
    """Cell that adds its inputs to the outputs of another cell.

    Args:
      cell: The other cell.
      residual_fn: Function of inputs and outputs instead of the sum.
      **kwargs: Arguments of `Layer`.
    """

    def __init__(
        self, cell: Cell, residual_fn: Callable[..., Any] | None = None, **kwargs: Any
    ) -> None:
        super().__init__(cell, **kwargs)
        self._residual_fn = residual_fn

    def _call_cell(self, inputs: Tensor, state: PyTree, **kwargs: Any) -> tuple[Tensor, PyTree]:
        output, new_state = self.cell(inputs, state, **kwargs)
        combine = self._residual_fn or (lambda i, o: nest.map_structure(lambda a, b: a + b, i, o))
        return combine(inputs, output), new_state


class DeviceWrapper(_Wrapper):
    """Cell that runs another cell on a device.

    Args:
      cell: The other cell.
      device: Name of the device.
      **kwargs: Arguments of `Layer`.
    """

    def __init__(self, cell: Cell, device: str, **kwargs: Any) -> None:
        super().__init__(cell, **kwargs)
        self._device = device

    def _call_cell(self, inputs: Tensor, state: PyTree, **kwargs: Any) -> tuple[Tensor, PyTree]:
        with tf.device(self._device):
            return self.cell(inputs, state, **kwargs)


def _run_steps(
    cell: Cell, steps: Sequence[Tensor], state: PyTree, sequence_length: TensorLike | None
) -> tuple[list[Tensor], PyTree]:
    """Run a cell over time; after the end of a sequence, outputs are 0 and the state remains."""
    outputs = []
    for index, inputs in enumerate(steps):
        output, new_state = cell(inputs, state)
        if sequence_length is not None:
            active = tf.expand_dims(index < tf.convert_to_tensor(sequence_length), -1)
            output = tf.where(active, output, tf.zeros_like(output))
            new_state = nest.map_structure(
                lambda a, b, m=active: tf.where(m, a, b), new_state, state
            )
        outputs.append(output)
        state = new_state
    return outputs, state


def _get_first_state(cell: Cell, inputs: Tensor, state: PyTree, dtype: DTypeLike | None) -> PyTree:
    if state is not None:
        return state
    if dtype is None:
        raise ValueError("If there is no initial_state, you must give a dtype.")
    return cell.get_initial_state(batch_size=tf.shape(inputs)[0], dtype=dtype)


@contextlib.contextmanager
def _enter_scope(scope: Any, default: str) -> Iterator[None]:
    """Name variables of a graph below a variable scope."""
    if not has_explicit_graph():
        yield
        return
    entered = variable_scope(scope or default, auxiliary_name_scope=False)
    with entered as inner, tf.name_scope(f"{inner.name}/"):
        yield


def static_rnn(
    cell: Cell,
    inputs: Sequence[Tensor],
    initial_state: PyTree = None,
    dtype: DTypeLike | None = None,
    sequence_length: TensorLike | None = None,
    scope: object = None,
) -> tuple[list[Tensor], PyTree]:
    """Run a cell over a list of inputs.

    Args:
      cell: The cell.
      inputs: Tensors of shape [batch, size], one for each step.
      initial_state: First state. Default: zeros.
      dtype: Dtype of the first state.
      sequence_length: Number of steps of each example.
      scope: Name of the variable scope in a graph. Default: "rnn".

    Returns:
      The list of outputs, and the last state.
    """
    with _enter_scope(scope, "rnn"):
        state = _get_first_state(cell, inputs[0], initial_state, dtype)
        return _run_steps(cell, inputs, state, sequence_length)


def dynamic_rnn(
    cell: Cell,
    inputs: TensorLike,
    sequence_length: TensorLike | None = None,
    initial_state: PyTree = None,
    dtype: DTypeLike | None = None,
    parallel_iterations: int | None = None,
    swap_memory: bool = False,
    time_major: bool = False,
    scope: object = None,
) -> tuple[Tensor, PyTree]:
    """Run a cell over the steps of a tensor.

    Args:
      cell: The cell.
      inputs: Tensor of shape [batch, steps, size], or [steps, batch, size] if `time_major`.
      sequence_length: Number of steps of each example.
      initial_state: First state. Default: zeros.
      dtype: Dtype of the first state.
      parallel_iterations: Ignored.
      swap_memory: Ignored.
      time_major: Whether the first axis is time.
      scope: Name of the variable scope in a graph. Default: "rnn".

    Returns:
      The outputs, and the last state.
    """
    axis, values = 0 if time_major else 1, tf.convert_to_tensor(inputs)
    if values.shape[axis] is None:
        with _enter_scope(scope, "rnn"):
            return _run_unknown_steps(
                cell,
                values,
                axis,
                _get_first_state(cell, values, initial_state, dtype),
                sequence_length,
            )
    steps = tf.unstack(values, axis=axis)
    outputs, state = static_rnn(cell, steps, initial_state, dtype, sequence_length, scope)
    return tf.stack(outputs, axis=axis), state


def _run_unknown_steps(
    cell: Cell, inputs: Tensor, axis: int, state: PyTree, sequence_length: TensorLike | None
) -> tuple[Tensor, PyTree]:
    """Run a cell over an unknown number of steps, by a layer of Keras."""
    values = tf.transpose(inputs, [1, 0, 2]) if axis == 0 else inputs
    # This call creates the weights with names of the current scope.
    cell(values[:, 0], state)
    layer = tf.keras.layers.RNN(
        cell, return_sequences=True, return_state=True, zero_output_for_mask=True
    )
    layer._opens_scope = False
    mask = None
    if sequence_length is not None:
        mask = tf.sequence_mask(sequence_length, tf.shape(values)[1])
    outputs, *states = layer(values, initial_state=nest.flatten(state), mask=mask)
    outputs = tf.transpose(outputs, [1, 0, 2]) if axis == 0 else outputs
    return outputs, nest.pack_sequence_as(cell.state_size, nest.flatten(states))


def bidirectional_dynamic_rnn(
    cell_fw: Cell,
    cell_bw: Cell,
    inputs: TensorLike,
    sequence_length: TensorLike | None = None,
    initial_state_fw: PyTree = None,
    initial_state_bw: PyTree = None,
    dtype: DTypeLike | None = None,
    parallel_iterations: int | None = None,
    swap_memory: bool = False,
    time_major: bool = False,
    scope: object = None,
) -> tuple[tuple[Tensor, Tensor], tuple[PyTree, PyTree]]:
    """Run a cell forwards and another one backwards; arguments as in `dynamic_rnn`."""
    time, batch = (0, 1) if time_major else (1, 0)

    def reverse(value: Tensor) -> Tensor:
        if sequence_length is None:
            return tf.reverse(value, [time])
        return tf.reverse_sequence(value, sequence_length, seq_axis=time, batch_axis=batch)

    values = tf.convert_to_tensor(inputs)
    with _enter_scope(scope, "bidirectional_rnn"):
        forward, state_fw = dynamic_rnn(
            cell_fw,
            values,
            sequence_length,
            initial_state_fw,
            dtype,
            time_major=time_major,
            scope="fw",
        )
        backward, state_bw = dynamic_rnn(
            cell_bw, reverse(values), sequence_length, initial_state_bw, dtype, time_major=time_major, scope="bw"
        )  # fmt: skip
    return (forward, reverse(backward)), (state_fw, state_bw)


def static_bidirectional_rnn(
    cell_fw: Cell,
    cell_bw: Cell,
    inputs: Sequence[Tensor],
    initial_state_fw: PyTree = None,
    initial_state_bw: PyTree = None,
    dtype: DTypeLike | None = None,
    sequence_length: TensorLike | None = None,
    scope: object = None,
) -> tuple[list[Tensor], PyTree, PyTree]:
    """Run a cell forwards and another one backwards over a list of inputs; the outputs are concatenated."""
    (forward, backward), (state_fw, state_bw) = bidirectional_dynamic_rnn(
        cell_fw,
        cell_bw,
        tf.stack(inputs),
        sequence_length,
        initial_state_fw,
        initial_state_bw,
        dtype,
        time_major=True,
        scope=scope,
    )
    return tf.unstack(tf.concat([forward, backward], -1)), state_fw, state_bw
