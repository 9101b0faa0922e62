"""`meshflow run`: run a program like `python`, with `import tensorflow` loading Meshflow."""

from __future__ import annotations

import io
import os
import runpy
import shlex
import sys
import zipfile
from collections.abc import Sequence
from importlib.machinery import SourceFileLoader
from types import ModuleType, TracebackType

from meshflow.shims import activate

_USAGE = "usage: meshflow run script.py [arguments], meshflow run -m module [arguments], or meshflow run -c code"
_USAGE_ERROR_CODE, _INTERRUPT_CODE = 2, 130


def run_program(arguments: Sequence[str]) -> int:
    """Run a script, a module or code as `__main__`, as Python does.

    Args:
      arguments: Arguments of `python`: a script, `-m` and a module, or `-c` and code; then those of
        the program.

    Returns:
      The exit code, unless the program exits itself.
    """
    option, target = arguments[0], arguments[1] if len(arguments) > 1 else ""
    if option.startswith("-") and (option not in ("-m", "-c") or not target):
        print(_USAGE, file=sys.stderr)
        return _USAGE_ERROR_CODE
    try:
        activate()
    except ImportError as error:
        print(error, file=sys.stderr)
        return 1
    try:
        if option == "-m":
            _set_arguments(["-m", *arguments[2:]], os.getcwd())
            _make_main()
            runpy._run_module_as_main(target)  # type: ignore[attr-defined]
        elif option == "-c":
            _set_arguments(["-c", *arguments[2:]], "")
            exec(compile(target, "<string>", "exec", dont_inherit=True), _make_main().__dict__)
        elif os.path.isfile(os.path.join(option, "__main__.py")) or zipfile.is_zipfile(option):
            _set_arguments(arguments, os.path.abspath(option))
            _make_main()
            runpy._run_module_as_main("__main__", False)  # type: ignore[attr-defined]
        elif os.path.isfile(option):
            _set_arguments(arguments, os.path.dirname(os.path.realpath(option)))
            _run_script(option)
        else:
            print(_explain_missing_script(option), file=sys.stderr)
            return _USAGE_ERROR_CODE
    except SystemExit:
        raise
    except BaseException as error:
        return _report_error(error)
    return 0


def _set_arguments(arguments: Sequence[str], folder: str) -> None:
    """Set `sys.argv`, and the folder from which the program imports its own modules."""
    sys.argv[:] = arguments
    if not sys.flags.safe_path:
        sys.path[0] = folder


def _make_main() -> ModuleType:
    main = sys.modules["__main__"] = ModuleType("__main__")
    main.__dict__["__builtins__"] = __builtins__
    return main


def _run_script(path: str) -> None:
    main, path = _make_main(), os.path.abspath(path)
    main.__file__, main.__dict__["__cached__"] = path, None
    main.__loader__ = SourceFileLoader("__main__", path)
    with io.open_code(path) as file:
        source = file.read()
    exec(compile(source, path, "exec", dont_inherit=True), main.__dict__)


def _explain_missing_script(path: str) -> str:
    if os.path.isfile(os.path.join(path, "saved_model.pb")):
        return f"{path} is a saved model. Call its signature by `meshflow predict {shlex.quote(path)}`; `meshflow run` runs programs."
    if os.path.isdir(path):
        return f"meshflow run: the folder {path} has no __main__.py, and it is not a saved model."
    return f"meshflow run: there is no script {path}. Check the path."


def _report_error(error: BaseException) -> int:
    """Print the traceback of an error without the frames of this module, and return the exit code."""
    frames: TracebackType | None = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename == __file__:
        frames = frames.tb_next
    error.__traceback__ = frames
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error, frames
    sys.excepthook(type(error), error, frames)
    return _INTERRUPT_CODE if isinstance(error, KeyboardInterrupt) else 1
