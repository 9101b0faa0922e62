"""Programs of XLA for `tf.function`'s `experimental_get_compiler_ir`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax

from meshflow.core.functions.concrete_function import ConcreteFunction
from meshflow.core.functions.signed_function import SignedFunction


def make_program_reader(concrete: SignedFunction, arguments: object) -> Callable[..., str | bytes]:
    """Return a function of a stage of the compilation that returns the program; see `Function.experimental_get_compiler_ir`.

    Raises:
      ValueError: If a size of the arguments is unknown.
    """
    if not isinstance(concrete, ConcreteFunction):
        raise ValueError(
            f"Only support static input shape but got inputs = {arguments}. Pass tensors or specs of known sizes."
        )
    return functools.partial(_read_program, concrete)


def _read_program(
    concrete: ConcreteFunction, stage: str = "hlo", device_name: str | None = None
) -> str | bytes:
    """Return a program of XLA at a stage of its compilation."""
    arguments = [
        jax.ShapeDtypeStruct(a.shape, a.dtype) for a in concrete.traced.closed_jaxpr.in_avals
    ]
    count = len(concrete.traced.captures)
    operands = arguments[: len(arguments) - count], arguments[len(arguments) - count :]
    lowered = concrete.lower(*operands)
    if stage == "stablehlo":
        return lowered.as_text()
    if stage in ("hlo", "hlo_serialized"):
        module: Any = lowered.compiler_ir("hlo")
        return module.as_hlo_text() if stage == "hlo" else module.as_serialized_hlo_module_proto()
    if stage not in (
        "optimized_hlo",
        "optimized_hlo_serialized",
        "optimized_hlo_proto_serialized",
    ):
        raise ValueError(f"Invalid stage {stage!r} of a compiled program.")
    executable: Any = lowered.compile().runtime_executable()
    (compiled,) = executable.hlo_modules()
    return (
        compiled.to_string()
        if stage == "optimized_hlo"
        else compiled.as_serialized_hlo_module_proto()
    )
