"""Fuzz the text of StableHLO modules with calls of native code: calls that the table accepts must
be consistent."""

import functools
import itertools
import re

import jax
import jax.lax.linalg as ll
import jax.numpy as jnp

from meshflow.environment.jax_internals import mlir, mlir_ir, read_portable_artifact
from meshflow.saved_model.programs import custom_calls, stablehlo

FUNCTIONS = (
    (ll.lu, (3, 2)),
    (ll.eigh, (2, 2)),
    (lambda a: ll.svd(a, full_matrices=False), (3, 2)),
    (lambda a: ll.qr(a, full_matrices=False), (3, 2)),
    (ll.cholesky, (2, 2)),
    (lambda a: jnp.where(a.sum() > 0, a, -a) @ a.T, (2, 2)),
)


@functools.cache
def seeds():
    texts = []
    for function, shape in FUNCTIONS:
        spec = jax.ShapeDtypeStruct(shape, "float32")
        exported = stablehlo.export_for_platforms(function, [spec])
        with mlir.make_ir_context():
            texts.append(str(read_portable_artifact(exported.mlir_module_serialized)).encode())
    return texts


COUNT = itertools.count()


@functools.lru_cache(maxsize=1)
def context(_generation):
    """Return a context for several modules, because creating one takes longer than checking a
    module."""
    return mlir.make_ir_context()


# Diagnostics with names that are not UTF-8 crash MLIR's bindings. Models contain bytecode, which a
# child process reads first.
NOT_UTF_8 = re.compile(rb"[\x80-\xff]|\\[89a-fA-F][0-9a-fA-F]")


def parse(data):
    if NOT_UTF_8.search(data):
        raise ValueError("names may not be UTF-8")
    with context(next(COUNT) // 500):
        try:
            module = mlir_ir.Module.parse(data)
        except Exception as error:  # MLIR's parser, which reports an error without a crash
            raise ValueError("no module") from error
        custom_calls.has_native_calls(module)
        custom_calls.check_module(module)
        custom_calls.check_module(module, is_static=True)
        custom_calls.secure_calls(module)
        if not module.operation.verify():
            raise AssertionError("the secured module is invalid")


def inside(seed, change, rng):
    """A number, a type or a name is replaced, so that most results can be parsed."""
    text = seed.decode(errors="replace")
    kind = rng.choice((r"\d+", r"tensor<[^>]*>", r"@[a-z_]+", r"[fisu]i?\d+", r"dense<[^>]*>"))
    found = list(re.finditer(kind, text))
    if not found:
        return change(seed)
    match = rng.choice(found)
    other = (
        rng.choice(found)[0]
        if rng.random() < 0.6
        else change(match[0].encode()).decode(errors="replace")
    )
    return (text[: match.start()] + other + text[match.end() :]).encode()
