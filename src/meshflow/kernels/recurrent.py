"""Recurrent layers over complete sequences, and their gradients, as primitives with a CPU handler.

A loop of XLA calls a product and several fusions in each step. The handler computes all steps in one
call. Its gradient ends at the gates: gradients of inputs and weights are large products.
"""

from __future__ import annotations

import functools
import operator
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from meshflow.environment.jax_internals import ad, jex_core
from meshflow.kernels import library, lowerings
from meshflow.kernels.composite_primitives import ArrayTypes, have_shapes
from meshflow.kernels.composite_primitives import register as register_composite
from meshflow.kernels.library import Avals, HandlerCall

# Types of cells, in the order of recurrent.h. The last one resets states before their product.
KINDS = ("simple_rnn", "lstm", "gru", "gru_reset_before")
_NUM_GATES = {"simple_rnn": 1, "lstm": 4, "gru": 3, "gru_reset_before": 3}

# Rows (examples times steps) below which packing the weights would take longest.
MIN_ROWS = 8
# Bytes of weights that remain in the cache of a core. If there are more, inputs of all steps are
# multiplied first.
MAX_WEIGHT_BYTES = 1 << 19


class RecurrentForm(NamedTuple):
    """Static properties of a recurrent layer.

    Attributes:
      kind: One of `KINDS`.
      reverse: Whether the last step is computed first; outputs are in the order of execution.
      time_major: Whether arrays are [time, batch, ...] instead of [batch, time, ...].
      returns_sequences: Whether the output has all steps instead of the last.
      zero_output_for_mask: Whether the output of a masked step is zero instead of the previous one.
      has_bias: Whether there is a bias.
      has_mask: Whether there is a mask of steps.
      has_dropout: Whether there is a dropout mask of states.
    """

    kind: str
    reverse: bool
    time_major: bool
    returns_sequences: bool
    zero_output_for_mask: bool
    has_bias: bool
    has_mask: bool
    has_dropout: bool

    @property
    def num_states(self) -> int:
        """Return the number of states: two of an LSTM, otherwise one."""
        return 2 if self.kind == "lstm" else 1

    @property
    def num_inputs(self) -> int:
        """Return the number of projections: inputs, and states if a GRU resets their product."""
        return 2 if self.kind == "gru" else 1

    @property
    def num_saved(self) -> int:
        """Return the number of arrays that a gradient needs: gates, states, and another one for some cells."""
        return 3 if self.kind in ("lstm", "gru") else 2


# Operands: inputs [batch, time, features], kernel [features, gates * units], recurrent kernel [units,
# gates * units], states [batch, units], and optionally the bias ([2, 3 * units] of a `gru`, otherwise
# [gates * units]), mask [batch, time] and dropout mask [batch, units]. Parameters: `form`, and
# whether it `saves` arrays for gradients. Results: output, states, saved arrays.
layer_p = jex_core.Primitive("recurrent_layer")
# Operands: saved arrays, recurrent kernel, mask, dropout mask, and tangents of projections and
# states. Results: tangents of output and states.
tangent_p = jex_core.Primitive("recurrent_layer_tangent")
# Operands: saved arrays, recurrent kernel, mask, dropout mask, and gradients of output and states.
# Results: gradients of projections and states.
gradient_p = jex_core.Primitive("recurrent_layer_gradient")


class _Operands:
    """Takes operands from a list in order."""

    def __init__(self, operands: Sequence[Any]) -> None:
        self._rest = list(operands)

    def take(self, count: int) -> list[Any]:
        taken, self._rest = self._rest[:count], self._rest[count:]
        return taken

    def take_optional(self, exists: bool) -> Any:
        return self.take(1)[0] if exists else None


