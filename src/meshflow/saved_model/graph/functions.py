"""Programs as functions of TensorFlow's graphs: one op that runs StableHLO, between reads and writes of variables.

A function that can be trained further ends in an `IdentityN` of its results and its inexact inputs, with a
gradient registered for it: a second program, which `jax.vjp` gives. TensorFlow hands the inputs to it as
tensors captured from the first function.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.export
import numpy as np

from meshflow.core.values import nest
from meshflow.core.values.dtypes import as_dtype
from meshflow.core.values.specs import TensorSpec
from meshflow.environment.jax_internals import jex_core
from meshflow.files.crc32c import crc32c
from meshflow.saved_model.assets import Asset
from meshflow.saved_model.graph.host_nodes import HostNodes
from meshflow.saved_model.graph.nodes import (
    CHECKSUM,
    RESOURCE,
    STRING,
    Function,
    Type,
    add_node,
    datatype,
    functions,
    put_shape,
    shapes,
    strings,
    types,
)
from meshflow.saved_model.graph.portable import without_composites
from meshflow.saved_model.graph.text_nodes import add_steps
from meshflow.saved_model.programs import Program, for_platforms, is_differentiable, known_sizes
from meshflow.saved_model.steps import ByRank, HostStep, Plan

__all__ = [
    "Written",
    "add_call",
    "add_choice",
    "add_gradient",
    "add_plan",
    "add_program",
    "add_wrapper",
    "is_trainable",
]


@dataclasses.dataclass
class Written:
    """A function in a library.

    Attributes:
      definition: its `FunctionDef`.
      bound: numbers of the objects that its last arguments are, those of variables.
      outs: dtype and shape of each result.
      inputs: what its program takes.
      is_differentiable: whether it has a gradient.
    """

    definition: Any
    bound: list[int]
    outs: Sequence[Any]
    inputs: list[str] = dataclasses.field(default_factory=list)
    is_differentiable: bool = False

    @property
    def name(self) -> str:
        """Its name."""
        return self.definition.signature.name


def add_program(
    library: Any, name: str, program: Program, place: Callable[[Any], int], gradient: str | None
) -> Written:
    """Adds a program as a function.

    Args:
      library: a `FunctionDefLibrary`.
      name: the function's name.
      program: the program.
      place: gives the number of the object that a capture is.
      gradient: type under which the gradient is registered, or None for a function without one.
    """
    traced, exported = program.traced, program.portable
    function = library.function.add()
    function.signature.name = name
    function.signature.is_stateful = True
    given = len(exported.in_avals) - len(traced.captures)
    arguments = [_add_argument(function, f"argument_{i}", s) for i, s in enumerate(program.specs)]
    inputs = [
        add_steps(function, f"text_{i}", arguments[place], steps)
        for i, (place, steps) in enumerate(program.steps)
    ]
    inputs += [
        name for name, s in zip(arguments, program.specs, strict=True) if s.dtype.name != "string"
    ]
    handles: dict[int, str] = {}
    for i, (capture, aval) in enumerate(
        zip(traced.captures, exported.in_avals[given:], strict=True)
    ):
        handles[id(capture)] = _add_resource(function, f"variable_{i}", aval)
        read = add_node(
            function.node_def,
            f"read_{i}",
            "ReadVariableOp",
            [f"variable_{i}"],
            dtype=Type(datatype(aval.dtype)),
        )
        inputs.append(f"{read}:value:0")
    bound = [place(c) for c in traced.captures]
    for variable in traced.writes:
        if id(variable) not in handles:
            aval = jax.ShapeDtypeStruct(tuple(variable.shape), variable.dtype.dtype)
            handles[id(variable)] = _add_resource(function, f"written_{len(bound)}", aval)
            bound.append(place(variable))
    outputs = _add_module(function, "program", exported, inputs)
    for i, variable in enumerate(traced.writes):
        value, aval = outputs[traced.count + i], exported.out_avals[traced.count + i]
        written = add_node(
            function.node_def,
            f"write_{i}",
            "AssignVariableOp",
            [handles[id(variable)], value],
            dtype=Type(datatype(aval.dtype)),
            validate_shape=False,
        )
        function.signature.control_output.append(written)
        function.control_ret[written] = written
    outs = [_shaped(exported.out_avals[i]) for i in program.results]
    values = [outputs[i] for i in program.results]
    if gradient is not None:
        values = _with_gradient(function, gradient, values, outs, inputs, exported.in_avals)
    _add_results(function, values, outs)
    _put_input_shapes(function, [s.shape for s in program.specs])
    return Written(function, bound, outs, inputs, gradient is not None)


def add_plan(
    library: Any, name: str, plan: Plan, place: Callable[[Any], int], parts: Sequence[Written]
) -> Written:
    """Adds a function of strings and tables: ops between calls of programs.

    Args:
      library: a `FunctionDefLibrary`.
      name: the function's name.
      plan: what it does.
      place: gives the number of the object that a table is.
      parts: its programs as they were written.

    Raises:
      Unsaved: for what TensorFlow's ops do not do.
    """
    function = library.function.add()
    function.signature.name = name
    function.signature.is_stateful = True
    outputs = {i: _add_argument(function, f"argument_{i}", s) for i, s in enumerate(plan.specs)}
    kinds = {i: s.dtype for i, s in enumerate(plan.specs)}
    shapes_of = {
        i: tuple(s.shape) if s.shape.rank is not None else None for i, s in enumerate(plan.specs)
    }
    handles: dict[int, str] = {}

    def handle(number: int, like: Any = None, kind: int = RESOURCE) -> str:
        if number not in handles:
            handles[number] = f"resource_{len(handles)}"
            argument = function.signature.input_arg.add(name=handles[number], type=kind)
            if like is not None:
                argument.handle_data.extend(like.handle_data)
        return handles[number]

    nodes = HostNodes(
        function,
        outputs,
        kinds,
        lambda item: handle(place(item), kind=STRING if isinstance(item, Asset) else RESOURCE),
    )
    written = iter(parts)
    for number, part in enumerate(plan.parts):
        if isinstance(part, HostStep):
            outputs[part.result] = nodes.add(part.name, part.first, part.more)
            kinds[part.result], shapes_of[part.result] = part.spec.dtype, tuple(part.spec.shape)
            continue
        step, _program = part
        inner = next(written)
        resources = inner.definition.signature.input_arg[len(step.inputs) :]
        given = [outputs[n] for n in step.inputs]
        given += [handle(n, like) for n, like in zip(inner.bound, resources, strict=True)]
        call = add_call(
            function.node_def,
            f"part_{number}",
            inner.definition,
            given,
            inner.outs,
            inner.is_differentiable,
        )
        for i, (n, aval) in enumerate(zip(step.outputs, inner.outs, strict=True)):
            outputs[n] = f"{call}:output:{i}"
            kinds[n], shapes_of[n] = as_dtype(aval.dtype), aval.shape
        nodes.must_run(call)
    results = plan.recorded.results
    outs = [_Out(shapes_of[n], kinds[n]) for n in results]
    _add_results(function, [outputs[n] for n in results], outs)
    _put_input_shapes(function, [shapes_of[i] for i in range(len(plan.specs))])
    return Written(function, list(handles), outs)


@dataclasses.dataclass(frozen=True)
class _Out:
    """Shape and dtype of a result, which may be strings."""

    shape: Any
    dtype: Any


def _shaped(aval: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype)


def _add_argument(function: Any, name: str, aval: Any) -> str:
    function.signature.input_arg.add(name=name, type=datatype(aval.dtype))
    return name


def _add_resource(function: Any, name: str, aval: Any) -> str:
    argument = function.signature.input_arg.add(name=name, type=RESOURCE)
    handle = argument.handle_data.add(dtype=datatype(aval.dtype))
    put_shape(handle.shape, aval.shape)
    return name


def _add_module(function: Any, name: str, exported: Any, inputs: Sequence[str]) -> list[str]:
    """Adds the op that runs StableHLO; gives its outputs."""
    kept = exported.module_kept_var_idx
    content = without_composites(bytes(exported.mlir_module_serialized))
    outs = [a.shape for a in exported.out_avals]
    add_node(
        function.node_def,
        name,
        "XlaCallModule",
        [inputs[i] for i in kept],
        version=exported.calling_convention_version,
        module=content,
        Tin=types([datatype(exported.in_avals[i].dtype) for i in kept]),
        Tout=types([datatype(a.dtype) for a in exported.out_avals]),
        Sout=shapes(outs),
        platforms=strings([p.upper().encode() for p in exported.platforms]),
        dim_args_spec=strings([]),
        function_list=functions([]),
        has_token_input_output=False,
        disabled_checks=strings([]),
        use_shardy_partitioner=False,
        **{CHECKSUM: crc32c(content)},
        _output_shapes=shapes(outs),
    )
    return [f"{name}:output:{i}" for i in range(len(outs))]


def _with_gradient(
    function: Any,
    gradient: str,
    values: list[str],
    outs: Sequence[Any],
    inputs: Sequence[str],
    avals: Sequence[Any],
) -> list[str]:
    """The results as outputs of a node with a registered gradient."""
    inexact = [i for i, a in enumerate(avals) if _is_inexact(a)]
    parts = [*outs, *(avals[i] for i in inexact)]
    add_node(
        function.node_def,
        "with_gradient",
        "IdentityN",
        [*values, *(inputs[i] for i in inexact)],
        T=types([datatype(a.dtype) for a in parts]),
        _gradient_op_type=gradient.encode(),
        _output_shapes=shapes([a.shape for a in parts]),
    )
    return [f"with_gradient:output:{i}" for i in range(len(values))]


def _is_inexact(aval: Any) -> bool:
    return bool(jax.numpy.issubdtype(aval.dtype, np.inexact))


def _add_results(function: Any, values: Sequence[str], outs: Sequence[Any]) -> None:
    # TensorFlow's converters want the results to come from ops with known shapes.
    for i, (value, out) in enumerate(zip(values, outs, strict=True)):
        function.signature.output_arg.add(name=f"output_{i}", type=datatype(out.dtype))
        add_node(
            function.node_def,
            f"result_{i}",
            "Identity",
            [value],
            T=Type(datatype(out.dtype)),
            _output_shapes=shapes([out.shape]),
        )
        function.ret[f"output_{i}"] = f"result_{i}:output:0"


def _put_input_shapes(function: Any, known: Sequence[Any]) -> None:
    rest = len(function.signature.input_arg) - len(known)
    shapes([*known, *[()] * rest])(function.attr["_input_shapes"])


def add_gradient(
    library: Any, name: str, program: Program, of: Written
) -> tuple[Any, list[str], Any]:
    """Adds the gradient of a program as a function.

    Args:
      library: a `FunctionDefLibrary`.
      name: the new function's name.
      program: the program.
      of: the function that it was written as, with a gradient.

    Returns:
      The function, the tensors of `of` that it captures, and (arguments, result) as nested specs.
    """
    avals = program.exported.in_avals
    inexact = [i for i, a in enumerate(avals) if _is_inexact(a)]
    outs = list(dict.fromkeys(program.results))
    differentiable = [i for i in outs if _is_inexact(program.exported.out_avals[i])]
    backward = _backward(program.traced.closed, avals, inexact, differentiable)
    function = library.function.add()
    function.signature.name = name
    function.signature.is_stateful = True
    parts = [*of.outs, *(avals[i] for i in inexact)]
    for i, aval in enumerate(parts):
        _add_argument(function, f"gradient_{i}", aval)
    values = [_add_argument(function, f"captured_{i}", a) for i, a in enumerate(avals)]
    for result in differentiable:
        values.append(_sum_of_gradients(function, program, result))
    outputs = _add_module(function, "program", backward, values)
    _add_results(function, outputs, [_shaped(avals[i]) for i in inexact])
    _put_input_shapes(function, [a.shape for a in (*parts, *avals)])
    captured = [f"{i.split(':')[0]}:{i.split(':')[-1] if ':' in i else 0}" for i in of.inputs]
    specs = [
        TensorSpec(known_sizes(a.shape), a.dtype, f"gradient_{i}") for i, a in enumerate(parts)
    ]
    returned = [*[None] * len(of.outs), *specs[len(of.outs) :]]
    return function, captured, (((None, *specs), {}), returned)


def _sum_of_gradients(function: Any, program: Program, result: int) -> str:
    """The gradient of a result, which may be returned at several places."""
    places = [f"gradient_{i}" for i, r in enumerate(program.results) if r == result]
    if len(places) == 1:
        return places[0]
    kind = Type(datatype(program.exported.out_avals[result].dtype))
    name = add_node(function.node_def, f"sum_{result}", "AddN", places, T=kind, N=len(places))
    return f"{name}:sum:0"


def _backward(closed: Any, avals: Any, inexact: list[int], outs: list[int]) -> Any:
    """The gradients of a program by its inexact inputs, exported."""
    run = jex_core.jaxpr_as_fun(closed)

    def gradients(*arrays: Any) -> Any:
        given, cotangents = list(arrays[: len(avals)]), list(arrays[len(avals) :])

        def of_inexact(*some: Any) -> list[Any]:
            for i, value in zip(inexact, some, strict=True):
                given[i] = value
            results = run(*given)
            return [results[i] for i in outs]

        return jax.vjp(of_inexact, *(given[i] for i in inexact))[1](cotangents)

    specs = [_shaped(a) for a in (*avals, *(closed.out_avals[i] for i in outs))]
    return for_platforms(gradients, specs, portable=True)


def add_choice(
    library: Any,
    name: str,
    program: ByRank,
    ranked: Mapping[int, Written],
    branch: Callable[[], str],
) -> Written:
    """Adds a function that calls another one for each rank of its first argument of unknown rank.

    Args:
      library: a `FunctionDefLibrary`.
      name: the function's name.
      program: what it does.
      ranked: the functions for the ranks that there are.
      branch: gives names of further functions.
    """
    function = library.function.add()
    function.signature.name = name
    function.signature.is_stateful = True
    specs = program.specs
    arguments = [_add_argument(function, f"argument_{i}", s) for i, s in enumerate(specs)]
    bound: dict[int, str] = {}
    for written in ranked.values():
        own = written.definition.signature.input_arg[len(specs) :]
        for number, like in zip(written.bound, own, strict=True):
            if number not in bound:
                bound[number] = f"resource_{len(bound)}"
                argument = function.signature.input_arg.add(name=bound[number], type=like.type)
                argument.handle_data.extend(like.handle_data)
    outs = [_Out(None, s.dtype) for s in nest.flatten(program.returned)]
    branches = []
    for rank in range(max(ranked) + 1):
        # TensorFlow tells of a rank that there is no program for by the one of another rank.
        inner = ranked.get(rank) or ranked[max(ranked)]
        branches.append(_add_branch(library, branch(), function.signature, inner, bound, outs))
    place = next(i for i, s in enumerate(specs) if s.shape.rank is None)
    kind = Type(datatype(specs[place].dtype))
    add_node(function.node_def, "rank", "Rank", [arguments[place]], T=kind)
    add_node(
        function.node_def,
        "choice",
        "Case",
        ["rank:output:0", *arguments, *bound.values()],
        Tin=types([a.type for a in function.signature.input_arg]),
        Tout=types([datatype(out.dtype) for out in outs]),
        branches=functions(branches),
        output_shapes=shapes([None] * len(outs)),
    )
    function.signature.control_output.append("choice")
    function.control_ret["choice"] = "choice"
    _add_results(function, [f"choice:output:{i}" for i in range(len(outs))], outs)
    _put_input_shapes(function, [s.shape if s.shape.rank is not None else None for s in specs])
    return Written(function, list(bound), outs)


def _add_branch(
    library: Any,
    name: str,
    signature: Any,
    inner: Written,
    bound: Mapping[int, str],
    outs: Sequence[Any],
) -> str:
    """Adds a function that takes all that the choice takes, and calls the one for a rank."""
    function = library.function.add()
    function.signature.name = name
    function.signature.is_stateful = True
    function.signature.input_arg.extend(signature.input_arg)
    count = len(signature.input_arg) - len(bound)
    given = [f"argument_{i}" for i in range(count)] + [bound[n] for n in inner.bound]
    call = add_call(function.node_def, "call", inner.definition, given, inner.outs)
    function.signature.control_output.append(call)
    function.control_ret[call] = call
    _add_results(function, [f"{call}:output:{i}" for i in range(len(outs))], outs)
    return name


def is_trainable(program: Program) -> bool:
    """Whether a program has inputs and results with gradients."""
    outs = [program.exported.out_avals[i] for i in program.results]
    return is_differentiable(program.exported.in_avals) and is_differentiable(outs)


def add_call(
    where: Any,
    name: str,
    function: Any,
    inputs: Sequence[str],
    outs: Sequence[Any],
    differentiable: bool = False,
) -> str:
    """Adds a node that calls a function."""
    signature = function.signature
    # TensorFlow puts the gradient of the function that it makes there.
    more = {"_gradient_op_type": b"PartitionedCall-1"} if differentiable else {}
    return add_node(
        where,
        name,
        "StatefulPartitionedCall",
        inputs,
        f=Function(signature.name),
        Tin=types([a.type for a in signature.input_arg]),
        Tout=types([a.type for a in signature.output_arg]),
        config_proto=b"",
        config=b"",
        executor_type=b"",
        _output_shapes=shapes([a.shape for a in outs]),
        **more,
    )


def add_wrapper(library: Any, name: str, of: Written, differentiable: bool = False) -> Written:
    """Adds a function that calls another one, with that one's gradient if it is to be differentiable."""
    function = library.function.add()
    inner = of.definition
    function.signature.CopyFrom(inner.signature)
    function.signature.name = name
    del function.signature.control_output[:]
    function.attr["_input_shapes"].CopyFrom(inner.attr["_input_shapes"])
    names = [a.name for a in inner.signature.input_arg]
    call = add_call(function.node_def, "call", inner, names, of.outs, differentiable)
    del function.signature.output_arg[:]
    _add_results(function, [f"{call}:output:{i}" for i in range(len(of.outs))], of.outs)
    function.signature.control_output.append(call)
    function.control_ret[call] = call
    return Written(function, of.bound, of.outs)
