"""The dispatcher: the one place where a public op becomes a computation.

An op is a pure function of arrays, decorated with `op`. Parameters annotated `TensorLike` are
*operands*; all others are static: they must be known when the op is called and become part of
the compiled op's identity. For every call the dispatcher

1. hands the call to Keras when an operand is a symbolic Keras tensor,
2. converts operands to tensors under TensorFlow's dtype rules,
3. runs the function: compiled and cached per static arguments in eager mode, inlined while a
   function is traced, on the host when all operands are known while tracing,
4. tells the active gradient tapes.

The gradient of an op is again an op (`Gradient`), whose array function is `jax.vjp` of the
first: so gradients of any order are recorded like everything else.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar, overload

import jax
import numpy as np

from meshflow.core import convert, errors
from meshflow.core.context import context
from meshflow.core.convert import convert_to_tensor
from meshflow.core.dtypes import DType, float32, string
from meshflow.core.places import about_places, different_places
from meshflow.core.tensor import HOST_CONSTANT_SIZE, Tensor

F = TypeVar("F", bound=Callable[..., Any])

OPERAND_ANNOTATIONS = ("TensorLike", "TensorLike | None")
OPERAND_LIST_ANNOTATIONS = ("Sequence[TensorLike]", "Sequence[TensorLike] | TensorLike")

# Symbolic tensor types of other packages (Keras) and the function that takes their calls.
_symbolic_types: tuple[type, ...] = ()
_symbolic_handler: Callable[..., Any] | None = None


def register_symbolic(kind: type, handler: Callable[..., Any]) -> None:
    """Sends every op call that has an argument of type `kind` to `handler(public_op, args, kwargs)`."""
    global _symbolic_types, _symbolic_handler
    _symbolic_types = (kind,)
    _symbolic_handler = handler


class Op:
    """An operation: a name, an array function, and the rules for its operands.

    Attributes:
      name: the name shown in errors, traces and profiles.
      differentiable: False when TensorFlow defines no gradient (its gradient is None).
      strings: what it does to strings: "moves" or "compares" them (on numbers that stand for
        them), "joins" two, or None.
      constant: whether known operands make a known result. Not so when it does more than compute
        one, when other replicas take part, or when it says where values lie.
    """

    def __init__(
        self,
        name: str,
        call: Callable[..., Any],
        *,
        differentiable: bool = True,
        heavy: bool = False,
        strings: str | None = None,
        constant: bool = True,
    ) -> None:
        self.name = name
        self.call = call
        self.differentiable = differentiable
        self.strings = strings
        # Computes it by NumPy on host arrays; gives None where it does not.
        self.host: Callable[..., Any] | None = None
        # A heavy op keeps what its gradient needs instead of computing the op again.
        self.heavy = heavy
        self.constant = constant
        self._compiled: dict[Any, Callable[..., Any]] = {}
        self._gradients: dict[Any, Gradient] = {}
        self._residual: dict[Any, Callable[..., Any]] = {}

    def bound(self, static: tuple[Any, ...]) -> Callable[..., Any]:
        """The array function of the operands alone."""
        call = self.call

        def run(*operands: Any) -> Any:
            return call(operands, static)

        run.__name__ = run.__qualname__ = self.name
        return run

    def compiled(self, static: tuple[Any, ...]) -> Callable[..., Any]:
        """`bound(static)`, compiled once per static arguments."""
        function = self._compiled.get(static)
        if function is None:
            function = self._compiled[static] = jax.jit(self.bound(static))
        return function

    def gradient(self, static: tuple[Any, ...], wanted: tuple[bool, ...]) -> Gradient:
        """The op that maps (operands, output gradients) to the gradients of the wanted operands."""
        key = static, wanted
        if key not in self._gradients:
            self._gradients[key] = Gradient(self, static, wanted)
        return self._gradients[key]

    def residual(self, static: tuple[Any, ...], wanted: tuple[bool, ...]) -> Callable[..., Any]:
        """A function of the operands giving the outputs and the pullback to the wanted operands."""
        key = static, wanted
        if key not in self._residual:
            self._residual[key] = functools.partial(_forward, self.bound(static), wanted)
        return self._residual[key]

    def compiled_residual(
        self, static: tuple[Any, ...], wanted: tuple[bool, ...]
    ) -> Callable[..., Any]:
        """`residual`, compiled."""
        key = static, wanted, "compiled"
        if key not in self._residual:
            self._residual[key] = jax.jit(self.residual(static, wanted))
        return self._residual[key]


@functools.cache
def _inexact_dtype(dtype: Any) -> bool:
    return bool(jax.numpy.issubdtype(dtype, jax.numpy.inexact))


def is_inexact(value: Any) -> bool:
    """Whether an array has a floating or complex dtype."""
    if value.dtype == object:
        return False
    return _inexact_dtype(value.dtype)


def of_wanted(
    run: Callable[..., Any], wanted: tuple[bool, ...], operands: Any
) -> tuple[Callable[..., Any], list[Any]]:
    """`run` as a function of the wanted operands alone, and these.

    The function returns the inexact outputs, and as a second result what rebuilds all outputs:
    their leaves and a function of them.
    """
    leaves, tree = jax.tree.flatten(operands)

    def function(*differentiated: Any) -> Any:
        supply = iter(differentiated)
        full = [next(supply) if w else leaf for leaf, w in zip(leaves, wanted, strict=True)]
        outputs = run(*jax.tree.unflatten(tree, full))
        flat, out_tree = jax.tree.flatten(outputs)
        inexact = [o for o in flat if is_inexact(o)]
        return inexact, (flat, jax.tree_util.Partial(functools.partial(_rebuild, out_tree)))

    return function, [leaf for leaf, w in zip(leaves, wanted, strict=True) if w]


def _forward(run: Callable[..., Any], wanted: tuple[bool, ...], *operands: Any) -> Any:
    """Outputs of `run` and the pullback from its inexact outputs to the wanted operands."""
    function, chosen = of_wanted(run, wanted, operands)
    _, pullback, (flat, rebuild) = jax.vjp(function, *chosen, has_aux=True)
    return rebuild(flat), pullback


def _rebuild(tree: Any, leaves: Any) -> Any:
    return jax.tree.unflatten(tree, leaves)


class Gradient(Op):
    """The gradient of `op` with fixed static arguments, itself an op.

    Its operands are (operands of `op`, one gradient or None per inexact output).
    """

    def __init__(self, op: Op, static: tuple[Any, ...], wanted: tuple[bool, ...]) -> None:
        run = op.bound(static)

        def call(operands: Any, _: Any) -> Any:
            inputs, cotangents = operands
            outputs, pullback = _forward(run, wanted, *inputs)
            inexact = [o for o in jax.tree.leaves(outputs) if is_inexact(o)]
            return list(pull(pullback, inexact, cotangents))

        super().__init__(f"grad_{op.name}", call, constant=op.constant)


def pull(
    pullback: Callable[..., Any], outputs: Sequence[Any], cotangents: Sequence[Any]
) -> tuple[Any, ...]:
    """Applies a JAX pullback under TensorFlow's conventions.

    A missing output gradient counts as zeros, and complex gradients are conjugated: TensorFlow
    returns conj(f'(z)) * g where JAX returns f'(z) * g.
    """
    full = [
        jax.numpy.zeros(o.shape, o.dtype) if c is None else jax.numpy.conj(c)
        for o, c in zip(outputs, cotangents, strict=True)
    ]
    return tuple(jax.numpy.conj(g) for g in pullback(full))


def apply(op: Op, operands: Sequence[Any], static: tuple[Any, ...] = ()) -> Any:
    """Runs `op` on operands that are tensors, lists of tensors, or None.

    Returns:
      What the array function returns, with tensors for arrays.
    """
    try:
        return _apply(op, operands, static)
    except jax.errors.UnexpectedTracerError:
        raise errors.InaccessibleTensorError(
            f"{op.name}: an operand was made while a function was traced and is out of scope here. Return it "
            "from that function, or keep state in a tf.Variable."
        ) from None
    except TypeError:
        if op.strings and any(t.dtype is string for t in flat_tensors(operands)):
            return _on_codes(op, operands, static)
        raise
    except ValueError as error:
        if about_places(error):
            raise different_places(
                op.name, [("", t._value) for t in flat_tensors(operands)]
            ) from None
        raise


def _apply(op: Op, operands: Sequence[Any], static: tuple[Any, ...]) -> Any:
    trace = context.trace
    recording = context.tapes
    if trace is None:
        values = [o._value if type(o) is Tensor else _values(o) for o in operands]
        if recording:
            return _apply_recorded(op, operands, values, static)
        if context.on_host:
            return _apply_on_host(op, values, static)
        outputs = op.compiled(static)(*values)
    else:
        if op.constant and _all_known(operands) and not (recording and _watched(operands)):
            outputs = _on_host(op, operands, static)
            if outputs is not None:
                return outputs
        values = [_captured(trace, o) for o in operands]
        if recording:
            return _apply_recorded(op, operands, values, static)
        outputs = op.call(values, static)
    return wrap(outputs)


def _apply_on_host(op: Op, values: list[Any], static: tuple[Any, ...]) -> Any:
    """Runs an op on host arrays, by NumPy where it can; its results are host arrays."""
    outputs = None if op.host is None else op.host(values, static)
    if outputs is None:
        outputs = jax.tree.map(np.asarray, op.compiled(static)(*values))
    return wrap(outputs)


def _on_codes(op: Op, operands: Sequence[Any], static: tuple[Any, ...]) -> Any:
    """Runs an op on numbers that stand for strings, in their order; 0 is the empty one."""
    if op.strings == "joins":
        joined = np.asarray(operands[0]._value + operands[1]._value, object)
        return Tensor(joined)
    words: set[bytes] = {b""}
    for tensor in flat_tensors(operands):
        if tensor.dtype is string:
            words.update(tensor._value.ravel().tolist())
    vocabulary = sorted(words)
    code = {word: i for i, word in enumerate(vocabulary)}

    def encode(operand: Any) -> Any:
        if isinstance(operand, (list, tuple)):
            return [encode(o) for o in operand]
        if operand is None or operand.dtype is not string:
            return operand
        codes = np.empty(operand._value.shape, np.int32)
        codes.reshape(-1)[:] = [code[w] for w in operand._value.ravel().tolist()]
        return Tensor(codes)

    def decode(codes: Tensor) -> Tensor:
        known = codes._concrete(f"a position in {op.name} of strings (XLA has no strings)")
        found = np.empty(known.shape, object)
        found.reshape(-1)[:] = [vocabulary[c] for c in known.reshape(-1)]
        return Tensor(found)

    outputs = _apply(op, [encode(o) for o in operands], static)
    if op.strings == "compares":
        return outputs
    return jax.tree.map(decode, outputs, is_leaf=_is_tensor)


# Called with every array that an op gives, while tf.debugging.enable_check_numerics is on.
check_output: Callable[[Any], None] | None = None


def wrap(outputs: Any) -> Any:
    """Tensors around the arrays of a nested structure."""
    if isinstance(outputs, (jax.Array, np.ndarray)):
        if check_output is not None:
            check_output(outputs)
        if context.placing is not None and context.trace is None:
            outputs = context.placing(outputs)
        return Tensor(outputs)
    if type(outputs) is tuple or type(outputs) is list:
        return type(outputs)(wrap(o) for o in outputs)
    if isinstance(outputs, np.generic):
        return wrap(np.asarray(outputs))
    return jax.tree.map(wrap, outputs)


def _values(operand: Any) -> Any:
    if operand is None:
        return None
    if isinstance(operand, (list, tuple)):
        return [_values(o) for o in operand]
    return operand._value


def _captured(trace: Any, operand: Any) -> Any:
    if operand is None:
        return None
    if isinstance(operand, (list, tuple)):
        return [_captured(trace, o) for o in operand]
    return trace.value_of(operand)


def flat_tensors(operands: Iterable[Any]) -> list[Tensor]:
    """The tensors of an operand list, in JAX's pytree order."""
    found: list[Tensor] = []
    for operand in operands:
        if isinstance(operand, (list, tuple)):
            found.extend(flat_tensors(operand))
        elif operand is not None:
            found.append(operand)
    return found


def _watched(operands: Sequence[Any]) -> bool:
    """Whether a tape of this level watches an operand."""
    inputs = flat_tensors(operands)
    return any(tape.is_watching(inputs) for tape in context.tapes)


def _all_known(operands: Iterable[Any]) -> bool:
    """Whether the values of all operands are on the host: true for shape arithmetic."""
    known = False
    for operand in operands:
        if type(operand) is Tensor:
            value = operand._value
            if type(value) is not np.ndarray or (
                operand._owner is not context.trace and is_inexact(value)
            ):
                return False
            known = True
        elif operand is not None:
            if not _all_known(operand):
                return False
            known = known or bool(operand)
    return known


def _on_host(op: Op, operands: Sequence[Any], static: tuple[Any, ...]) -> Any:
    """Runs an op on known operands while tracing; None when the result is better left traced."""
    with jax.ensure_compile_time_eval():
        shapes = jax.eval_shape(op.bound(static), *[_values(o) for o in operands])
        if sum(leaf.size for leaf in jax.tree.leaves(shapes)) > HOST_CONSTANT_SIZE:
            return None
        outputs = op.compiled(static)(*[_values(o) for o in operands])
        return jax.tree.map(lambda o: Tensor(np.asarray(o)), outputs)


def _apply_recorded(
    op: Op, operands: Sequence[Any], values: list[Any], static: tuple[Any, ...]
) -> Any:
    """Runs an op while gradient tapes look on."""
    from meshflow.core.tape import Node

    inputs = flat_tensors(operands)
    watching = [t for t in context.tapes if t.is_watching(inputs)] if op.differentiable else []
    in_trace = context.trace is not None
    if not watching:
        return wrap(op.call(values, static) if in_trace else op.compiled(static)(*values))
    watched = {id(t) for t in inputs if any(tape.watches(t) for tape in watching)}
    wanted = tuple(id(t) in watched and is_inexact(t._value) for t in inputs)
    pullback = None
    if any(wanted) and (in_trace or op.heavy) and len(watching) == 1 and not context.outer_tapes:
        run = op.residual(static, wanted) if in_trace else op.compiled_residual(static, wanted)
        outputs, pullback = run(*values)
    else:
        outputs = op.call(values, static) if in_trace else op.compiled(static)(*values)
    result = wrap(outputs)
    if any(wanted):
        node = Node(
            op,
            operands,
            static,
            inputs,
            wanted,
            jax.tree.leaves(result, is_leaf=_is_tensor),
            pullback,
        )
        for tape in watching:
            tape.record(node)
    return result


def _is_tensor(value: Any) -> bool:
    return type(value) is Tensor


# ---- operands and static arguments ---------------------------------------------------------


def mismatch(name: str, index: int, expected: DType, got: DType) -> errors.DtypeMismatchError:
    """The error for operands of different dtypes, naming both."""
    return errors.DtypeMismatchError(
        f"cannot compute {name} as input #{index}(zero-based) was expected to be a {expected.name} "
        f"tensor but is a {got.name} tensor [Op:{name}]. Use tf.cast to convert one of them."
    )


class Rules:
    """How the operands of an op relate in dtype.

    Attributes:
      promote: when set, replaces the strict rule (the NumPy front end sets it): called with the
        operands before conversion, returns converted ones.
    """

    promote: Callable[[list[Any]], list[Any]] | None = None


# Python numbers below this are float32 numbers after rounding.
FITS_FLOAT32 = 1e38


def unify(name: str, operands: list[Any], same: Sequence[int]) -> list[Any]:
    """Converts operands to tensors; those at the positions `same` must share one dtype.

    Python numbers take the dtype of the first tensor among them.
    """
    if Rules.promote is not None and len(same) > 1:
        promoted = Rules.promote([operands[i] for i in same])
        for i, value in zip(same, promoted, strict=True):
            operands[i] = value
    for i, operand in enumerate(operands):
        if type(operand) is not Tensor and hasattr(operand, "_as_tensor"):
            operands[i] = operand._as_tensor()
    hint = next((d for d in (_known_dtype(operands[i]) for i in same) if d is not None), None)
    for i, operand in enumerate(operands):
        if type(operand) is not Tensor and operand is not None:
            operands[i] = _convert(operand, hint if i in same else None)
            if hint is None and i in same:
                hint = operands[i].dtype
    if len(same) > 1 and hint is not None:
        for i in same:
            tensor = operands[i]
            if tensor is not None and tensor._value.dtype != hint.dtype:
                raise mismatch(name, i, hint, tensor.dtype)
    return operands


def _known_dtype(operand: Any) -> DType | None:
    if type(operand) is Tensor:
        return operand.dtype
    if isinstance(operand, (list, tuple)):
        return next((d for d in map(_known_dtype, operand) if d is not None), None)
    return operand.dtype if hasattr(operand, "_as_tensor") else None


def _convert(operand: Any, hint: DType | None) -> Tensor:
    if type(operand) is float and hint is float32 and abs(operand) < FITS_FLOAT32:
        return Tensor(np.asarray(operand, np.float32))
    if hint is not None and isinstance(operand, (bool, int, float, complex)):
        return convert.from_python(operand, hint)
    return convert_to_tensor(operand, dtype_hint=hint)


def static_value(value: Any, name: str = "argument") -> Any:
    """A hashable Python value for a static argument; known tensors become numbers and tuples.

    Raises:
      TypeError: when the value is a tensor that is only known at run time.
    """
    kind = type(value)
    if value is None or kind in (int, str, bool, float, DType):
        return value
    if isinstance(value, (list, tuple)):
        return tuple(static_value(v, name) for v in value)
    if hasattr(value, "_as_tensor"):
        value = value._as_tensor()
    if isinstance(value, Tensor):
        if isinstance(value._value, jax.core.Tracer):
            raise TypeError(
                f"`{name}` must be known when the function is traced (shapes and axes are static "
                f"under XLA), got a symbolic tensor of shape {value.shape} and dtype "
                f"{value.dtype.name}. Compute it from Python numbers or from tf.shape(...)."
            )
        value = np.asarray(value._value)
    if isinstance(value, (np.ndarray, jax.Array)):
        value = np.asarray(value).tolist()
        return static_value(value, name) if isinstance(value, list) else value
    if isinstance(value, np.generic):
        return value.item()
    if hasattr(value, "as_list") and not callable(value):
        return tuple(value.as_list())
    return value


@overload
def op(
    function: F,
    *,
    name: str | None = None,
    same: Sequence[str] | None = None,
    kinds: str | None = None,
    differentiable: bool = True,
    heavy: bool = False,
    strings: str | None = None,
) -> F: ...
@overload
def op(
    *,
    name: str | None = None,
    same: Sequence[str] | None = None,
    kinds: str | None = None,
    differentiable: bool = True,
    heavy: bool = False,
    strings: str | None = None,
) -> Callable[[F], F]: ...
def op(
    function: F | None = None,
    *,
    name: str | None = None,
    same: Sequence[str] | None = None,
    kinds: str | None = None,
    differentiable: bool = True,
    heavy: bool = False,
    strings: str | None = None,
) -> Any:
    """Makes a public op of a function of arrays.

    Parameters annotated `TensorLike` (or `Sequence[TensorLike]`) arrive in the function as
    arrays (or lists of arrays), the others as hashable Python values (lists as tuples). A
    parameter called `name` is accepted and ignored.

    Args:
      function: the array function; its signature and docstring become the op's.
      name: the op's name in messages; default the function's.
      same: names of the operands that must share a dtype; default all of them.
      kinds: allowed kinds of the `same` operands, letters of "b" bool, "i" integer, "f" float,
        "c" complex; default anything but strings.
      differentiable: whether the op has a gradient.
      heavy: keep intermediate values for the gradient instead of recomputing the op.
      strings: what it can do to strings as well: "moves" when it only moves elements around,
        "compares" when it compares two, "joins" when it joins two.

    Returns:
      The public function.

    Example:
      >>> from meshflow.core.dispatch import op
      >>> from meshflow.core.tensor import TensorLike
      >>> @op
      ... def double(x: TensorLike, name: str | None = None):
      ...     return x + x
      >>> double([1, 2]).numpy()
      array([2, 4], dtype=int32)
    """
    if function is None:
        return functools.partial(
            op,
            name=name,
            same=same,
            kinds=kinds,
            differentiable=differentiable,
            heavy=heavy,
            strings=strings,
        )
    signature = inspect.signature(function)
    parameters = list(signature.parameters.values())
    names = [p.name for p in parameters]
    lists = {i for i, p in enumerate(parameters) if _annotation(p) in OPERAND_LIST_ANNOTATIONS}
    operand_at = [
        i for i, p in enumerate(parameters) if i in lists or _annotation(p) in OPERAND_ANNOTATIONS
    ]
    static_at = [i for i, n in enumerate(names) if i not in operand_at and n != "name"]
    same_at = [k for k, i in enumerate(operand_at) if same is None or names[i] in same]
    list_at = {k for k, i in enumerate(operand_at) if i in lists}
    defaults = [p.default for p in parameters]
    position = {n: i for i, n in enumerate(names)}
    count = len(parameters)
    public_name = name or function.__name__

    def call(operands: Sequence[Any], static: tuple[Any, ...]) -> Any:
        arguments = [None] * count
        for i, operand in zip(operand_at, operands, strict=True):
            arguments[i] = operand
        for i, value in zip(static_at, static, strict=True):
            arguments[i] = value
        return function(*arguments)

    the_op = Op(public_name, call, differentiable=differentiable, heavy=heavy, strings=strings)

    @functools.wraps(function)
    def public(*args: Any, **kwargs: Any) -> Any:
        if _symbolic_types and has_symbolic(args, kwargs):
            return _symbolic_handler(public, args, kwargs)  # type: ignore[misc]
        values = [*args, *defaults[len(args) :]]
        for key, value in kwargs.items():
            i = position.get(key, -1)
            if i < len(args):
                signature.bind(*args, **kwargs)  # raises Python's own TypeError
            values[i] = value
        if (
            len(values) != count
            or inspect.Parameter.empty in values[:0]
            or any(v is inspect.Parameter.empty for v in values)
        ):
            signature.bind(*args, **kwargs)
        operands = [values[i] for i in operand_at]
        if list_at:
            for k in list_at:
                operands[k] = _as_operand_list(public_name, names[operand_at[k]], operands[k])
            operands = _unify_lists(public_name, operands, same_at, list_at)
        else:
            operands = unify(public_name, operands, same_at)
        if kinds is not None:
            _check_kinds(public_name, operands, same_at, kinds)
        static = tuple([static_value(values[i], names[i]) for i in static_at])
        try:
            return apply(the_op, operands, static)
        except (TypeError, ValueError, IndexError, ArithmeticError) as error:
            raise explain(public_name, error, operands) from error

    public.op = the_op  # type: ignore[attr-defined]
    public.static_defaults = tuple(defaults[i] for i in static_at)  # type: ignore[attr-defined]
    return public


def _annotation(parameter: inspect.Parameter) -> str:
    annotation = parameter.annotation
    if annotation is inspect.Parameter.empty:
        return ""
    return (
        annotation
        if isinstance(annotation, str)
        else getattr(annotation, "__name__", str(annotation))
    )


def also_symbolic(function: F) -> F:
    """Hands the call of a function that is no op to Keras when an argument is a symbolic Keras tensor.

    Args:
      function: a public function that needs its arguments' values, such as `tf.zeros` its shape's.
    """

    @functools.wraps(function)
    def public(*args: Any, **kwargs: Any) -> Any:
        if _symbolic_types and has_symbolic(args, kwargs):
            return _symbolic_handler(public, args, kwargs)  # type: ignore[misc]
        return function(*args, **kwargs)

    return public  # type: ignore[return-value]


def has_symbolic(args: Iterable[Any], kwargs: dict[str, Any]) -> bool:
    """Whether an argument is, or a nested list or dictionary of arguments holds, a Keras tensor."""
    for value in args:
        if isinstance(value, _symbolic_types):
            return True
        if isinstance(value, (list, tuple)) and has_symbolic(value, {}):
            return True
        if isinstance(value, dict) and has_symbolic(value.values(), {}):
            return True
    return bool(kwargs) and has_symbolic(kwargs.values(), {})


def _as_operand_list(op_name: str, name: str, value: Any) -> list[Any]:
    if isinstance(value, (list, tuple)):
        return list(value)
    if isinstance(value, Tensor) or hasattr(value, "_as_tensor") or isinstance(value, np.ndarray):
        return list(convert_to_tensor(value)) if value.shape else [value]
    raise TypeError(f"{op_name}: `{name}` must be a list of tensors, got {type(value).__name__}.")


def _unify_lists(
    op_name: str, operands: list[Any], same: Sequence[int], list_at: set[int]
) -> list[Any]:
    """`unify` where some operands are lists: their items are unified like separate operands."""
    flat: list[Any] = []
    flat_same: list[int] = []
    for k, operand in enumerate(operands):
        items = operand if k in list_at else [operand]
        if k in same:
            flat_same.extend(range(len(flat), len(flat) + len(items)))
        flat.extend(items)
    flat = unify(op_name, flat, flat_same)
    supply = iter(flat)
    return [
        [next(supply) for _ in operand] if k in list_at else next(supply)
        for k, operand in enumerate(operands)
    ]


def _check_kinds(op_name: str, operands: Sequence[Any], same: Sequence[int], kinds: str) -> None:
    for i in same:
        operand = operands[i]
        for tensor in operand if isinstance(operand, list) else (operand,):
            if tensor is not None and _kind(tensor.dtype) not in kinds:
                words = [_KIND_WORDS[k] for k in kinds]
                raise errors.DtypeMismatchError(
                    f"{op_name}: input #{i} has dtype {tensor.dtype.name}, expected "
                    f"{' or '.join(words)}. Use tf.cast to convert it. [Op:{op_name}]"
                )


_KIND_WORDS = {
    "b": "bool",
    "s": "string",
    "i": "an integer type",
    "f": "a floating-point type",
    "c": "a complex type",
}


def _kind(dtype: DType) -> str:
    if dtype.is_floating:
        return "f"
    if dtype.is_integer:
        return "i"
    return {"bool": "b", "string": "s"}.get(dtype.name, "c")


def explain(op_name: str, error: Exception, operands: Sequence[Any]) -> Exception:
    """TensorFlow's exception for a shape or value problem found below, naming op and operands."""
    if isinstance(error, FloatingPointError):
        return errors.NotFiniteError(f"{errors.NotFiniteError.TEXT} [Op:{op_name}]")
    own = (errors.OpError, errors.InaccessibleTensorError, errors.OperatorNotAllowedInGraphError)
    if isinstance(error, (*own, jax.errors.JAXTypeError)):
        return error
    shapes = ", ".join(f"{t.dtype.name}{list(t.shape)}" for t in flat_tensors(operands))
    if isinstance(error, TypeError) and any(t.dtype is string for t in flat_tensors(operands)):
        return errors.UnimplementedError(
            f"{op_name} does not work on strings. [Op:{op_name}; operands: {shapes}]"
        )
    text = f"{op_name}: {error} [Op:{op_name}; operands: {shapes or 'none'}]"
    if isinstance(error, (ValueError, TypeError, IndexError, ZeroDivisionError)):
        return errors.InvalidValueError(text)
    return type(error)(text)
