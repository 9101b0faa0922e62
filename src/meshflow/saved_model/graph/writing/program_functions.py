"""Exported programs as functions of TensorFlow's graphs.

A function reads its variables, runs StableHLO by one op, and assigns to variables. A function that
can be trained further ends in an `IdentityN` of its results and its inexact inputs, for which a
gradient function is registered. This is a second program, computed by `jax.vjp`. It captures the
inputs of the first function as tensors.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import jax
import jax.export
import numpy as np

from meshflow.core.values import nest
from meshflow.core.values.dtypes import DTypeLike, as_dtype
from meshflow.core.values.specs import TensorSpec
from meshflow.environment.jax_internals import jex_core
from meshflow.environment.types import ClosedJaxpr, PyTree
from meshflow.files.crc32c import crc32c
from meshflow.saved_model.graph.format.messages import Message
from meshflow.saved_model.graph.format.nodes import (
    CHECKSUM_ATTRIBUTE,
    RESOURCE,
    STRING,
    FunctionAttr,
    add_node,
    make_function_list,
    make_shape_list,
    make_string_list,
    make_type_list,
    to_dtype_enum,
    write_shape,
)
from meshflow.saved_model.graph.writing.host_nodes import HostNodeWriter
from meshflow.saved_model.graph.writing.portable_stablehlo import make_portable
from meshflow.saved_model.graph.writing.text_nodes import add_text_steps
from meshflow.saved_model.host_steps.plan import FunctionPlan, HostStep, ProgramsByRank
from meshflow.saved_model.manifest.assets import Asset
from meshflow.saved_model.programs.foreign_modules import remember_own_program
from meshflow.saved_model.programs.stablehlo import (
    ExportedProgram,
    export_for_platforms,
    get_static_sizes,
    is_differentiable,
)

IndexFunction: TypeAlias = Callable[[object], int]
ShapedValue: TypeAlias = "jax.ShapeDtypeStruct | jax.core.ShapedArray | TensorSpec | _ResultSpec"


@dataclasses.dataclass
class WrittenFunction:
    """Function in a library of a graph.

    Attributes:
      definition: Its `FunctionDef`.
      bound_inputs: Indices of the objects, such as variables, that are its last arguments.
      outs: Dtype and shape of each result.
      inputs: Tensors that the program in it takes.
      is_differentiable: Whether it has a gradient.
    """

    definition: Message
    bound_inputs: list[int]
    outs: Sequence[ShapedValue]
    inputs: list[str] = dataclasses.field(default_factory=list)
    is_differentiable: bool = False

    @property
    def name(self) -> str:
        """Return the name of the function."""
        return self.definition.signature.name


def add_program(
    library: Message,
    name: str,
    program: ExportedProgram,
    get_index: IndexFunction,
    gradient: str | None,
) -> WrittenFunction:
    """Add an exported program as a function.

    Args:
      library: A `FunctionDefLibrary`.
      name: Name of the function.
      program: The program.
      get_index: Function that returns the index of a captured object.
      gradient: Op type under which the gradient is registered, or None for a function without a
        gradient.
    """
    traced, exported = program.traced, program.portable_exported
    function = library.function.add()
    function.signature.name = name
    function.signature.is_stateful = True
    num_arguments = len(exported.in_avals) - len(traced.captures)
    arguments = [_add_argument(function, f"argument_{i}", s) for i, s in enumerate(program.specs)]
    inputs = [
        add_text_steps(function, f"text_{i}", arguments[index], steps)
        for i, (index, steps) in enumerate(program.steps)
    ]
    inputs += [
        name for name, s in zip(arguments, program.specs, strict=True) if s.dtype.name != "string"
    ]
    handles: dict[int, str] = {}
    for i, (capture, aval) in enumerate(
        zip(traced.captures, exported.in_avals[num_arguments:], strict=True)
    ):
        handles[id(capture)] = _add_resource(function, f"variable_{i}", aval)
        read = add_node(
            function.node_def,
            f"read_{i}",
            "ReadVariableOp",
            [f"variable_{i}"],
            dtype=as_dtype(aval.dtype),
        )
        inputs.append(f"{read}:value:0")
    bound = [get_index(c) for c in traced.captures]
    for variable in traced.writes:
        if id(variable) not in handles:
            aval = jax.ShapeDtypeStruct(tuple(variable.shape), variable.dtype.dtype)
            handles[id(variable)] = _add_resource(function, f"written_{len(bound)}", aval)
            bound.append(get_index(variable))
    outputs = add_module(function, "program", exported, inputs)
    for i, variable in enumerate(traced.writes):
        value, aval = outputs[traced.num_results + i], exported.out_avals[traced.num_results + i]
        written = add_node(
            function.node_def,
            f"write_{i}",
            "AssignVariableOp",
            [handles[id(variable)], value],
            dtype=as_dtype(aval.dtype),
            validate_shape=False,
        )
        function.signature.control_output.append(written)
        function.control_ret[written] = written
    outs = [_to_shape_struct(exported.out_avals[i]) for i in program.result_indices]
    values = [outputs[i] for i in program.result_indices]
    if gradient is not None:
        values = _attach_gradient(function, gradient, values, outs, inputs, exported.in_avals)
    _add_results(function, values, outs)
    _set_input_shapes(function, [s.shape for s in program.specs])
    return WrittenFunction(function, bound, outs, inputs, gradient is not None)


def add_plan(
    library: Message,
    name: str,
    plan: FunctionPlan,
    get_index: IndexFunction,
    parts: Sequence[WrittenFunction],
) -> WrittenFunction:
    """Add a plan, which processes strings and tables, as a function of ops and calls of programs.

    Args:
      library: A `FunctionDefLibrary`.
      name: Name of the function.
      plan: The plan.
      get_index: Function that returns the index of a table.
      parts: The functions that the programs of the plan were written as.

    Raises:
      UnsavableError: If TensorFlow has no equivalent op for a step.
    """
    function = library.function.add()
    function.signature.name = name
    function.signature.is_stateful = True
    outputs = {i: _add_argument(function, f"argument_{i}", s) for i, s in enumerate(plan.specs)}
    dtypes = {i: s.dtype for i, s in enumerate(plan.specs)}
    value_shapes: dict[int, Any] = {
        i: tuple(s.shape) if s.shape.rank is not None else None for i, s in enumerate(plan.specs)
    }
    handles: dict[int, str] = {}

    def add_handle(index: int, like: Message | None = None, dtype: int = RESOURCE) -> str:
        if index not in handles:
            handles[index] = f"resource_{len(handles)}"
            argument = function.signature.input_arg.add(name=handles[index], type=dtype)
            if like is not None:
                argument.handle_data.extend(like.handle_data)
        return handles[index]

    nodes = HostNodeWriter(
        function,
        outputs,
        dtypes,
        lambda item: add_handle(
            get_index(item), dtype=STRING if isinstance(item, Asset) else RESOURCE
        ),
    )
    written = iter(parts)
    for index, part in enumerate(plan.parts):
        if isinstance(part, HostStep):
            outputs[part.result] = nodes.add(part.name, part.first, part.more)
            dtypes[part.result], value_shapes[part.result] = part.spec.dtype, tuple(part.spec.shape)
            continue
        step, _program = part
        inner = next(written)
        resources = inner.definition.signature.input_arg[len(step.inputs) :]
        arguments = [outputs[n] for n in step.inputs]
        arguments += [
            add_handle(n, like) for n, like in zip(inner.bound_inputs, resources, strict=True)
        ]
        call = add_call(
            function.node_def,
            f"part_{index}",
            inner.definition,
            arguments,
            inner.outs,
            inner.is_differentiable,
        )
        for i, (n, aval) in enumerate(zip(step.outputs, inner.outs, strict=True)):
            outputs[n] = f"{call}:output:{i}"
            dtypes[n], value_shapes[n] = as_dtype(aval.dtype), aval.shape
        nodes.require_node(call)
    results = plan.recorded.results
    outs = [_ResultSpec(value_shapes[n], dtypes[n]) for n in results]
    _add_results(function, [outputs[n] for n in results], outs)
    _set_input_shapes(function, [value_shapes[i] for i in range(len(plan.specs))])
    return WrittenFunction(function, list(handles), outs)


@dataclasses.dataclass(frozen=True)
class _ResultSpec:
    """Shape and dtype of a result, which may have the dtype string or an unknown rank."""

    shape: Sequence[Any] | None
    dtype: DTypeLike


def _to_shape_struct(aval: ShapedValue) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype)


def _add_argument(function: Message, name: str, aval: ShapedValue) -> str:
    function.signature.input_arg.add(name=name, type=to_dtype_enum(aval.dtype))
    return name


def _add_resource(function: Message, name: str, aval: ShapedValue) -> str:
    argument = function.signature.input_arg.add(name=name, type=RESOURCE)
    handle = argument.handle_data.add(dtype=to_dtype_enum(aval.dtype))
    write_shape(handle.shape, aval.shape)
    return name


def add_module(
    function: Message, name: str, exported: jax.export.Exported, inputs: Sequence[str]
) -> list[str]:
    """Add the op that runs a StableHLO program, and return its outputs."""
    used = exported.module_kept_var_idx
    content, convention = make_portable(
        bytes(exported.mlir_module_serialized), exported.calling_convention_version
    )
    remember_own_program(content)
    outs = [a.shape for a in exported.out_avals]
    add_node(
        function.node_def,
        name,
        "XlaCallModule",
        [inputs[i] for i in used],
        version=convention,
        module=content,
        Tin=make_type_list([to_dtype_enum(exported.in_avals[i].dtype) for i in used]),
        Tout=make_type_list([to_dtype_enum(a.dtype) for a in exported.out_avals]),
        Sout=make_shape_list(outs),
        platforms=make_string_list([p.upper().encode() for p in exported.platforms]),
        dim_args_spec=make_string_list([]),
        function_list=make_function_list([]),
        has_token_input_output=False,
        disabled_checks=make_string_list([]),
        **{CHECKSUM_ATTRIBUTE: crc32c(content)},
        _output_shapes=make_shape_list(outs),
    )
    return [f"{name}:output:{i}" for i in range(len(outs))]


def _attach_gradient(
    function: Message,
    gradient: str,
    values: list[str],
    outs: Sequence[ShapedValue],
    inputs: Sequence[str],
    avals: Sequence[ShapedValue],
) -> list[str]:
    """Add a node with the registered gradient, and return its outputs, which equal the results."""
    inexact = [i for i, a in enumerate(avals) if _is_inexact(a)]
    parts = [*outs, *(avals[i] for i in inexact)]
    add_node(
        function.node_def,
        "with_gradient",
        "IdentityN",
        [*values, *(inputs[i] for i in inexact)],
        T=make_type_list([to_dtype_enum(a.dtype) for a in parts]),
        _gradient_op_type=gradient.encode(),
        _output_shapes=make_shape_list([a.shape for a in parts]),
    )
    return [f"with_gradient:output:{i}" for i in range(len(values))]


def _is_inexact(aval: Any) -> bool:
    return bool(jax.numpy.issubdtype(aval.dtype, np.inexact))


def _add_results(function: Message, values: Sequence[str], outs: Sequence[ShapedValue]) -> None:
    # TensorFlow's converters require that ops with known shapes compute the results.
    for i, (value, out) in enumerate(zip(values, outs, strict=True)):
        function.signature.output_arg.add(name=f"output_{i}", type=to_dtype_enum(out.dtype))
        add_node(
            function.node_def,
            f"result_{i}",
            "Identity",
            [value],
            T=as_dtype(out.dtype),
            _output_shapes=make_shape_list([out.shape]),
        )
        function.ret[f"output_{i}"] = f"result_{i}:output:0"


def _set_input_shapes(function: Message, argument_shapes: Sequence[Iterable[Any] | None]) -> None:
    num_resources = len(function.signature.input_arg) - len(argument_shapes)
    make_shape_list([*argument_shapes, *[()] * num_resources])(function.attr["_input_shapes"])


def add_gradient(
    library: Message, name: str, program: ExportedProgram, forward: WrittenFunction
) -> tuple[Message, list[str], tuple[PyTree, PyTree]]:
    """Add the gradient of a program as a function.

    Args:
      library: A `FunctionDefLibrary`.
      name: Name of the new function.
      program: The program.
      forward: The function that the program was written as.

    Returns:
      The function, the tensors of `forward` that it captures, and (arguments, result) as nested
      specs.
    """
    avals = program.exported.in_avals
    inexact = [i for i, a in enumerate(avals) if _is_inexact(a)]
    outs = list(dict.fromkeys(program.result_indices))
    differentiable = [i for i in outs if _is_inexact(program.exported.out_avals[i])]
    backward = _export_backward(program.traced.closed_jaxpr, avals, inexact, differentiable)
    function = library.function.add()
    function.signature.name = name
    function.signature.is_stateful = True
    parts: list[Any] = [*forward.outs, *(avals[i] for i in inexact)]
    for i, aval in enumerate(parts):
        _add_argument(function, f"gradient_{i}", aval)
    values = [_add_argument(function, f"captured_{i}", a) for i, a in enumerate(avals)]
    for result in differentiable:
        values.append(_sum_gradients(function, program, result))
    outputs = add_module(function, "program", backward, values)
    _add_results(function, outputs, [_to_shape_struct(avals[i]) for i in inexact])
    _set_input_shapes(function, [a.shape for a in (*parts, *avals)])
    captured = [f"{i.split(':')[0]}:{i.split(':')[-1] if ':' in i else 0}" for i in forward.inputs]
    specs = [
        TensorSpec(get_static_sizes(a.shape), a.dtype, f"gradient_{i}") for i, a in enumerate(parts)
    ]
    returned = [*[None] * len(forward.outs), *specs[len(forward.outs) :]]
    return function, captured, (((None, *specs), {}), returned)


def _sum_gradients(function: Message, program: ExportedProgram, result: int) -> str:
    """Return the gradient by an output of the program, summed over its uses as a result."""
    gradients = [f"gradient_{i}" for i, r in enumerate(program.result_indices) if r == result]
    if len(gradients) == 1:
        return gradients[0]
    dtype = as_dtype(program.exported.out_avals[result].dtype)
    name = add_node(
        function.node_def, f"sum_{result}", "AddN", gradients, T=dtype, N=len(gradients)
    )
    return f"{name}:sum:0"


def _export_backward(
    closed: ClosedJaxpr, avals: Sequence[jax.core.ShapedArray], inexact: list[int], outs: list[int]
) -> jax.export.Exported:
    """Export the gradients of a program by its inexact inputs."""
    run = jex_core.jaxpr_as_fun(closed)

    def compute_gradients(*arrays: jax.Array) -> tuple[jax.Array, ...]:
        primals, cotangents = list(arrays[: len(avals)]), list(arrays[len(avals) :])

        def run_by_inexact(*inputs: jax.Array) -> list[jax.Array]:
            for i, value in zip(inexact, inputs, strict=True):
                primals[i] = value
            results = run(*primals)
            return [results[i] for i in outs]

        return jax.vjp(run_by_inexact, *(primals[i] for i in inexact))[1](cotangents)

    specs = [_to_shape_struct(a) for a in (*avals, *(closed.out_avals[i] for i in outs))]
    return export_for_platforms(compute_gradients, specs, portable=True)


def add_rank_dispatch(
    library: Message,
    name: str,
    program: ProgramsByRank,
    ranked: Mapping[int, WrittenFunction],
    make_name: Callable[[], str],
) -> WrittenFunction:
    """Add a function that calls another function for each rank of its first argument of unknown rank.

    Args:
      library: A `FunctionDefLibrary`.
      name: Name of the function.
      program: The programs by rank.
      ranked: The functions that these programs were written as, by rank.
      make_name: Function that returns unique names for further functions.
    """
    function = library.function.add()
    function.signature.name = name
    function.signature.is_stateful = True
    specs = program.specs
    arguments = [_add_argument(function, f"argument_{i}", s) for i, s in enumerate(specs)]
    bound: dict[int, str] = {}
    for written in ranked.values():
        resources = written.definition.signature.input_arg[len(specs) :]
        for index, like in zip(written.bound_inputs, resources, strict=True):
            if index not in bound:
                bound[index] = f"resource_{len(bound)}"
                argument = function.signature.input_arg.add(name=bound[index], type=like.type)
                argument.handle_data.extend(like.handle_data)
    outs = [_ResultSpec(None, s.dtype) for s in nest.flatten(program.result_specs)]
    branches = []
    for rank in range(max(ranked) + 1):
        # For a rank without a program, the program of another rank raises an error in TensorFlow.
        inner = ranked.get(rank) or ranked[max(ranked)]
        branches.append(_add_branch(library, make_name(), function.signature, inner, bound, outs))
    dispatch_index = next(i for i, s in enumerate(specs) if s.shape.rank is None)
    dtype = as_dtype(specs[dispatch_index].dtype)
    add_node(function.node_def, "rank", "Rank", [arguments[dispatch_index]], T=dtype)
    add_node(
        function.node_def,
        "choice",
        "Case",
        ["rank:output:0", *arguments, *bound.values()],
        Tin=make_type_list([a.type for a in function.signature.input_arg]),
        Tout=make_type_list([to_dtype_enum(out.dtype) for out in outs]),
        branches=make_function_list(branches),
        output_shapes=make_shape_list([None] * len(outs)),
    )
    function.signature.control_output.append("choice")
    function.control_ret["choice"] = "choice"
    _add_results(function, [f"choice:output:{i}" for i in range(len(outs))], outs)
    _set_input_shapes(function, [s.shape if s.shape.rank is not None else None for s in specs])
    return WrittenFunction(function, list(bound), outs)


def _add_branch(
    library: Message,
    name: str,
    signature: Message,
    inner: WrittenFunction,
    bound: Mapping[int, str],
    outs: Sequence[ShapedValue],
) -> str:
    """Add a function that takes the dispatching function's arguments and calls that of one rank."""
    function = library.function.add()
    function.signature.name = name
    function.signature.is_stateful = True
    function.signature.input_arg.extend(signature.input_arg)
    count = len(signature.input_arg) - len(bound)
    arguments = [f"argument_{i}" for i in range(count)] + [bound[n] for n in inner.bound_inputs]
    call = add_call(function.node_def, "call", inner.definition, arguments, inner.outs)
    function.signature.control_output.append(call)
    function.control_ret[call] = call
    _add_results(function, [f"{call}:output:{i}" for i in range(len(outs))], outs)
    return name