def _advance(
    kind: str, x: Array, states: list[Array], kernel: Array, bias: Array | None, keep: Array | None
) -> tuple[list[Array], list[Array]]:
    """Compute a step; return the states and the other arrays that a gradient needs."""
    before = states[0]
    state = before if keep is None else before * keep
    if kind == "simple_rnn":
        output = jnp.tanh(x + state @ kernel)
        return [output], [output]
    if kind == "lstm":
        raw = jnp.split(x + state @ kernel, 4, axis=-1)
        i, f, o = (jax.nn.sigmoid(raw[n]) for n in (0, 1, 3))
        g = jnp.tanh(raw[2])
        memory = f * states[1] + i * g
        output = o * jnp.tanh(memory)
        return [output, memory], [jnp.concatenate([i, f, g, o], -1), states[1]]
    units = before.shape[-1]
    x_update, x_reset, x_candidate = jnp.split(x, 3, axis=-1)
    if kind == "gru":
        product = state @ kernel
        product = product if bias is None else product + bias
    else:
        product = state @ kernel[:, : 2 * units]
    update = jax.nn.sigmoid(x_update + product[:, :units])
    reset = jax.nn.sigmoid(x_reset + product[:, units : 2 * units])
    inner = product[:, 2 * units :]
    if kind == "gru":
        candidate = jnp.tanh(x_candidate + reset * inner)
    else:
        candidate = jnp.tanh(x_candidate + (reset * state) @ kernel[:, 2 * units :])
    output = update * before + (1.0 - update) * candidate
    gates = jnp.concatenate([update, reset, candidate], -1)
    return [output], [gates, inner] if kind == "gru" else [gates]


def _advance_tangents(
    kind: str,
    x: list[Array],
    states: list[Array],
    saved: list[Array],
    kernel: Array,
    keep: Array | None,
) -> list[Array]:
    """Compute the tangents of the states after a step, linear in tangents of projections and states."""
    gates, before, *others = saved
    state = states[0] if keep is None else states[0] * keep
    if kind == "simple_rnn":
        return [(x[0] + state @ kernel) * (1 - gates * gates)]
    if kind == "lstm":
        i, f, g, o = jnp.split(gates, 4, axis=-1)
        t_i, t_f, t_g, t_o = jnp.split(x[0] + state @ kernel, 4, axis=-1)
        t_i, t_f, t_o = t_i * (i * (1 - i)), t_f * (f * (1 - f)), t_o * (o * (1 - o))
        t_memory = t_f * others[0] + states[1] * f + t_i * g + t_g * ((1 - g * g) * i)
        tanh = jnp.tanh(f * others[0] + i * g)
        return [t_o * tanh + t_memory * (o * (1 - tanh * tanh)), t_memory]
    update, reset, candidate = jnp.split(gates, 3, axis=-1)
    x_update, x_reset, x_candidate = jnp.split(x[0], 3, axis=-1)
    units = before.shape[-1]
    if kind == "gru":
        product = x[1] + state @ kernel
    else:
        product = state @ kernel[:, : 2 * units]
    t_update = (x_update + product[:, :units]) * (update * (1 - update))
    t_reset = (x_reset + product[:, units : 2 * units]) * (reset * (1 - reset))
    if kind == "gru":
        t_inner = t_reset * others[0] + product[:, 2 * units :] * reset
    else:
        used = before if keep is None else before * keep
        t_inner = (t_reset * used + state * reset) @ kernel[:, 2 * units :]
    t_candidate = (x_candidate + t_inner) * (1 - candidate * candidate)
    return [t_update * (before - candidate) + states[0] * update + t_candidate * (1 - update)]


