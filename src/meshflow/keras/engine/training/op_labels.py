"""Labels that assign the equations of a traced step to ops, lines of source and layers."""

from __future__ import annotations

import contextlib
import linecache
import os
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import FrameType

import jax

from meshflow.core.autograph.policy import is_user_file
from meshflow.core.dispatch.operation import Op
from meshflow.core.runtime.annotations import GRADIENT, get_current_scope
from meshflow.core.runtime.context import context

_LABEL = "meshflow_op_"
_PATTERN = re.compile(rf"\b{_LABEL}(\d+)\b")
_PACKAGE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(__file__))))
_CORE = os.path.join(_PACKAGE, "core") + os.sep


@dataclass(frozen=True)
class SourceLine:
    """A line of a source file.

    Attributes:
      file: Path of the file.
      line: Number of the line, from 1.
      function: Name of the function.
    """

    file: str
    line: int
    function: str

    @property
    def text(self) -> str:
        """The text of the line, without indentation."""
        return linecache.getline(self.file, self.line).strip()

    def __str__(self) -> str:
        path = os.path.relpath(self.file, os.path.dirname(_PACKAGE))
        path = self.file if path.startswith("..") else path
        code = f": {self.text}" if self.text else ""
        return f"{path}:{self.line}, in {self.function}{code}"


@dataclass(frozen=True)
class OpLabel:
    """A call of an op.

    Attributes:
      name: Name of the op.
      source: The line of the user's program that calls it; for the layers, losses and optimizers of
        Meshflow their own line.
      scope: The name scopes around the op, such as its layer.
    """

    name: str
    source: SourceLine | None
    scope: str


class OpLabels:
    """The ops that were called while a step was traced."""

    def __init__(self) -> None:
        self._labels: list[OpLabel] = []

    @contextlib.contextmanager
    def record(self) -> Iterator[None]:
        """Label the equations that are traced in this context."""
        frame = sys._getframe(2)
        saved, context.label_op = context.label_op, lambda op: self._label(op, frame)
        try:
            yield
        finally:
            context.label_op = saved

    def _label(self, op: Op, end: FrameType) -> contextlib.AbstractContextManager[None]:
        label = OpLabel(op.name, _find_source(sys._getframe(2), end), get_current_scope())
        self._labels.append(label)
        return jax.named_scope(f"{_LABEL}{len(self._labels) - 1}")

    def find(self, scopes: Sequence[str]) -> tuple[OpLabel | None, bool]:
        """Return the op of an equation, and whether the equation belongs to its gradient.

        Args:
          scopes: The name stacks of the equation and of the equations that contain it.
        """
        for scope in reversed(scopes):
            before, marker, after = scope.rpartition(f"{GRADIENT}/")
            # The gradient consists of ops, too; the first label is that of the differentiated op.
            labels = _PATTERN.findall(after) or _PATTERN.findall(before)
            if labels:
                label = labels[0] if marker else labels[-1]
                return self._labels[int(label)], bool(marker)
        return None, False


def _find_source(frame: FrameType | None, end: FrameType) -> SourceLine | None:
    """Return the innermost line of a user's file up to a frame, or of a layer of Meshflow."""
    own: SourceLine | None = None
    while frame is not None and frame is not end:
        code = frame.f_code
        line = SourceLine(code.co_filename, frame.f_lineno, code.co_name)
        if is_user_file(line.file):
            return line
        if own is None and line.file.startswith(_PACKAGE) and not line.file.startswith(_CORE):
            own = line
        frame = frame.f_back
    return own
