"""Write the stubs of `tf.experimental.numpy`: signatures of the functions derived from `jax.numpy`,
for editors.

Run `python tests/numpy_stubs.py` to write them again; `test_stubs.py` compares them with the
functions. The public names of a stub are its functions and its imports with `as`.
"""

import ast
import inspect
import re
import subprocess
import sys
from pathlib import Path

import jax.numpy as jnp

import meshflow as tf

FOLDER = Path(inspect.getfile(tf.experimental.numpy)).parent
MODULES = {
    "__init__": tf.experimental.numpy,
    "fft": tf.experimental.numpy.fft,
    "linalg": tf.experimental.numpy.linalg,
}
# Names that `jax.numpy` does not annotate or lacks.
_UNSAID = {"cond", "cross", "fix", "flatten", "isneginf", "isposinf"}
# The annotations differ between versions of JAX.
_TAKEN = {"ord": "int | str | float | None"}
_PLAIN = re.compile(r"(int|bool|str|float|complex|None)( \| (int|bool|str|float|complex|None))*")


def stub(module):
    """Return a module's stub as text: its imports, and the functions derived from `jax.numpy`."""
    made, others = [], []
    for name in sorted(module.__all__):
        value = getattr(module, name)
        own = (
            inspect.isfunction(value)
            and value.__module__ == module.__name__
            and module is not MODULES["__init__"]
        )
        if own or (callable(value) and "__signature__" in getattr(value, "__dict__", {})):
            made.append(_function(name, value, module))
        else:
            others.append(_import(name, value))
    return "\n".join(
        [
            f'"""{(module.__doc__ or "").splitlines()[0]}"""',
            "from typing import Any",
            "from meshflow.core.values.tensor import Tensor, TensorLike",
            *others,
            *made,
            "",
        ]
    )


def _function(name, value, module):
    signature = inspect.signature(value)
    result = signature.return_annotation
    if result is signature.empty:
        result = _result_of_jax(name, module)
    given = [
        p.replace(
            annotation=_Text(_TAKEN.get(p.name) or _get_parameter_type(p.annotation)),
            default=_default(p),
        )
        for p in signature.parameters.values()
    ]
    text = _get_result_type(result)
    if any(p.kind is p.VAR_POSITIONAL for p in given):
        # Lists in all versions of JAX.
        text = text.replace("tuple[Tensor, ...]", "list[Tensor]")
    shown = signature.replace(parameters=given, return_annotation=_Text(text))
    return f"def {name}{shown}: ..."


def _result_of_jax(name, module):
    """Return the result type of the function of that name in `jax.numpy`."""
    for part in module.__name__.split(".")[2:]:
        function = getattr(getattr(jnp, part), name, None)
        break
    else:
        function = getattr(jnp, name, None)
    if getattr(function, "nout", 0) == 1:
        return "Array"
    if name in _UNSAID:
        return "Array"
    return inspect.signature(function).return_annotation if function is not None else "Any"


class _Text:
    def __init__(self, text):
        self.text = text

    def __repr__(self):
        return self.text

    __str__ = __repr__


def _default(parameter):
    return parameter.default if parameter.default is parameter.empty else _Text("...")


def _get_parameter_type(annotation):
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    if "Array" in text:
        return "TensorLike"
    return text if text == "TensorLike" or _PLAIN.fullmatch(text) else "Any"


def _get_result_type(annotation):
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    text = re.sub(r"\bjax\.(jaxlib\._jax\.)?Array\b|\bArray\b", "Tensor", text)
    text = re.sub(r"\b\w+Result\b", lambda name: _tuple_of(name[0]), text)
    several = r"list\[Tensor\]|tuple\[Tensor(, (Tensor|\.\.\.))*\]"
    fits = _PLAIN.fullmatch(text) or re.fullmatch(rf"(Tensor|{several})( \| ({several}))?", text)
    return text if fits else "Any"


def _tuple_of(name):
    """One of `jax.numpy.linalg`'s named tuples as a plain one."""
    return "tuple[Tensor, Tensor, Tensor]" if name == "SVDResult" else "tuple[Tensor, Tensor]"


def _import(name, value):
    if inspect.ismodule(value):
        return f"from meshflow.numpy import {name} as {name}"
    for source in sorted(FOLDER.glob("*.py")):
        inner = sys.modules.get(f"meshflow.numpy.{source.stem}")
        if source.stem not in MODULES and inner is not None and vars(inner).get(name, ...) is value:
            return f"from meshflow.numpy.{source.stem} import {name} as {name}"
    return f"{name}: Any"


def is_stub_equal(text, path):
    """Return whether a stub equals a file, in any order."""
    return _statements(text) == _statements(path.read_text(encoding="utf-8"))


def _statements(text):
    found = set()
    for node in ast.parse(text).body:
        if isinstance(node, ast.ImportFrom):
            found.update(
                (node.module, alias.name, alias.asname)
                for alias in node.names
                if alias.name != "Tensor"
            )
        else:
            found.add(ast.dump(node))
    return found


if __name__ == "__main__":
    for stem, module in MODULES.items():
        path = FOLDER / f"{stem}.pyi"
        path.write_text(stub(module), encoding="utf-8")
        subprocess.run(
            [sys.executable, "-m", "ruff", "check", "-q", "--fix", str(path)], check=False
        )
        subprocess.run([sys.executable, "-m", "ruff", "format", "-q", str(path)], check=True)
        print(path.name)