def _scan(
    form: RecurrentForm,
    step: Callable[[list[Array], list[Array]], tuple[list[Array], list[Array]]],
    states: list[Array],
    sequences: list[Array],
    mask: Array | None,
) -> list[Array]:
    """Run a step over the time axis; return output, states and the stacked other results of steps.

    Args:
      form: Properties of the layer.
      step: Maps states and the elements of a step to the next states and other results.
      states: First states, of which the first is also the output.
      sequences: Arrays with a time axis.
      mask: Booleans; a step with False does not change states and output.
    """
    to_time_major = lambda a: a if form.time_major else jnp.swapaxes(a, 0, 1)

    def body(
        before: list[Array], elements: list[Array]
    ) -> tuple[list[Array], tuple[list[Array], list[Array]]]:
        after, others = step(before, elements[: len(sequences)])
        if mask is not None:
            is_kept = elements[-1][:, None]
            after = [jnp.where(is_kept, a, b) for a, b in zip(after, before, strict=True)]
        return after, (after[:1] if form.returns_sequences else [], others)

    elements = [to_time_major(a) for a in sequences + ([] if mask is None else [mask])]
    states, (outputs, others) = jax.lax.scan(body, states, elements, reverse=form.reverse)
    output = to_time_major(outputs[0]) if outputs else states[0]
    if mask is not None:
        # Before the first step that is not masked, there is no previous output.
        axis = 0 if form.time_major else 1
        steps = jax.lax.cumsum(mask.astype(np.int32), axis, reverse=form.reverse)
        has_output = mask if form.zero_output_for_mask else steps > 0
        if not outputs:
            has_output = jax.lax.index_in_dim(has_output, 0 if form.reverse else -1, axis, False)
        output = jnp.where(has_output[..., None], output, jnp.zeros_like(output))
    if outputs and form.reverse:
        output = jnp.flip(output, 0 if form.time_major else 1)
    return [output, *states, *map(to_time_major, others)]


def _compute_layer(*operands: Array, form: RecurrentForm, saves: bool) -> list[Array]:
    rest = _Operands(operands)
    x, input_kernel, kernel = rest.take(3)
    x = x @ input_kernel
    states, bias = rest.take(form.num_states), rest.take_optional(form.has_bias)
    mask, keep = rest.take_optional(form.has_mask), rest.take_optional(form.has_dropout)
    inner_bias = None
    if bias is not None:
        bias, inner_bias = bias if form.kind == "gru" else (bias, None)
        x = x + bias

    def step(before: list[Array], elements: list[Array]) -> tuple[list[Array], list[Array]]:
        after, (gates, *others) = _advance(form.kind, elements[0], before, kernel, inner_bias, keep)
        return after, [gates, before[0], *others] if saves else []

    return _scan(form, step, states, [x], mask)


def _split_saved(
    form: RecurrentForm, operands: Sequence[Any]
) -> tuple[list[Any], Any, Any, Any, list[Any]]:
    """Split operands into saved arrays, kernel, mask, dropout mask and the others."""
    rest = _Operands(operands)
    saved, (kernel,) = rest.take(form.num_saved), rest.take(1)
    mask, keep = rest.take_optional(form.has_mask), rest.take_optional(form.has_dropout)
    return saved, kernel, mask, keep, rest.take(len(operands))


def _compute_tangents(*operands: Array, form: RecurrentForm) -> list[Array]:
    saved, kernel, mask, keep, tangents = _split_saved(form, operands)
    xs, states = tangents[: form.num_inputs], tangents[form.num_inputs :]

    def step(before: list[Array], elements: list[Array]) -> tuple[list[Array], list[Array]]:
        x, arrays = elements[: len(xs)], elements[len(xs) :]
        return _advance_tangents(form.kind, x, before, arrays, kernel, keep), []

    return _scan(form, step, states, [*xs, *saved], mask)


def _compute_gradients(*operands: Array, form: RecurrentForm) -> list[Array]:
    cotangents = _split_saved(form, operands)[-1]
    fixed = operands[: len(operands) - len(cotangents)]
    gates, before = operands[:2]
    state = jax.ShapeDtypeStruct(cotangents[1].shape, before.dtype)
    projection = jax.ShapeDtypeStruct(gates.shape, gates.dtype)
    specs = [projection] * form.num_inputs + [state] * form.num_states
    compute = lambda *tangents: _compute_tangents(*fixed, *tangents, form=form)
    return list(jax.linear_transpose(compute, *specs)(list(cotangents)))


