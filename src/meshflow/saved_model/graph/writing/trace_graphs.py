"""Graphs of traced functions, for inspection and TensorBoard: a node for each call of an op.

The nodes have TensorFlow's op types and names. They describe the program, but do not replace it: a
saved model contains StableHLO, see `program_functions`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from meshflow.core.functions.signed_function import SignedFunction
from meshflow.core.tracing.trace import TracedFunction
from meshflow.core.values.dtypes import DType, as_dtype
from meshflow.core.values.specs import TensorSpec, TypeSpec
from meshflow.core.variables.variable import Variable
from meshflow.environment.jax_internals import jex_core
from meshflow.saved_model.graph.format.messages import FunctionDef, GraphDef, Message
from meshflow.saved_model.graph.format.nodes import (
    RESOURCE_DTYPE,
    VARIANT_DTYPE,
    add_node,
    make_shape,
    make_shape_list,
    make_tensor,
    make_type_list,
)
from meshflow.saved_model.graph.reading.imported_graphs import GraphTensor, ImportedGraph

# The version of TensorFlow 2.15's graphs.
_PRODUCER = 1645
# TensorFlow's op types of public ops and of JAX's primitives, unless they are the name in camel case.
_NAMES_BY_TYPE = {
    "AddV2": "add assign_add",
    "Sub": "subtract sub assign_sub",
    "Mul": "multiply",
    "RealDiv": "truediv divide div",
    "Neg": "negative",
    "MatMul": "matmul dot_general",
    "ConcatV2": "concat concatenate",
    "GatherV2": "gather",
    "Sum": "reduce_sum",
    "Mean": "reduce_mean",
    "Max": "reduce_max",
    "Min": "reduce_min",
    "Prod": "reduce_prod",
    "Any": "reduce_any reduce_or",
    "All": "reduce_all reduce_and",
    "LogSumExp": "reduce_logsumexp",
    "ArgMax": "argmax",
    "ArgMin": "argmin",
    "Conv2D": "conv2d conv1d conv_general_dilated",
    "Conv3D": "conv3d",
    "Conv2DBackpropInput": "conv2d_transpose",
    "DepthwiseConv2dNative": "depthwise_conv2d",
    "MaxPool": "max_pool2d max_pool",
    "AvgPool": "avg_pool2d avg_pool",
    "Pack": "stack",
    "Unpack": "unstack",
    "SelectV2": "where select_n",
    "Cast": "convert_element_type",
    "BroadcastTo": "broadcast_in_dim",
    "Maximum": "max",
    "Minimum": "min",
    "FloorDiv": "floordiv",
    "FloorMod": "floormod",
    "If": "cond",
    "While": "scan while for_loop while_loop",
    "PartitionedCall": "jit pjit custom_jvp_call custom_vjp_call",
    "PadV2": "pad",
    "TopKV2": "top_k",
    "ReverseV2": "reverse",
    "StridedSlice": "getitem",
    "Slice": "dynamic_slice",
    "Equal": "eq",
    "NotEqual": "ne",
    "Less": "lt",
    "LessEqual": "le",
    "Greater": "gt",
    "GreaterEqual": "ge",
    "LogicalNot": "not",
    "LogicalAnd": "and",
    "LogicalOr": "or",
    "Pow": "integer_pow",
    "Sigmoid": "logistic",
    "Identity": "copy copy_p",
    "StopGradient": "stop_gradient",
    "FusedBatchNormV3": "fused_batch_norm",
}
_TYPES = {name: op for op, names in _NAMES_BY_TYPE.items() for name in names.split()}
# TensorFlow names the nodes of operators differently from those of functions.
_NAMES = {
    "AddV2": "add",
    "Sub": "sub",
    "Mul": "mul",
    "RealDiv": "truediv",
    "ConcatV2": "concat",
} | {
    "Pow": "pow",
    "Neg": "Neg",
    "StridedSlice": "strided_slice",
    "Transpose": "transpose",
    "Pack": "stack",
    "Unpack": "unstack",
    "GatherV2": "GatherV2",
    "While": "while",
    "If": "cond",
}


class FunctionGraph(ImportedGraph):
    """Graph of a traced function.

    Attributes:
      name: Name of the function.
      inputs: Tensors of the arguments, then those of the captured variables and tensors.
      outputs: Tensors of the results.
      variables: Variables that the function uses.
      function_def: The same nodes as a `FunctionDef`.
    """

    building_function = True

    def __init__(self, function: SignedFunction, builder: _FunctionWriter) -> None:
        super().__init__()
        self.load_definition(builder.definition, "")
        self.name, self.variables = function.name, function.variables
        self.structured_outputs = function.structured_outputs
        self.inputs = [GraphTensor(self, f"{name}:0") for name in builder.inputs]
        self.outputs = [GraphTensor(self, f"{name}:0") for name in builder.outputs]
        self._builder = builder

    @property
    def trainable_variables(self) -> tuple[Variable, ...]:
        """Return the trainable variables that the function uses."""
        return tuple(v for v in self.variables if v.trainable)

    @property
    def function_def(self) -> Message:
        """Return the graph as a `FunctionDef`."""
        function = FunctionDef()
        function.signature.name = f"__inference_{self.name}"
        function.signature.is_stateful = bool(self.variables)
        for tensor in self.inputs:
            name = _to_argument_name(tensor.op.name)
            function.signature.input_arg.add(name=name, type=tensor.dtype.as_datatype_enum)
        for tensor in self.outputs:
            name = _to_argument_name(tensor.op.name)
            function.signature.output_arg.add(name=name, type=tensor.dtype.as_datatype_enum)
            function.ret[name] = f"{tensor.op.name}:output:0"
        inputs = {tensor.op.name for tensor in self.inputs}
        function.node_def.extend(n for n in self._builder.definition.node if n.name not in inputs)
        return function

    def __repr__(self) -> str:
        return f"FuncGraph(name={self.name}, id={id(self)})"


def make_function_graph(function: SignedFunction) -> FunctionGraph:
    """Return the graph of a concrete function."""
    builder = _FunctionWriter(function._any_traced)
    builder.add_inputs(function._specs)
    builder.add_calls()
    builder.add_results(function.outputs)
    return FunctionGraph(function, builder)


class _FunctionWriter:
    """Writer of the nodes of one function.

    Attributes:
      definition: The `GraphDef`.
      inputs: Names of the nodes of the arguments and captures.
      outputs: Names of the nodes of the results.
    """

    def __init__(self, traced: TracedFunction) -> None:
        self.definition = GraphDef()
        self.definition.versions.producer = _PRODUCER
        self.inputs: list[str] = []
        self.outputs: list[str] = []
        self._traced = traced
        self._counts: dict[str, int] = {}
        # Outputs of nodes and resources of variables, by the values of the jaxpr.
        self._references: dict[Any, str] = {}
        self._resources: dict[int, str] = {}
        self._variables: dict[Any, Variable] = {}
        self._producers = {v: eqn for eqn in traced.closed_jaxpr.jaxpr.eqns for v in eqn.outvars}

    def _make_name(self, name: str) -> str:
        key = name.lower()
        count = self._counts.get(key, 0)
        self._counts[key] = count + 1
        return self._make_name(f"{name}_{count}") if count else name

    def _add(
        self, name: str, op: str, inputs: Iterable[str], results: Sequence[Any], **attributes: Any
    ) -> list[str]:
        """Add a node, and return the references to its results, given their types."""
        name = self._make_name(name)
        types = [_get_type(r).as_datatype_enum for r in results]
        add_node(
            self.definition.node,
            name,
            op,
            inputs,
            _output_shapes=make_shape_list([r.shape for r in results]),
            _output_types=make_type_list(types),
            **attributes,
        )
        return [f"{name}:{i}" if i else name for i in range(len(results))]

    def add_inputs(self, specs: Sequence[TypeSpec]) -> None:
        """Add placeholders for the arguments and captures."""
        jaxpr, captures = self._traced.closed_jaxpr.jaxpr, self._traced.captures
        offset = len(jaxpr.invars) - len(captures)
        for i, value in enumerate(jaxpr.invars[:offset]):
            spec: Any = specs[i] if i < len(specs) and len(specs) == offset else value.aval
            name = getattr(spec, "name", None) or f"args_{i}"
            self._references[value] = self._add_placeholder(name, spec)
        for capture, value in zip(captures, jaxpr.invars[offset:], strict=True):
            if isinstance(capture, Variable):
                self._variables[value] = capture
            else:
                self._references[value] = self._add_placeholder("captured", value.aval)
        for value, constant in zip(jaxpr.constvars, self._traced.closed_jaxpr.consts, strict=True):
            self._references[value] = self._add_constant("Const", constant)

    def _get_resource(self, variable: Variable, name: str) -> str:
        """Return the placeholder of a variable."""
        resource = self._resources.get(id(variable))
        if resource is None:
            spec = TensorSpec((), RESOURCE_DTYPE)
            resource = self._resources[id(variable)] = self._add_placeholder(name, spec)
        return resource

    def _read_variable(self, value: Any, name: str) -> str:
        """Add the node that reads a variable before its first use, by the node of this name."""
        resource = self._get_resource(self._variables[value], f"{name}/ReadVariableOp/resource")
        dtype = _get_type(value.aval)
        [reference] = self._add(
            f"{name}/ReadVariableOp", "ReadVariableOp", [resource], [value.aval], dtype=dtype
        )
        return reference

    def _add_placeholder(self, name: str, spec: Any) -> str:
        attributes = {"dtype": _get_type(spec), "shape": make_shape(_list_sizes(spec))}
        [reference] = self._add(name, "Placeholder", [], [spec], **attributes)
        self.inputs.append(reference)
        return reference

    def _add_constant(self, name: str, value: Any) -> str:
        value = np.asarray(value)
        dtype = _get_type(value)
        return self._add(name, "Const", [], [value], value=make_tensor(value), dtype=dtype)[0]

    def add_calls(self) -> None:
        """Add the nodes of all recorded calls."""
        for call in self._traced.calls:
            results = [v for v in call.results if v is not None]
            # An op that returns its operand needs a node only for its name.
            if results and (call.label or not all(v in self._references for v in results)):
                self._add_call(call.name, call.scope, call.operands, results, call.label)

    def _add_call(
        self,
        op_name: str,
        scope: str,
        operands: Sequence[Any],
        results: Sequence[Any],
        label: str | None = None,
    ) -> None:
        op = _TYPES.get(op_name) or "".join(p[:1].upper() + p[1:] for p in op_name.split("_"))
        last = label or _NAMES.get(op, op)
        name = f"{scope}/{last}" if scope else last
        operands = [v for v in operands if v is not None]
        suffixes = ("x", "y") if len(operands) == 2 else ("Const",) * len(operands)
        inputs = [
            self._get_reference(v, name, suffix)
            for v, suffix in zip(operands, suffixes, strict=True)
        ]
        types = [v.aval if hasattr(v, "aval") else np.asarray(v) for v in operands] or [
            results[0].aval
        ]
        attributes = {"T": _get_type(types[0])}
        if op == "Cast":
            attributes = {"SrcT": attributes["T"], "DstT": _get_type(results[0].aval)}
        references = self._add(name, op, inputs, [v.aval for v in results], **attributes)
        for value, reference in zip(results, references, strict=True):
            if label or value not in self._references:
                self._references[value] = reference

    def _get_reference(self, value: Any, consumer: str, suffix: str = "Const") -> str:
        """Return the node of a value; equations without a recorded call get nodes, too.

        Args:
          value: Value of the jaxpr, or an array.
          consumer: Name of the node that uses it.
          suffix: Last part of the name of a constant.
        """
        if isinstance(value, jex_core.Literal):
            return self._add_constant(f"{consumer}/{suffix}", value.val)
        if not isinstance(value, jex_core.Var):
            return self._add_constant(f"{consumer}/{suffix}", value)
        if value in self._variables and value not in self._references:
            self._references[value] = self._read_variable(value, consumer)
        pending = [value]
        while pending:
            found = pending[-1]
            equation = self._producers.get(found)
            if found in self._references or equation is None:
                pending.pop()
                continue
            operands = [v for v in equation.invars if isinstance(v, jex_core.Var)]
            missing = [v for v in operands if v not in self._references and v in self._producers]
            if missing:
                pending += missing
                continue
            op_name = str(equation.params.get("name") or equation.primitive.name)
            self._add_call(op_name, "", equation.invars, equation.outvars)
        if value not in self._references:
            self._references[value] = self._add_placeholder("captured", value.aval)
        return self._references[value]

    def add_results(self, specs: Sequence[TensorSpec]) -> None:
        """Add the nodes of the results, and of the variables that are written."""
        traced, outvars = self._traced, self._traced.closed_jaxpr.jaxpr.outvars
        for i, value in enumerate(outvars[: traced.num_results]):
            spec = specs[i] if len(specs) == traced.num_results else value.aval
            source = self._get_reference(value, "Identity")
            dtype = _get_type(spec)
            self.outputs += self._add("Identity", "Identity", [source], [spec], T=dtype)
        for variable, value in zip(traced.writes, outvars[traced.num_results :], strict=True):
            source = self._get_reference(value, "AssignVariableOp")
            if isinstance(variable, Variable):
                resource = self._get_resource(variable, "AssignVariableOp/resource")
                dtype = _get_type(value.aval)
                self._add(
                    "AssignVariableOp", "AssignVariableOp", [resource, source], [], dtype=dtype
                )


def _to_argument_name(name: str) -> str:
    return name.lower().replace("/", "_")


def _list_sizes(spec: Any) -> list[Any] | None:
    shape = spec.shape
    return (
        shape.as_list()
        if hasattr(shape, "as_list") and shape.rank is not None
        else (None if hasattr(shape, "rank") else list(shape))
    )


def _get_type(spec: Any) -> DType:
    """Return the dtype of a spec or abstract value; keys are variants."""
    try:
        return as_dtype(spec.dtype)
    except TypeError:
        return VARIANT_DTYPE
