"""`explain`: which collectives a compiled step performs."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import jax

from meshflow.core.functions.concrete_function import ConcreteFunction
from meshflow.core.functions.function import Function
from meshflow.core.runtime.errors import InvalidValueError
from meshflow.core.values import nest
from meshflow.core.values.convert import convert_to_tensor
from meshflow.dtensor.host_traffic import held_by_host, moved_to_files, moved_to_host
from meshflow.placement.collectives import Collective, collectives_of

__all__ = ["Explanation", "explain"]


@dataclass(frozen=True)
class Explanation:
    """The collectives of a compiled function; `str` gives a table.

    Attributes:
      collectives: what it does, in the program's order.
      mesh: sizes of the mesh dimensions by name; empty on one device.
      memory: bytes each device needs: for arguments, results (without those that take an argument's
        place) and temporaries; where something is offloaded, also "host", which arguments have in the host's
        memory, and "to_host" and "to_files", which the program hands there until it needs them again.
      text: the compiled program.
    """

    collectives: tuple[Collective, ...]
    mesh: dict[str, int]
    memory: dict[str, int]
    text: str

    def select(self, kind: str | None = None, axis: str | None = None) -> list[Collective]:
        """Some of the collectives.

        Args:
          kind: such as "all-reduce"; None for all.
          axis: a mesh dimension that they cross; None for any.
        """
        return [
            c
            for c in self.collectives
            if kind in (None, c.kind) and (axis is None or axis in c.axes)
        ]

    def count(self, kind: str | None = None, axis: str | None = None) -> int:
        """How many run in one call; arguments as in `select`."""
        return sum(c.times for c in self.select(kind, axis))

    def bytes(self, kind: str | None = None, axis: str | None = None) -> int:
        """Size of what they work on in one call; arguments as in `select`."""
        return sum(c.times * c.bytes for c in self.select(kind, axis))

    def sent(self, kind: str | None = None, axis: str | None = None) -> int:
        """Bytes that each device sends in one call; arguments as in `select`."""
        return sum(c.times * c.sent for c in self.select(kind, axis))

    def table(self) -> list[tuple[str, ...]]:
        """The collectives as text, equal ones in one line; the first line has the headings."""
        same = Counter[Collective]()
        for c in self.collectives:
            same[c] += c.times
        rows: list[tuple[str, ...]] = [
            ("collective", "times", "shape", "bytes", "sent", "mesh dimension", "for")
        ]
        for c, times in same.items():
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


def explain(fn: Any, *args: Any, **kwargs: Any) -> Explanation:
    """Compiles a function and lists its collectives, their bytes and the mesh dimensions they cross.

    Nothing is run. Arguments of their own layouts are compiled for those.

    Args:
      fn: a `tf.function`, any function of tensors, or a compiled Keras model, whose training step is
        explained.
      *args: its arguments; for a model one batch (x, y, sample_weight).
      **kwargs: further arguments.

    Returns:
      An `Explanation`; print it, or ask its `count`, `bytes` and `sent`.

    Raises:
      ValueError: when a model is not compiled.

    Example:
      >>> import meshflow as tf
      >>> dtensor = tf.experimental.dtensor
      >>> mesh = dtensor.create_mesh([("x", 1)], devices=["CPU:0"])
      >>> x = dtensor.copy_to_mesh(tf.ones([4, 2]), dtensor.Layout(["x", "unsharded"], mesh))
      >>> dtensor.explain(tf.reduce_sum, x)
      0 collectives, 0 bytes sent by each device (x=1)
    """
    concrete, arrays = _traced(fn, args, kwargs)
    captured = [c._value for c in concrete.traced.captures]
    compiled: Any = concrete.lowered(arrays, captured).compile()
    mesh = _mesh_of([*arrays, *captured])
    memory = compiled.memory_analysis()
    text = compiled.as_text()
    sizes = dict(mesh.shape) if mesh is not None else {}
    found = collectives_of(text, sizes) if mesh is not None and mesh.size > 1 else []
    needed = {
        "arguments": memory.argument_size_in_bytes,
        "results": memory.output_size_in_bytes - memory.alias_size_in_bytes,
        "temporaries": memory.temp_size_in_bytes,
    }
    offloaded = {
        "host": held_by_host(captured),
        "to_host": moved_to_host(concrete.traced.closed),
        "to_files": moved_to_files(concrete.traced.closed),
    }
    needed |= {name: count for name, count in offloaded.items() if count}
    return Explanation(tuple(found), sizes, needed, text)


def _traced(fn: Any, args: Any, kwargs: Any) -> tuple[ConcreteFunction, list[Any]]:
    """A concrete function and its array arguments."""
    if hasattr(fn, "train_step") and hasattr(fn, "_step"):
        return _training_step(fn, args)
    if isinstance(fn, ConcreteFunction):
        return fn, [convert_to_tensor(a)._value for a in nest.flatten((args, kwargs))]
    function: Any = fn if isinstance(fn, Function) else Function(fn)
    concrete = function.concrete_for(args, kwargs)
    arrays, _ = function._arguments.key(*function._arguments.canonical(args, kwargs))
    return concrete, arrays


def _training_step(model: Any, batch: Any) -> tuple[ConcreteFunction, list[Any]]:
    if not model._is_compiled:
        raise InvalidValueError(
            f"explain: the model {model.name} is not compiled; call model.compile(...) first."
        )
    step = model._step("train")
    if not hasattr(step, "_trace"):
        raise InvalidValueError(
            "explain: the model runs eagerly (run_eagerly=True): nothing is compiled."
        )

    def array(value: Any) -> Any:
        alone = isinstance(value, jax.ShapeDtypeStruct)
        return value if alone else convert_to_tensor(value)._value

    arrays = nest.map_structure(array, tuple(batch))
    placed = arrays if step.place is None else step.place(arrays)
    return step._trace(placed), jax.tree.leaves(placed)


def _mesh_of(values: list[Any]) -> Any:
    """The mesh that values lie on, the largest one first."""
    shardings = (getattr(v, "sharding", None) for v in values)
    meshes = [s.mesh for s in shardings if isinstance(s, jax.sharding.NamedSharding)]
    return max(meshes, key=lambda m: m.size, default=None)