def _find_jvp(
    primals: Sequence[Any], tangents: Sequence[Any], *, form: RecurrentForm, saves: bool
) -> tuple[list[Any], list[Any]]:
    """Compute results and tangents; the gradient transposes the latter."""
    if saves:
        compute = functools.partial(_compute_layer, form=form, saves=True)
        return jax.jvp(compute, tuple(primals), tuple(map(ad.instantiate_zeros, tangents)))
    results = layer_p.bind(*primals, form=form, saves=True)
    num_results = 1 + form.num_states
    saved = results[num_results:]
    rest, t_rest = _Operands(primals), _Operands(tangents)
    (x, input_kernel, kernel), (t_inputs, t_input_kernel, t_kernel) = rest.take(3), t_rest.take(3)
    t_states = [ad.instantiate_zeros(t) for t in t_rest.take(form.num_states)]
    rest.take(form.num_states)
    rest.take_optional(form.has_bias)
    t_bias = t_rest.take_optional(form.has_bias)
    masks = rest.take(form.has_mask + form.has_dropout)
    t_rest.take_optional(form.has_mask)
    t_keep = t_rest.take_optional(form.has_dropout)
    before, is_zero = saved[1], lambda t: t is None or type(t) is ad.Zero
    to_sequence = lambda a: a[None] if form.time_major else a[:, None]

    def project(states: Array, weights: Array) -> Array:
        if form.kind != "gru_reset_before":
            return states @ weights
        units = states.shape[-1]
        reset = saved[0][..., units : 2 * units]
        parts = [states @ weights[:, : 2 * units], (reset * states) @ weights[:, 2 * units :]]
        return jnp.concatenate(parts, -1)

    # Tangents of the products with inputs and with states, which are separate for a `gru`.
    input_terms, terms = [], []
    if not is_zero(t_inputs):
        input_terms.append(t_inputs @ input_kernel)
    if not is_zero(t_input_kernel):
        input_terms.append(x @ t_input_kernel)
    if not is_zero(t_kernel):
        used = before * to_sequence(masks[-1]) if form.has_dropout else before
        terms.append(project(used, t_kernel))
    if not is_zero(t_keep):
        terms.append(project(before * to_sequence(t_keep), kernel))
    zeros = jnp.zeros_like(saved[0])
    if not is_zero(t_bias):
        t_bias, t_inner_bias = t_bias if form.kind == "gru" else (t_bias, None)
        input_terms.append(zeros + t_bias)
        if t_inner_bias is not None:
            terms.append(zeros + t_inner_bias)
    groups = [input_terms, terms] if form.kind == "gru" else [input_terms + terms]
    projections = [functools.reduce(operator.add, group) if group else zeros for group in groups]
    t_results = tangent_p.bind(*saved, kernel, *masks, *projections, *t_states, form=form)
    return results[:num_results], t_results


def _transpose_tangents(cts: Sequence[Any], *operands: Any, form: RecurrentForm) -> list[Any]:
    *_, tangents = _split_saved(form, operands)
    fixed = operands[: len(operands) - len(tangents)]
    gradients = gradient_p.bind(*fixed, *map(ad.instantiate_zeros, cts), form=form)
    is_linear = map(ad.is_undefined_primal, tangents)
    return [None] * len(fixed) + [
        g if l else None for g, l in zip(gradients, is_linear, strict=True)
    ]


def _list_shapes(primitive: Any, operands: Sequence[Any], form: RecurrentForm) -> list[Any]:
    """Return the shapes of the operands of a primitive if none of them is broadcast."""
    *axes, features = operands[0].shape
    units, width = operands[2 if primitive is layer_p else form.num_saved].shape
    state = [(axes[1 if form.time_major else 0], units)]
    masks = [tuple(axes)] * form.has_mask + state * form.has_dropout
    if primitive is layer_p:
        bias = [(2, width) if form.kind == "gru" else (width,)] * form.has_bias
        weights = [(features, width), (units, width)]
        return [(*axes, features), *weights, *state * form.num_states, *bias, *masks]
    fixed = [(*axes, width), *[(*axes, units)] * (form.num_saved - 1), (units, width), *masks]
    if primitive is tangent_p:
        return [*fixed, *[(*axes, width)] * form.num_inputs, *state * form.num_states]
    output = [(*axes, units)] if form.returns_sequences else state
    return [*fixed, *output, *state * form.num_states]


