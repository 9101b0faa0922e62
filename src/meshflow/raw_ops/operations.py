"""Raw ops by their names.

`arguments.txt`, recorded from TensorFlow 2.15, has the arguments of each op, its inputs and its outputs. An op is
computed by a function of this package, by a public function (`public_functions`), or by the op that Meshflow has for
TensorFlow's graphs (`graph_ops`).
"""

from __future__ import annotations

import functools
import inspect
import operator
import re
from collections import namedtuple
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from meshflow.core.runtime.errors import NotAvailableError
from meshflow.core.runtime.import_paths import get_public_package
from meshflow.core.values import dtypes
from meshflow.core.values.convert import convert_to_tensor
from meshflow.raw_ops.arrays import ARRAY_OPS
from meshflow.raw_ops.clustering import CLUSTERING_OPS
from meshflow.raw_ops.graph_ops import OP_FUNCTIONS, run_graph_op
from meshflow.raw_ops.public_functions import ARGUMENTS, PUBLIC_PATHS
from meshflow.raw_ops.resources import FUNCTIONS
from meshflow.raw_ops.sparse_strings import SPARSE_STRING_OPS
from meshflow.raw_ops.training import TRAINING_OPS

FILE = Path(__file__).with_name("arguments.txt")
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    **FUNCTIONS,
    **ARRAY_OPS,
    **TRAINING_OPS,
    **CLUSTERING_OPS,
    **SPARSE_STRING_OPS,
}


class OpDefinition(NamedTuple):
    """Arguments and results of an op.

    Attributes:
      signature: Its arguments, all by keyword.
      inputs: Name, dtype attribute and count attribute of each input.
      outputs: Names of the outputs.
    """

    signature: inspect.Signature
    inputs: list[tuple[str, str, str]]
    outputs: list[str]


@functools.cache
def _read_lines() -> dict[str, str]:
    """Return the text of each op by its name, which is only the name for ops that Meshflow does not compute."""
    texts: dict[str, str] = {}
    for line in FILE.read_text().splitlines():
        name, bracket, _ = line.partition("(")
        texts |= {name: line} if bracket else {n: n for n in line.split()}
    return texts


@functools.cache
def _find_definition(name: str) -> OpDefinition:
    match = re.fullmatch(r"\w+\((.*)\) (.*)-> ?(.*)", _read_lines()[name])
    assert match is not None
    arguments, inputs, outputs = match.groups()
    parameters = inspect.signature(
        eval(f"lambda {arguments}: None", {"tf": dtypes})
    ).parameters.values()
    keyword_only = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in parameters]
    parsed = (re.fullmatch(r"(\w+):?(\w*)\*?(\w*)", text) for text in inputs.split())
    return OpDefinition(
        inspect.Signature(keyword_only),
        [(m[1], m[2], m[3]) for m in parsed if m is not None],
        outputs.split(),
    )


def _call_public(name: str, definition: OpDefinition, arguments: Mapping[str, Any]) -> Any:
    """Call the public function of an op; return NotImplemented if it does not support the arguments."""
    function = operator.attrgetter(PUBLIC_PATHS[name])(get_public_package())
    accepted = inspect.signature(function).parameters
    names = list(accepted)
    options: dict[str, Any] = {}
    # Required arguments with other names are passed by their positions.
    for index, (key, parameter) in enumerate(definition.signature.parameters.items()):
        if key not in arguments:
            continue
        is_required = parameter.default is parameter.empty
        target = key if key in accepted else ARGUMENTS.get(key, "")
        if target not in accepted and is_required and index < len(names):
            target = names[index]
        if target in accepted and target not in options:
            options[target] = arguments[key]
        elif key != "name" and (is_required or arguments[key] != parameter.default):
            return NotImplemented
    return function(**options)