def is_trainable(program: ExportedProgram) -> bool:
    """Check whether a program has inputs and results with gradients."""
    outs = [program.exported.out_avals[i] for i in program.result_indices]
    return is_differentiable(program.exported.in_avals) and is_differentiable(outs)


def add_call(
    nodes: Message,
    name: str,
    function: Message,
    inputs: Sequence[str],
    outs: Sequence[ShapedValue],
    differentiable: bool = False,
) -> str:
    """Add a node that calls a function, and return its name."""
    signature = function.signature
    # When TensorFlow loads the function, it replaces this value by the gradient that it creates.
    gradient = {"_gradient_op_type": b"PartitionedCall-1"} if differentiable else {}
    return add_node(
        nodes,
        name,
        "StatefulPartitionedCall",
        inputs,
        f=FunctionAttr(signature.name),
        Tin=make_type_list([a.type for a in signature.input_arg]),
        Tout=make_type_list([a.type for a in signature.output_arg]),
        config_proto=b"",
        config=b"",
        executor_type=b"",
        _output_shapes=make_shape_list([a.shape for a in outs]),
        **gradient,
    )


def add_wrapper(
    library: Message, name: str, inner: WrittenFunction, differentiable: bool = False
) -> WrittenFunction:
    """Add a function that calls another function, with its gradient if `differentiable` is set."""
    function = library.function.add()
    function.signature.CopyFrom(inner.definition.signature)
    function.signature.name = name
    del function.signature.control_output[:]
    function.attr["_input_shapes"].CopyFrom(inner.definition.attr["_input_shapes"])
    names = [a.name for a in inner.definition.signature.input_arg]
    call = add_call(function.node_def, "call", inner.definition, names, inner.outs, differentiable)
    del function.signature.output_arg[:]
    _add_results(function, [f"{call}:output:{i}" for i in range(len(inner.outs))], inner.outs)
    function.signature.control_output.append(call)
    function.control_ret[call] = call
    return WrittenFunction(function, inner.bound_inputs, inner.outs)
