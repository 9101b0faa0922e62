"""`tf.compat.v1.app`: runs the main function of a program after its flags are parsed."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

from absl import app as _app

from meshflow.legacy.compat import flags

__all__ = ["flags", "run"]


def run(main: Callable[[list[str]], Any] | None = None, argv: Sequence[str] | None = None) -> None:
    """Run a function of the command line's other arguments, and exit with its result.

    Args:
      main: The function. Default: `main` of the program.
      argv: Command line. Default: `sys.argv`; flags that the program does not define remain in it.
    """
    chosen: Callable[[list[str]], Any] = main or sys.modules["__main__"].main
    _app.run(chosen, None if argv is None else list(argv), flags_parser=_parse_flags)


def _parse_flags(arguments: Sequence[str]) -> list[str]:
    rest: list[str] = flags.FLAGS(arguments, known_only=True)
    return rest


def __getattr__(name: str) -> Any:
    return getattr(_app, name)
