"""Compare the installed JAX with the newest version that Meshflow was tested with.

Prints the names of JAX that the sources use and that are missing, those of which the parameters changed, and the
primitives of which the parameters changed. It does not import Meshflow, which may fail with the new version:

    python -m venv /tmp/new && /tmp/new/bin/pip install --pre jax && /tmp/new/bin/python scripts/check_jax.py

`--record` writes the installed version into scripts/jax_record.json, after the tests passed with it.
"""

from __future__ import annotations

import argparse
import ast
import enum
import functools
import importlib
import inspect
import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec

SOURCE = Path(__file__).parents[1] / "src" / "meshflow"
RECORD = Path(__file__).with_name("jax_record.json")
PACKAGES = ("jax", "jaxlib")
_MISSING = object()


def collect_names(tree: ast.AST) -> Iterator[str]:
    """Yield the full names of JAX that a module uses, such as `jax.numpy.where`.

    Args:
      tree: the module's syntax tree.
    """
    aliases: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] in PACKAGES:
                    yield alias.name
                    aliases[alias.asname or alias.name.split(".")[0]] = (
                        alias.name if alias.asname else alias.name.split(".")[0]
                    )
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in PACKAGES:
            for alias in node.names:
                yield f"{node.module}.{alias.name}"
                aliases[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    for node in ast.walk(tree):
        parts = []
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "getattr":
            if isinstance(node.args[1], ast.Constant):
                parts.append(node.args[1].value)
            node = node.args[0]
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if parts and isinstance(node, ast.Name) and node.id in aliases:
            yield ".".join([aliases[node.id], *reversed(parts)])


def find_object(name: str) -> Any:
    """Return the object with a full name, or `_MISSING`.

    Args:
      name: the name, such as `jax.numpy.where`.
    """
    parts = name.split(".")
    found = importlib.import_module(parts[0])
    for i, part in enumerate(parts[1:], 2):
        found = getattr(found, part, _MISSING)
        if found is _MISSING:
            try:
                found = importlib.import_module(".".join(parts[:i]))
            except ImportError:
                return _MISSING
    return found


def describe_parameters(found: Any) -> str:
    """Return the names of a callable's parameters, separated by spaces; empty where Python cannot find them.

    Args:
      found: any object.
    """
    if isinstance(found, enum.EnumType):
        return ""
    try:
        names = list(inspect.signature(found).parameters)
    except (TypeError, ValueError):
        return ""
    # Compiled classes show these or nothing, which depends on the version of Python.
    return "" if set(names) <= {"self", "args", "kwargs"} else " ".join(names)


def _describe_names(names: set[str]) -> dict[str, str]:
    described = {}
    for name in sorted(names):
        found = find_object(name)
        if found is not _MISSING:
            described[name] = describe_parameters(found)
    return described


@functools.partial(jax.custom_jvp)
def _with_jvp(x: Any) -> Any:
    return 2 * x


_with_jvp.defjvps(lambda tangent, result, x: 2 * tangent)


@jax.custom_vjp
def _with_vjp(x: Any) -> Any:
    return 2 * x


_with_vjp.defvjp(lambda x: (2 * x, None), lambda residual, gradient: (2 * gradient,))


def _compute_samples(x: Any) -> Any:
    """Use the primitives of which Meshflow reads parameters."""
    mesh = jax.make_mesh((1,), ("x",))

    def reduce(x: Any) -> Any:
        total = lax.psum(x, "x") + lax.ppermute(x, "x", [(0, 0)]) + lax.pmax(x, "x")
        return total + lax.all_gather(x, "x", tiled=True) + lax.all_to_all(x, "x", 0, 1, tiled=True)

    spec = PartitionSpec()
    y = lax.scan(lambda state, row: (state + row, state), x[0], x, reverse=True)[1]
    y += lax.while_loop(lambda state: state.sum() < 3, lambda state: state + 1, x)
    y += lax.cond(x.sum() > 1, lambda x: x, lambda x: -x, x)
    y += jax.checkpoint(lambda x: jnp.sin(x) * x)(x) + _with_jvp(x) + _with_vjp(x)
    y += jax.shard_map(reduce, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)(x)
    y += jax.jit(lambda x: x @ x)(x) + jax.random.normal(jax.random.key(0), x.shape)
    y = jnp.sort(y).at[1].set(0).at[2].add(1) + lax.rev(y, (0,)) + lax.top_k(y, 4)[0]
    y = jnp.take(y, jnp.array([1, 2, 3, 0]), axis=0) + jnp.cumsum(y, 0) + lax.iota(y.dtype, 4)
    y += jnp.log2(jnp.abs(y)) + jnp.tanh(y) + jnp.searchsorted(x[0], x[1]) + jnp.argmax(y)
    y += jnp.stack(jnp.unstack(y)) + jnp.concatenate(jnp.split(y, 2)) + jnp.tile(y[:2], (2, 1))
    y += lax.dynamic_update_slice(y, lax.dynamic_slice(y, (0, 1), (2, 2)), (1, 1)) ** 3
    y += lax.optimization_barrier(y) + jnp.clip(y, 0, 1) + lax.reduce_precision(y, 8, 7)
    y += jax.pure_callback(lambda y: y, jax.ShapeDtypeStruct(y.shape, y.dtype), y)
    y += lax.with_sharding_constraint(y, jax.sharding.NamedSharding(mesh, spec))
    y += jax.experimental.io_callback(lambda y: y, jax.ShapeDtypeStruct(y.shape, y.dtype), y)
    y = y.reshape(1, 4, 4, 1)
    y = lax.conv_general_dilated(
        y, jnp.ones((2, 2, 1, 1)), (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    y = lax.reduce_window(y, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 1, 1, 1), "SAME")
    return jnp.pad(y, ((0, 0), (0, 0), (1, 0), (0, 0)))[:, :, 1:].astype(jnp.bfloat16).sum()


def describe_primitives() -> dict[str, str]:
    """Return the names of the parameters of primitives, by the primitives' names."""
    described: dict[str, set[str]] = {}

    def visit(jaxpr: Any) -> None:
        for equation in jaxpr.eqns:
            described.setdefault(equation.primitive.name, set()).update(equation.params)
            for value in equation.params.values():
                for item in value if isinstance(value, (tuple, list)) else [value]:
                    inner = getattr(item, "jaxpr", item)
                    if hasattr(inner, "eqns"):
                        visit(inner)

    visit(jax.make_jaxpr(_compute_samples)(jnp.ones((4, 4))).jaxpr)

    def differentiated(x: Any) -> Any:
        states = lax.scan(lambda state, row: (jnp.tanh(state * row), state), x[0], x)[0]
        windows = lax.reduce_window(
            x, -jnp.inf, lax.max, window_dimensions=(2, 2), window_strides=(1, 1), padding="SAME"
        )
        return jnp.sum(states) + jnp.sum(windows) + jnp.sum(_with_vjp(_with_jvp(x))[jnp.array([0])])

    visit(jax.make_jaxpr(jax.grad(differentiated))(jnp.ones((4, 4))).jaxpr)
    return {name: " ".join(sorted(params)) for name, params in sorted(described.items())}


def describe(recorded: Iterable[str] = ()) -> dict[str, Any]:
    """Describe the installed JAX: its version, the names that Meshflow uses and the primitives, with parameters.

    Args:
      recorded: more names to look for.
    """
    used = set(recorded)
    for path in SOURCE.rglob("*.py"):
        text = path.read_text()
        if "jax" in text:
            used.update(collect_names(ast.parse(text)))
    return {
        "version": jax.__version__,
        "names": _describe_names(used),
        "primitives": describe_primitives(),
    }


def compare(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Return a line for each difference between two descriptions.

    Args:
      old: of the version that Meshflow was tested with.
      new: of the other.
    """
    lines = [f"missing name: {name}" for name in sorted(set(old["names"]) - set(new["names"]))]
    for section, title in (("names", "parameters"), ("primitives", "parameters of primitive")):
        for name in sorted(set(old[section]) & set(new[section])):
            before, after = old[section][name], new[section][name]
            if before != after:
                lines.append(f"{title} {name}: {_describe_change(before, after)}")
    unseen = sorted(set(old["primitives"]) - set(new["primitives"]))
    lines += [f"primitive no longer used: {name}" for name in unseen]
    lines += [
        f"new primitive: {name}" for name in sorted(set(new["primitives"]) - set(old["primitives"]))
    ]
    return lines


def _describe_change(before: str, after: str) -> str:
    old, new = before.split(), after.split()
    removed = [f"-{name}" for name in old if name not in new]
    added = [f"+{name}" for name in new if name not in old]
    return " ".join([*removed, *added]) or f"order is now {after}"


def main() -> int:
    """Print the differences; the result is 1 when there are any."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--record", action="store_true", help="write the installed version's record"
    )
    if parser.parse_args().record:
        RECORD.write_text(json.dumps(describe(), indent=1) + "\n")
        return 0
    record = json.loads(RECORD.read_text())
    lines = compare(record, describe(record["names"]))
    print(f"JAX {jax.__version__}, compared with {record['version']}:")
    print("\n".join(lines) if lines else "nothing that Meshflow uses has changed")
    return bool(lines)


if __name__ == "__main__":
    sys.exit(main())
