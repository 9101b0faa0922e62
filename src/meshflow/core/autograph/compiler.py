"""Compile a transformed syntax tree into a function that shares the original's variables.

The new code is compiled with the original file name and line numbers, so tracebacks and debuggers
show the user's lines. Nothing is executed: the definition is compiled inside a wrapper that has the
original's free variables as parameters, and its code object is taken from the wrapper's constants.
The new function combines that code with the original's globals, defaults and closure cells.
"""

from __future__ import annotations

import ast
import copy
import inspect
import threading
import types
from collections.abc import Collection
from types import CodeType, FunctionType

from meshflow.core.autograph import ast_nodes, source_lookup, transformer
from meshflow.core.autograph.status import log

_FUTURE_FLAGS = 0x1FF0000  # the compiler flags set by `from __future__ import ...`

# Converted code by original code. The file name is a part of the key, because equal code objects
# from two files compare equal.
_cache: dict[tuple[str, CodeType], CodeType | None] = {}
# Python 3.11 cannot make syntax trees in several threads at once.
_compile_lock = threading.RLock()
# The ids of generated code objects, which `_cache` keeps alive.
_generated_code_ids: set[int] = set()
# Reasons why functions were not converted.
_reasons: dict[tuple[str, CodeType], str] = {}

ConversionError = (source_lookup.SourceNotFoundError, transformer.UnsupportedError)


def is_converted(function: FunctionType) -> bool:
    """Check whether this module generated the code of a function."""
    return id(function.__code__) in _generated_code_ids


def get_converted_code(function: FunctionType) -> CodeType | None:
    """Return the converted code of a function, or None if it cannot be converted."""
    key = function.__code__.co_filename, function.__code__
    if key in _cache:
        return _cache[key]
    with _compile_lock:
        try:
            _cache[key] = _compile(function)
        except ConversionError as error:
            _reasons[key] = str(error)
            _cache[key] = None
        except Exception as error:  # This is a defect of AutoGraph, and the function can still run as plain Python.
            log.warning(
                "AutoGraph could not convert %s, please report this: %r",
                function.__qualname__,
                error,
            )
            _reasons[key] = repr(error)
            _cache[key] = None
    return _cache[key]


def get_failure_reason(function: FunctionType) -> str:
    """Return the reason why a function was not converted."""
    return _reasons.get((function.__code__.co_filename, function.__code__), "")


def make_function(function: FunctionType, code: CodeType, runtime: object) -> FunctionType:
    """Create a function that runs `code` with the globals, defaults and closure of `function`."""
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    cells[ast_nodes.PREFIX] = types.CellType(runtime)
    closure = tuple(cells[name] for name in code.co_freevars)
    converted = FunctionType(
        code, function.__globals__, function.__name__, function.__defaults__, closure
    )
    converted.__kwdefaults__ = function.__kwdefaults__
    converted.__qualname__ = function.__qualname__
    converted.__module__ = function.__module__
    converted.__doc__ = function.__doc__
    converted.__annotations__ = function.__annotations__
    converted.__dict__.update({k: v for k, v in function.__dict__.items() if k != "__wrapped__"})
    return converted


def transform_function(function: FunctionType) -> ast.FunctionDef | ast.Lambda:
    """Return the syntax tree of a function after conversion."""
    code = function.__code__
    is_edited = source_lookup.is_edited(code)
    for definition, file in source_lookup.find_definitions(code, function.__globals__):
        if not is_edited or _is_same(
            code, _compile_definition(function, copy.deepcopy(definition), file.imports)
        ):
            return transformer.transform(definition)
    if not is_edited:
        raise source_lookup.SourceNotFoundError(
            f"{code.co_name} not found at {code.co_filename}:{code.co_firstlineno}"
        )
    log.warning(
        "%s runs without AutoGraph, because %s has changed since the function was defined. Reload the module, or start "
        "the program again.",
        function.__qualname__,
        code.co_filename,
    )
    raise source_lookup.SourceNotFoundError(f"{code.co_filename} has changed")


