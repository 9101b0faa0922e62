"""`explain`: the collectives of a compiled function or training step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax

from meshflow.core.functions.concrete_function import ConcreteFunction
from meshflow.core.functions.function import Function
from meshflow.core.runtime.errors import InvalidValueError
from meshflow.core.values import nest
from meshflow.core.values.convert import convert_to_tensor
from meshflow.dtensor.host_traffic import (
    count_bytes_to_files,
    count_bytes_to_host,
    count_host_bytes,
)
from meshflow.environment.types import Array, PyTree
from meshflow.placement.collectives import Collective, parse_collectives

__all__ = ["Explanation", "explain"]


@dataclass(frozen=True)
class Explanation:
    """Collectives of a compiled function; `str` formats them as a table.

    Attributes:
      collectives: Collectives in the order of the program.
      mesh: Sizes of the mesh dimensions by name; empty on one device.
      memory: Bytes that each device needs for "arguments", "results" (without those that reuse the
        buffer of an argument) and "temporaries". If values are offloaded, it also has "host" for
        arguments in host memory, and "to_host" and "to_files" for values that the program stores
        there and reads again.
      text: Text of the compiled program (HLO).
    """

    collectives: tuple[Collective, ...]
    mesh: dict[str, int]
    memory: dict[str, int]
    text: str

    def select(self, kind: str | None = None, axis: str | None = None) -> list[Collective]:
        """Select collectives by kind and mesh dimension.

        Args:
          kind: Name of the operation, such as "all-reduce"; None selects all.
          axis: Mesh dimension that the collectives cross; None selects all.
        """
        return [
            c
            for c in self.collectives
            if kind in (None, c.kind) and (axis is None or axis in c.axes)
        ]

    def count(self, kind: str | None = None, axis: str | None = None) -> int:
        """Count the executions of collectives in one call; see `select` for the arguments."""
        return sum(c.times for c in self.select(kind, axis))

    def bytes(self, kind: str | None = None, axis: str | None = None) -> int:
        """Sum the sizes of the full values of collectives in one call; see `select`."""
        return sum(c.times * c.bytes for c in self.select(kind, axis))

    def sent(self, kind: str | None = None, axis: str | None = None) -> int:
        """Sum the bytes that each device sends in one call; see `select` for the arguments."""
        return sum(c.times * c.sent for c in self.select(kind, axis))

    def table(self) -> list[tuple[str, ...]]:
        """Return one row of text for equal collectives; the first row contains the headings."""
        counts = Counter[Collective]()
        for c in self.collectives:
            counts[c] += c.times
        rows: list[tuple[str, ...]] = [
            ("collective", "times", "shape", "bytes", "sent", "mesh dimension", "for")
        ]
        for c, times in counts.items():
            shape = c.shape if len(c.shape) < 40 else c.shape[:37] + "..."
            source = c.source if len(c.source) < 60 else "..." + c.source[-57:]
            axes = ", ".join(c.axes)
            rows.append((c.kind, str(times), shape, f"{c.bytes:,}", f"{c.sent:,}", axes, source))
        return rows

    def __str__(self) -> str:
        rows = self.table()
        widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
        lines = [
            "  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip()
            for row in rows
        ]
        mesh = ", ".join(f"{n}={s}" for n, s in self.mesh.items()) or "one device"
        total = f"{self.count()} collectives, {self.sent():,} bytes sent by each device ({mesh})"
        return "\n".join([*(lines if self.collectives else []), total])

    __repr__ = __str__


def explain(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Explanation:
    """Compile a function and list its collectives, with their bytes and mesh dimensions.

    The function is not run. It is compiled for the layouts of its arguments.

    Args:
      fn: `tf.function`, other function of tensors, or compiled Keras model; for a model, the
        training step is explained.
      *args: Arguments of the function, or one batch (x, y, sample_weight) for a model.
      **kwargs: Keyword arguments of the function.

    Returns:
      An `Explanation`, which can be printed and has the methods `count`, `bytes` and `sent`.

    Raises:
      ValueError: If a model is not compiled.

    Example:
      >>> dtensor = tf.experimental.dtensor
      >>> mesh = dtensor.create_mesh([("x", 1)], devices=["CPU:0"])
      >>> x = dtensor.copy_to_mesh(tf.ones([4, 2]), dtensor.Layout(["x", "unsharded"], mesh))
      >>> dtensor.explain(tf.reduce_sum, x)
      0 collectives, 0 bytes sent by each device (x=1)
    """
    concrete, arrays = _trace(fn, args, kwargs)
    captured = concrete.traced.get_captured_arrays()
    compiled: Any = concrete.lower(arrays, captured).compile()
    mesh = _find_largest_mesh([*arrays, *captured])
    memory = compiled.memory_analysis()
    text = compiled.as_text()
    sizes = dict(mesh.shape) if mesh is not None else {}
    collectives = parse_collectives(text, sizes) if mesh is not None and mesh.size > 1 else []
    sizes_in_bytes = {
        "arguments": memory.argument_size_in_bytes,
        "results": memory.output_size_in_bytes - memory.alias_size_in_bytes,
        "temporaries": memory.temp_size_in_bytes,
    }
    offloaded = {
        "host": count_host_bytes(captured),
        "to_host": count_bytes_to_host(concrete.traced.closed_jaxpr),
        "to_files": count_bytes_to_files(concrete.traced.closed_jaxpr),
    }
    sizes_in_bytes |= {name: count for name, count in offloaded.items() if count}
    return Explanation(tuple(collectives), sizes, sizes_in_bytes, text)


def _trace(
    fn: Callable[..., Any], args: tuple[PyTree, ...], kwargs: dict[str, PyTree]
) -> tuple[ConcreteFunction, list[Array]]:
    """Trace a function; return it with its array arguments."""
    if hasattr(fn, "train_step") and hasattr(fn, "_get_step"):
        return _trace_training_step(fn, args)
    if isinstance(fn, ConcreteFunction):
        return fn, [convert_to_tensor(a).array for a in nest.flatten((args, kwargs))]
    function = fn if isinstance(fn, Function) else Function(fn)
    concrete = function.get_concrete_for(args, kwargs)
    arrays, _ = function._arguments.make_key(*function._arguments.canonicalize(args, kwargs))
    return concrete, arrays


def _trace_training_step(model: Any, batch: PyTree) -> tuple[ConcreteFunction, list[Array]]:
    if not model._is_compiled:
        raise InvalidValueError(
            f"explain: the model {model.name} is not compiled; call model.compile(...) first."
        )
    step = model._get_step("train")
    if not hasattr(step, "_trace"):
        raise InvalidValueError(
            "explain: the model runs eagerly (run_eagerly=True), so it has no compiled step."
        )

    def to_array(value: object) -> object:
        is_abstract = isinstance(value, jax.ShapeDtypeStruct)
        return value if is_abstract else convert_to_tensor(value).array

    arrays = nest.map_structure(to_array, tuple(batch))
    placed = arrays if step.place_batch is None else step.place_batch(arrays)
    return step._trace(placed), jax.tree.leaves(placed)


def _find_largest_mesh(values: list[Array]) -> jax.sharding.Mesh | jax.sharding.AbstractMesh | None:
    """Find the largest mesh that values are on."""
    shardings = (getattr(v, "sharding", None) for v in values)
    meshes = [s.mesh for s in shardings if isinstance(s, jax.sharding.NamedSharding)]
    return max(meshes, key=lambda m: m.size, default=None)
