"""Parser of a compiled program's text (HLO): layers, operations and bytes of its instructions."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

from meshflow.core.runtime.annotations import GRADIENT
from meshflow.kernels import descriptors
from meshflow.placement.collectives import SHAPE_PATTERN, count_shape_bytes, parse_collective

_LINE = re.compile(
    r"^\s*(?:ROOT )?%?(?P<name>[\w.\-]+) = (?P<shape>\(.*?\)|\S+) (?P<opcode>[a-z][\w\-]*)\((?P<operands>[^)]*)\)"
)
_HEAD = re.compile(r"^(?:ENTRY )?%?([\w.\-]+) \(.*\{\s*$")
_SOURCE = re.compile(r'op_name="([^"]*)"')
_CALLS = re.compile(r"\bcalls=%?([\w.\-]+)")
_DESCRIPTOR = re.compile(r"descriptor = dense<\[?([\d, \-]+)\]?>")
# Instructions that take no time themselves.
_FREE_OPCODES = {
    *("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "while", "conditional"),
    *("call", "after-all", "partition-id", "replica-id"),
}
_ELEMENTWISE = {
    *("add", "subtract", "multiply", "divide", "maximum", "minimum", "power", "exponential", "log"),
    *("tanh", "logistic", "sqrt", "rsqrt", "negate", "abs", "sine", "cosine", "erf", "remainder"),
    *("exponential-minus-one", "log-plus-one", "cbrt", "atan2"),
}


def parse_instructions(text: str, mesh: dict[str, int]) -> dict[str, dict[str, Any]]:
    """Parse the instructions of a program that profiles show.

    Args:
      text: The compiled program.
      mesh: Sizes of the mesh dimensions by name.

    Returns:
      By instruction name: `layer`, `backward`, `op` (opcode), `what` (short description), `flops`
      and `bytes`; for collectives also `collective`, a dictionary of kind, bytes, sent, axes and
      group.
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
        match = _LINE.match(line)
        if match is None:
            continue
        shapes[match["name"]] = match["shape"]
        body.append(_parse_instruction(line, match, shapes, mesh))
    fused_bodies = {
        instruction["calls"]
        for body in bodies.values()
        for instruction in body
        if instruction["calls"]
    }
    work = {
        name: sum(instruction["flops"] for instruction in body) for name, body in bodies.items()
    }
    table: dict[str, dict[str, Any]] = {}
    for name, body in bodies.items():
        for instruction in body:
            if name in fused_bodies or instruction["op"] in _FREE_OPCODES:
                continue
            instruction["flops"] += work.get(instruction.pop("calls"), 0)
            table[instruction.pop("name")] = instruction
    return table


def _parse_instruction(
    line: str, match: re.Match[str], shapes: dict[str, str], mesh: dict[str, int]
) -> dict[str, Any]:
    opcode = match["opcode"]
    operands = [shapes.get(o, "") for o in re.findall(r"%([\w.\-]+)", match["operands"])]
    source = _SOURCE.search(line)
    layer, backward = parse_layer(source[1]) if source else ("", False)
    calls = _CALLS.search(line) if opcode == "fusion" else None
    instruction: dict[str, Any] = {
        "name": match["name"],
        "op": opcode,
        "what": _describe_instruction(opcode, line, source[1] if source else ""),
        "layer": layer,
        "backward": backward,
        "flops": _count_flops(opcode, line, match["shape"], operands),
        "bytes": sum(map(_count_bytes, [match["shape"], *operands])),
        "calls": calls[1] if calls else "",
    }
    collective = parse_collective(line, mesh)
    if collective is not None:
        instruction["collective"] = {
            "kind": collective.kind,
            "bytes": collective.bytes,
            "sent": collective.sent,
            "axes": list(collective.axes),
            "group": collective.group,
        }
    return instruction


def parse_layer(source: str) -> tuple[str, bool]:
    """Return the layer of an operation's full name, and whether it is in the backward pass.

    Example:
      >>> parse_layer("jit(train_step)/model/dense/jvp()/dot_general")
      ('model/dense', False)
      >>> parse_layer("jit(train_step)/gradient/model/dense/transpose(jvp())/dot_general")
      ('model/dense', True)
    """
    if ":" in source:
        # The name of a merged operation, such as a combined gradient all-reduce, lists several
        # sources.
        head, _, rest = source.partition("(" if "/(" in source else "\0")
        pieces = {
            parse_layer(f"{head.split(':')[0]}{piece}")
            for piece in (rest or source).rstrip(")").split(":")
        }
        layers = {layer for layer, _ in pieces if layer}
        return layers.pop() if len(layers) == 1 else "several layers", any(b for _, b in pieces)
    path = re.sub(r"\bp?jit\([^()]*\)", "", source)
    backward = f"/{GRADIENT}/" in path or "transpose(" in path
    _, marker, inner = path.partition(f"/{GRADIENT}/")
    if marker:
        path = inner.partition("transpose(")[0] if "transpose(" in inner else inner
        path = path if path.endswith("/") else path.rpartition("/")[0]
    else:
        path = path.rpartition("/")[0]
    words = re.sub(r"\b\w+\(|\)", "", path).split("/")
    scopes = [
        w for w in words if w and w not in ("while", "body", "cond", "closed_call", "shmap_body")
    ]
    return "/".join(scopes), backward


def _describe_instruction(opcode: str, line: str, source: str) -> str:
    """Return a short description of an instruction."""
    descriptor = _DESCRIPTOR.search(line)
    if 'custom_call_target="meshflow_onednn"' in line and descriptor is not None:
        return descriptors.get_computation_name([int(n) for n in descriptor[1].split(",")])
    operation = source.rpartition("/")[2] if opcode in ("fusion", "custom-call") else ""
    return re.sub(r"\W.*", "", operation).replace("_", " ") or opcode


def _parse_shapes(shape: str) -> list[tuple[int, ...]]:
    return [tuple(int(d) for d in dims.split(",") if d) for _, dims in SHAPE_PATTERN.findall(shape)]


def _count_bytes(shape: str) -> int:
    return sum(count_shape_bytes(dtype, dims) for dtype, dims in SHAPE_PATTERN.findall(shape))


def _count_flops(opcode: str, line: str, shape: str, operands: Sequence[str]) -> int:
    """Return an instruction's additions and multiplications, without those of called computations."""
    outputs = _parse_shapes(shape)
    if not outputs:
        return 0
    size = math.prod(outputs[0])
    if opcode in _ELEMENTWISE:
        return size
    if opcode in ("reduce", "reduce-window") and operands:
        return sum(map(math.prod, _parse_shapes(operands[0])))
    if opcode == "custom-call":
        descriptor = _DESCRIPTOR.search(line)
        is_onednn = 'custom_call_target="meshflow_onednn"' in line and descriptor is not None
        return (
            descriptors.count_operations([int(n) for n in descriptor[1].split(",")])
            if is_onednn and descriptor
            else 0
        )
    if opcode == "dot":
        contracted = re.search(r"lhs_contracting_dims=\{([\d,]*)\}", line)
        left = _parse_shapes(operands[0]) if operands else []
        if contracted and left:
            return 2 * size * math.prod(left[0][int(d)] for d in contracted[1].split(",") if d)
    if opcode == "convolution" and len(operands) > 1:
        labels = re.search(r"dim_labels=\w+_(\w+)->", line)
        kernel = _parse_shapes(operands[1])
        if labels and kernel:
            return 2 * size * math.prod(kernel[0]) // max(kernel[0][labels[1].index("o")], 1)
    return 0