def _is_same(code: CodeType, other: CodeType) -> bool:
    """Check whether two code objects do the same, in any lines."""
    constants = [c for c in code.co_consts if not isinstance(c, CodeType)]
    functions = [c for c in code.co_consts if isinstance(c, CodeType)]
    other_functions = [c for c in other.co_consts if isinstance(c, CodeType)]
    return (
        code.co_code == other.co_code
        and code.co_names == other.co_names
        and repr(constants) == repr([c for c in other.co_consts if not isinstance(c, CodeType)])
        and len(functions) == len(other_functions)
        and all(map(_is_same, functions, other_functions))
    )


def _compile(function: FunctionType) -> CodeType:
    compiled = _compile_definition(function, transform_function(function))
    return _rename_code(compiled, function.__code__.co_name, function.__qualname__)


def _compile_definition(
    function: FunctionType, definition: ast.FunctionDef | ast.Lambda, imports: Collection[str] = ()
) -> CodeType:
    code = function.__code__
    if isinstance(definition, ast.FunctionDef):
        _remove_annotations(definition)
        statement: ast.stmt = definition
    else:
        statement = ast.copy_location(ast.Expr(definition), definition)
    definition.args.defaults = [ast.Constant(None) for _ in definition.args.defaults]
    definition.args.kw_defaults = [d and ast.Constant(None) for d in definition.args.kw_defaults]
    body = [statement]
    if code.co_name.isidentifier() and code.co_name not in code.co_freevars:
        # A recursive function finds itself among the globals, not in the wrapper.
        body.insert(0, ast.Global([code.co_name]))
    wrapper = ast_nodes.make_function("ag__wrapper", (*code.co_freevars, ast_nodes.PREFIX), body)
    outermost: ast.stmt = wrapper
    class_name = _get_class_name(function.__qualname__)
    if class_name is not None:
        # The class makes Python mangle private names (`self.__x`) as in the original.
        outermost = ast.ClassDef(class_name, [], [], [wrapper], [])
        outermost.type_params = []  # type: ignore[attr-defined]
    ast_nodes.set_positions([wrapper, outermost], definition)
    statements = [ast.Import([ast.alias("ag__", name)]) for name in sorted(imports)]
    module = ast.Module([*statements, outermost], [])
    ast_nodes.fill_in_positions(module)
    flags = code.co_flags & _FUTURE_FLAGS
    compiled = compile(module, code.co_filename, "exec", flags=flags, dont_inherit=True)
    for name in (class_name, "ag__wrapper", code.co_name):
        if name is not None:
            compiled = _find_inner_code(compiled, name)
    return compiled


def _find_inner_code(code: CodeType, name: str) -> CodeType:
    return next(c for c in code.co_consts if isinstance(c, CodeType) and c.co_name == name)


def _rename_code(code: CodeType, name: str, qualname: str) -> CodeType:
    """Give generated inner functions the name of their function, for tracebacks."""
    constants = []
    for constant in code.co_consts:
        if isinstance(constant, CodeType) and constant.co_flags & inspect.CO_NEWLOCALS:
            # Class bodies lack that flag and are unchanged; their methods are converted later.
            inner_name = constant.co_name
            if inner_name.startswith(ast_nodes.PREFIX):
                constant = _rename_code(constant, name, qualname)
            else:
                constant = _rename_code(constant, inner_name, f"{qualname}.<locals>.{inner_name}")
        constants.append(constant)
    result = code.replace(co_name=name, co_qualname=qualname, co_consts=tuple(constants))
    _generated_code_ids.add(id(result))
    return result


def _get_class_name(qualname: str) -> str | None:
    parts = qualname.split(".")
    if len(parts) > 1 and parts[-2] != "<locals>":
        return parts[-2]
    return None


def _remove_annotations(definition: ast.FunctionDef) -> None:
    """Remove the annotations, which were evaluated when the original was defined."""
    definition.returns = None
    args = definition.args
    for arg in (*args.posonlyargs, *args.args, *args.kwonlyargs, args.vararg, args.kwarg):
        if arg is not None:
            arg.annotation = None