def _list_types(
    primitive: Any, operands: Sequence[Any], parameters: dict[str, Any]
) -> ArrayTypes | None:
    """Return the shapes and dtypes of the results; None if operands are broadcast or have other types."""
    form, first = parameters["form"], operands[0]
    dtype = np.dtype(first.dtype)
    kernel = operands[2 if primitive is layer_p else form.num_saved]
    if (
        {np.dtype(a.dtype) for a in operands} - {np.dtype(bool)} != {dtype}
        or not jnp.issubdtype(dtype, np.floating)
        or (first.ndim, kernel.ndim) != (3, 2)
        or kernel.shape[1] != _NUM_GATES[form.kind] * kernel.shape[0]
        or not have_shapes(operands, _list_shapes(primitive, operands, form))
    ):
        return None
    axes, (units, width) = first.shape[:2], kernel.shape
    state, steps = (axes[1 if form.time_major else 0], units), (*axes, units)
    states = [state] * form.num_states
    if primitive is gradient_p:
        shapes = [(*axes, width)] * form.num_inputs + states
    else:
        shapes = [steps if form.returns_sequences else state, *states]
        if parameters.get("saves"):
            shapes += [(*axes, width)] + [steps] * (form.num_saved - 1)
    return [(shape, dtype) for shape in shapes]


def _describe(
    operands: Sequence[Any], is_gradient: bool, form: RecurrentForm, saves: bool = False
) -> tuple[list[int], np.dtype] | None:
    """Return the descriptor of the handler and the dtype of its arrays, or None for other code.

    Args:
      operands: Types of the operands.
      is_gradient: Whether the gradient is computed.
      form: Properties of the layer.
      saves: Whether arrays for the gradient are saved.
    """
    dtype = np.dtype(operands[0].dtype)
    if {np.dtype(a.dtype) for a in operands} - {np.dtype(bool)} != {dtype}:
        return None
    # There is no code for float16, but for larger floats that contain it.
    dtype = np.dtype(np.float32) if dtype == np.float16 else dtype
    *axes, features = operands[0].shape
    batch, steps = reversed(axes) if form.time_major else axes
    kernel = operands[form.num_saved if is_gradient else 2]
    units, width = kernel.shape
    sizes = [batch, steps, units]
    if dtype.name not in ("float32", "bfloat16") or not all(
        isinstance(n, int) and n > 0 for n in (*sizes, features)
    ):
        return None
    shapes = _list_shapes(gradient_p if is_gradient else layer_p, operands, form)
    # The equations broadcast operands; the handler does neither that nor a check of their sizes.
    has_shapes = [tuple(a.shape) for a in operands] == shapes
    has_shapes &= width == _NUM_GATES[form.kind] * units
    has_shapes &= not is_gradient or features == width
    if batch * steps < MIN_ROWS or not has_shapes:
        return None
    projects = (
        not is_gradient
        and form.kind != "gru_reset_before"
        and (features + units) * width * dtype.itemsize <= MAX_WEIGHT_BYTES
    )
    sizes.append(features if projects else 0)
    order = (form.reverse, form.time_major, form.returns_sequences, form.zero_output_for_mask)
    flags = (*order, saves, form.has_bias, form.has_mask, form.has_dropout)
    bits = sum(flag << bit for bit, flag in enumerate(flags))
    return [int(is_gradient), KINDS.index(form.kind), *sizes, bits], dtype


def _takes_products(descriptor: list[int]) -> bool:
    """Check whether the handler takes the products of the inputs instead of the inputs."""
    is_gradient, *_, features, _ = descriptor
    return not (is_gradient or features)


def _choose_handler(
    is_gradient: bool, operands: Avals, results: Avals, parameters: dict[str, Any]
) -> HandlerCall | None:
    """Return a function that calls the handler, or None to use XLA's code."""
    found, loaded = _describe(operands, is_gradient, **parameters), library.load()
    if found is None or loaded is None or not loaded.has_handler(library.RECURRENT):
        return None
    descriptor, compute_dtype = found
    specs = [jax.ShapeDtypeStruct(a.shape, compute_dtype) for a in results]

    def call(*arrays: Array) -> list[Array]:
        arrays = tuple(a if a.dtype == bool else a.astype(compute_dtype) for a in arrays)
        if _takes_products(descriptor):
            arrays = (arrays[0] @ arrays[1], *arrays[2:])
        made = lowerings.call_handler(descriptor, arrays, specs, library.RECURRENT)
        return [a.astype(spec.dtype) for a, spec in zip(made, results, strict=True)]

    return call