def _call_graph_op(name: str, definition: OpDefinition, arguments: Mapping[str, Any]) -> Any:
    """Call the op of TensorFlow's graphs."""
    values = [*definition.signature.parameters][: len(definition.inputs)]
    inputs: list[Any] = []
    attributes = {
        k: arguments.get(k, p.default)
        for k, p in definition.signature.parameters.items()
        if k not in values and k != "name" and arguments.get(k, p.default) is not None
    }
    for key, (_, dtype, count) in zip(values, definition.inputs, strict=True):
        value = arguments[key]
        # A list of tensors has the same dtype or a list of dtypes.
        is_list = dtype.endswith("_types")
        parts = list(value) if count or is_list else [value]
        if count:
            attributes[count] = len(parts)
        if is_list:
            parts = [convert_to_tensor(part) for part in parts]
            attributes[dtype] = [part.dtype for part in parts]
        elif dtype and parts:
            attributes.setdefault(dtype, dtypes.as_dtype(getattr(parts[0], "dtype", "float32")))
        inputs += parts
    return run_graph_op(name, inputs, attributes)


def _name_outputs(name: str, definition: OpDefinition, result: Any) -> Any:
    """Return several outputs as a named tuple, and no output as None."""
    if len(definition.outputs) < 2:
        return result
    # Later versions of an op have more outputs, such as FusedBatchNormV3.
    return namedtuple(name, definition.outputs)(*result[: len(definition.outputs)])


def _make_function(name: str) -> Callable[..., Any]:
    definition = _find_definition(name)

    def raw_op(*args: Any, **kwargs: Any) -> Any:
        if args:
            raise TypeError(
                f"{name} only takes keyword args (possible keys: {list(definition.signature.parameters)}). Please pass "
                "these args as kwargs instead."
            )
        arguments = definition.signature.bind(**kwargs).arguments
        arguments.pop("name", None)
        result = NotImplemented
        if name in _FUNCTIONS:
            result = _FUNCTIONS[name](**arguments)
        elif name in PUBLIC_PATHS:
            result = _call_public(name, definition, arguments)
        if result is NotImplemented and name in OP_FUNCTIONS:
            result = _call_graph_op(name, definition, arguments)
        if result is NotImplemented:
            raise NotAvailableError(
                f"tf.raw_ops.{name}: these arguments are not supported: {', '.join(arguments)}. Use "
                f"tf.{PUBLIC_PATHS[name]}."
            )
        return _name_outputs(name, definition, result)

    raw_op.__name__ = raw_op.__qualname__ = name
    raw_op.__signature__ = definition.signature  # type: ignore[attr-defined]
    raw_op.__doc__ = f"Compute TensorFlow's op `{name}`; all arguments are passed by keyword."
    return raw_op


@functools.cache
def find_op(name: str) -> Callable[..., Any]:
    """Return a raw op.

    Raises:
      NotAvailableError: If Meshflow does not compute it.
      AttributeError: If TensorFlow does not have it.
    """
    if name not in _read_lines():
        raise AttributeError(f"module 'tf.raw_ops' has no attribute {name!r}")
    if name not in list_ops():
        raise NotAvailableError(
            f"tf.raw_ops.{name}: no code of Meshflow computes this op. Use the public function of its subject "
            "(tf.data, tf.queue, tf.lookup, tf.sparse, tf.distribute), or tf.py_function."
        )
    return _make_function(name)


@functools.cache
def list_ops() -> frozenset[str]:
    """Return the names of the raw ops."""
    return frozenset(
        n for n in _read_lines() if n in _FUNCTIONS or n in PUBLIC_PATHS or n in OP_FUNCTIONS
    )


def bind_positional(name: str) -> Callable[..., Any]:
    """Return a raw op that also takes its arguments by position, as the public names of ops do."""
    function = find_op(name)
    names = list(_find_definition(name).signature.parameters)

    @functools.wraps(function)
    def positional(*args: Any, **kwargs: Any) -> Any:
        return function(**dict(zip(names, args, strict=False)), **kwargs)

    parameters = _find_definition(name).signature.parameters.values()
    positional.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [p.replace(kind=inspect.Parameter.POSITIONAL_OR_KEYWORD) for p in parameters]
    )
    return positional
