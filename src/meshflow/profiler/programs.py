"""What the instructions of a compiled program are for: layers, operations, bytes; read out of its text (HLO)."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

from meshflow.core.runtime.annotations import GRADIENT
from meshflow.kernels import descriptors
from meshflow.placement.collectives import SHAPE, collective_of, size_of

__all__ = ["instructions", "layer_of"]

_LINE = re.compile(
    r"^\s*(?:ROOT )?%?(?P<name>[\w.\-]+) = (?P<shape>\(.*?\)|\S+) (?P<opcode>[a-z][\w\-]*)\((?P<operands>[^)]*)\)"
)
_HEAD = re.compile(r"^(?:ENTRY )?%?([\w.\-]+) \(.*\{\s*$")
_SOURCE = re.compile(r'op_name="([^"]*)"')
_CALLS = re.compile(r"\bcalls=%?([\w.\-]+)")
_DESCRIPTOR = re.compile(r"descriptor = dense<\[?([\d, \-]+)\]?>")
# What takes no time of its own.
_SILENT = {
    *("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "while", "conditional"),
    *("call", "after-all", "partition-id", "replica-id"),
}
_ELEMENTWISE = {
    *("add", "subtract", "multiply", "divide", "maximum", "minimum", "power", "exponential", "log"),
    *("tanh", "logistic", "sqrt", "rsqrt", "negate", "abs", "sine", "cosine", "erf", "remainder"),
    *("exponential-minus-one", "log-plus-one", "cbrt", "atan2"),
}


def instructions(text: str, mesh: dict[str, int]) -> dict[str, dict[str, Any]]:
    """The instructions of a program that profiles show, by name.

    Args:
      text: the compiled program.
      mesh: sizes of the mesh dimensions by name.

    Returns:
      For each `layer`, `backward`, `op` (its code), `what` it does, `flops` and `bytes`; for collectives `collective`: a dictionary of
      kind, bytes, sent, axes and group.
    """
    bodies: dict[str, list[dict[str, Any]]] = {}
    body: list[dict[str, Any]] = []
    shapes: dict[str, str] = {}
    for line in text.splitlines():
        head = _HEAD.match(line)
        if head:
            body = bodies[head[1]] = []
            shapes = {}
            continue
        found = _LINE.match(line)
        if found is None:
            continue
        shapes[found["name"]] = found["shape"]
        body.append(_instruction(line, found, shapes, mesh))
    fused = {one["calls"] for body in bodies.values() for one in body if one["calls"]}
    work = {name: sum(one["flops"] for one in body) for name, body in bodies.items()}
    table: dict[str, dict[str, Any]] = {}
    for name, body in bodies.items():
        for one in body:
            if name in fused or one["op"] in _SILENT:
                continue
            one["flops"] += work.get(one.pop("calls"), 0)
            table[one.pop("name")] = one
    return table


def _instruction(
    line: str, found: re.Match[str], shapes: dict[str, str], mesh: dict[str, int]
) -> dict[str, Any]:
    opcode = found["opcode"]
    operands = [shapes.get(o, "") for o in re.findall(r"%([\w.\-]+)", found["operands"])]
    source = _SOURCE.search(line)
    layer, backward = layer_of(source[1]) if source else ("", False)
    calls = _CALLS.search(line) if opcode == "fusion" else None
    one: dict[str, Any] = {
        "name": found["name"],
        "op": opcode,
        "what": _what(opcode, line, source[1] if source else ""),
        "layer": layer,
        "backward": backward,
        "flops": _operations(opcode, line, found["shape"], operands),
        "bytes": sum(map(_bytes, [found["shape"], *operands])),
        "calls": calls[1] if calls else "",
    }
    collective = collective_of(line, mesh)
    if collective is not None:
        one["collective"] = {
            "kind": collective.kind,
            "bytes": collective.bytes,
            "sent": collective.sent,
            "axes": list(collective.axes),
            "group": collective.group,
        }
    return one


def layer_of(source: str) -> tuple[str, bool]:
    """The layer that an operation belongs to, and whether it is of the backward pass.

    Args:
      source: the operation's name in a compiled program, of scopes and JAX's transformations.

    Example:
      >>> layer_of("jit(train_step)/model/dense/jvp()/dot_general")
      ('model/dense', False)
      >>> layer_of("jit(train_step)/gradient/model/dense/transpose(jvp())/dot_general")
      ('model/dense', True)
    """
    if ":" in source:
        # Several operations in one, as when gradients are summed together.
        head, _, rest = source.partition("(" if "/(" in source else "\0")
        pieces = {
            layer_of(f"{head.split(':')[0]}{one}")
            for one in (rest or source).rstrip(")").split(":")
        }
        layers = {layer for layer, _ in pieces if layer}
        return layers.pop() if len(layers) == 1 else "several layers", any(b for _, b in pieces)
    path = re.sub(r"\bp?jit\([^()]*\)", "", source)
    backward = f"/{GRADIENT}/" in path or "transpose(" in path
    _, marked, inner = path.partition(f"/{GRADIENT}/")
    if marked:
        path = inner.partition("transpose(")[0] if "transpose(" in inner else inner
        path = path if path.endswith("/") else path.rpartition("/")[0]
    else:
        path = path.rpartition("/")[0]
    words = re.sub(r"\b\w+\(|\)", "", path).split("/")
    kept = [
        w for w in words if w and w not in ("while", "body", "cond", "closed_call", "shmap_body")
    ]
    return "/".join(kept), backward


def _what(opcode: str, line: str, source: str) -> str:
    """What an instruction does, in a word or two."""
    descriptor = _DESCRIPTOR.search(line)
    if 'custom_call_target="meshflow_onednn"' in line and descriptor is not None:
        return descriptors.name([int(n) for n in descriptor[1].split(",")])
    made = source.rpartition("/")[2] if opcode in ("fusion", "custom-call") else ""
    return re.sub(r"\W.*", "", made).replace("_", " ") or opcode


def _elements(shape: str) -> list[tuple[int, ...]]:
    return [tuple(int(d) for d in dims.split(",") if d) for _, dims in SHAPE.findall(shape)]


def _bytes(shape: str) -> int:
    return sum(size_of(dtype, dims) for dtype, dims in SHAPE.findall(shape))


def _operations(opcode: str, line: str, shape: str, operands: Sequence[str]) -> int:
    """Additions and multiplications of an instruction, without those of a computation that it calls."""
    outputs = _elements(shape)
    if not outputs:
        return 0
    size = math.prod(outputs[0])
    if opcode in _ELEMENTWISE:
        return size
    if opcode in ("reduce", "reduce-window") and operands:
        return sum(map(math.prod, _elements(operands[0])))
    if opcode == "custom-call":
        descriptor = _DESCRIPTOR.search(line)
        known = 'custom_call_target="meshflow_onednn"' in line and descriptor is not None
        return (
            descriptors.operations([int(n) for n in descriptor[1].split(",")])
            if known and descriptor
            else 0
        )
    if opcode == "dot":
        contracted = re.search(r"lhs_contracting_dims=\{([\d,]*)\}", line)
        left = _elements(operands[0]) if operands else []
        if contracted and left:
            return 2 * size * math.prod(left[0][int(d)] for d in contracted[1].split(",") if d)
    if opcode == "convolution" and len(operands) > 1:
        labels = re.search(r"dim_labels=\w+_(\w+)->", line)
        kernel = _elements(operands[1])
        if labels and kernel:
            return 2 * size * math.prod(kernel[0]) // max(kernel[0][labels[1].index("o")], 1)
    return 0