def make_host_call(
    primitive: Any, operands: Sequence[Any], results: Sequence[Any], parameters: dict[str, Any]
) -> tuple[Callable[..., None] | None, np.dtype]:
    """Return a function that runs the handler without XLA and the dtype of its arrays.

    Args:
      primitive: `layer_p` or `gradient_p`.
      operands: Types of the operands.
      results: Types of the results.
      parameters: Parameters of the primitive.

    Returns:
      A function of row-major arrays of operands and results, and the dtype of those that are not
      boolean; None instead of the function if the handler does not support the layer.
    """
    found, loaded = _describe(operands, primitive is gradient_p, **parameters), library.load()
    if found is None or loaded is None:
        return None, np.dtype(operands[0].dtype)
    descriptor, dtype = found
    is_multiplied = _takes_products(descriptor)
    types = [dtype.name] * (len(operands) + len(results) - is_multiplied)
    call = loaded.make_call(descriptor, types, library.RECURRENT)
    if call is None or not is_multiplied:
        return call, dtype

    def run(x: np.ndarray, kernel: np.ndarray, *rest: np.ndarray) -> None:
        wide = np.matmul(x.astype(np.float32, copy=False), kernel.astype(np.float32, copy=False))
        call(wide.astype(dtype, copy=False), *rest)

    return run, dtype


# Names of the functions of exported programs: the primitive, the index of the kind, and the Booleans of the form.
_EXPORT_NAME = re.compile(r"meshflow_(recurrent_layer(?:_gradient)?)_(\d)_([01]+)(?:_\d+)?")


def _make_export_name(primitive: Any, form: RecurrentForm, saves: bool = False) -> str:
    """Return the name of the function with the equations of a layer in exported programs; see `read_export_name`."""
    kind, *flags = form
    bits = "".join(str(int(flag)) for flag in (*flags, saves))
    return f"meshflow_{primitive.name}_{KINDS.index(kind)}_{bits}"


def read_export_name(name: str) -> tuple[Any, dict[str, Any], int] | None:
    """Return the layer that a function of an exported program computes.

    Args:
      name: Name of the function.

    Returns:
      The primitive, its parameters, and the number of operands, which are the last arguments of the function; None for
      other functions.

    Example:
      >>> primitive, parameters, count = read_export_name("meshflow_recurrent_layer_1_00001000")
      >>> primitive.name, parameters["form"].kind, parameters["form"].has_bias, count
      ('recurrent_layer', 'lstm', True, 6)
    """
    match = _EXPORT_NAME.fullmatch(name)
    num_flags = len(RecurrentForm._fields)
    if match is None or int(match[2]) >= len(KINDS) or len(match[3]) != num_flags:
        return None
    *flags, saves = (bit == "1" for bit in match[3])
    form = RecurrentForm(KINDS[int(match[2])], *flags)
    masks = form.has_mask + form.has_dropout
    if match[1] == gradient_p.name:
        return gradient_p, {"form": form}, form.num_saved + 2 + masks + form.num_states
    return layer_p, {"form": form, "saves": saves}, 3 + form.num_states + form.has_bias + masks


def register() -> None:
    """Register the primitives with JAX."""
    for primitive, composite, choose in (
        (layer_p, _compute_layer, functools.partial(_choose_handler, False)),
        (tangent_p, _compute_tangents, None),
        (gradient_p, _compute_gradients, functools.partial(_choose_handler, True)),
    ):
        primitive.multiple_results = True
        is_named = primitive is not tangent_p
        name = functools.partial(_make_export_name, primitive) if is_named else None
        list_types = functools.partial(_list_types, primitive)
        register_composite(primitive, composite, None, choose, name, list_types)
    ad.primitive_jvps[layer_p] = _find_jvp
    ad.primitive_transposes[tangent_p] = _transpose_tangents


def run_layer(form: RecurrentForm, *operands: Array) -> list[Array]:
    """Run a recurrent layer; see `layer_p`.

    Returns:
      The output, [batch, units] or with all steps, and the states after the last step.
    """
    return layer_p.bind(*operands, form=form, saves=False)
