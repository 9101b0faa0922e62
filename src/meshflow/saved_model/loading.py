"""`tf.saved_model.load`: objects of no known class, with the variables and functions of those saved."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from meshflow.checkpoint.storage import Folder, is_checkpoint
from meshflow.core.functions.concrete_function import Signed
from meshflow.core.functions.function import function
from meshflow.core.runtime.errors import DataLossError, NotFoundError
from meshflow.core.tracing.trace import Slot, Traced
from meshflow.core.values import nest
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.specs import TensorSpec
from meshflow.core.values.tensor import Tensor
from meshflow.core.variables.module import Module
from meshflow.core.variables.variable import Variable
from meshflow.files.paths import text
from meshflow.saved_model.programs import loaded, program_for
from meshflow.saved_model.structures import unpacked

__all__ = ["Restored", "contains_saved_model", "load"]


class Restored(Module):
    """An object that was saved: its attributes are those that were variables, objects or functions.

    Attributes:
      signatures: functions by name, which take tensors by name and return a dictionary of tensors.
    """

    _ordered: tuple[Variable, ...] | None = None

    @property
    def variables(self) -> tuple[Variable, ...]:
        """The variables of the saved object, in its order."""
        return super().variables if self._ordered is None else self._ordered

    @property
    def trainable_variables(self) -> tuple[Variable, ...]:
        """Those that are trained."""
        return tuple(v for v in self.variables if v.trainable)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the saved object's `__call__`."""
        own = self.__dict__.get("_call")
        if own is None:
            raise TypeError(
                "This saved object is not callable: it was saved without a function `__call__`."
            )
        return own(*args, **kwargs)


def contains_saved_model(export_dir: Any) -> bool:
    """Whether a folder holds what `tf.saved_model.save` or `Model.save` wrote.

    Args:
      export_dir: the folder.

    Example:
      >>> import meshflow as tf
      >>> import tempfile
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     before = tf.saved_model.contains_saved_model(folder)
      ...     tf.saved_model.save(tf.Module(), folder)
      ...     before, tf.saved_model.contains_saved_model(folder)
      (False, True)
    """
    path = text(export_dir)
    return is_checkpoint(path) and "saved_model" in Folder(path).manifest


def load(export_dir: Any, tags: Any = None, options: Any = None) -> Any:
    """Loads what `tf.saved_model.save` wrote; the Python code of it is not needed.

    Args:
      export_dir: the folder.
      tags: ignored.
      options: a `LoadOptions`; accepted.

    Returns:
      An object with the saved one's variables, objects and functions as attributes, and `signatures`.

    Raises:
      OSError: when nothing was saved there.
      DataLossError: when a file is damaged, naming it.

    Example:
      >>> import tempfile
      >>> import meshflow as tf
      >>> folder, module = tempfile.mkdtemp(), tf.Module()
      >>> module.weight = tf.Variable([1.0, 2.0])
      >>> tf.saved_model.save(module, folder)
      >>> tf.saved_model.load(folder).weight.numpy()
      array([1., 2.], dtype=float32)
    """
    path = text(export_dir)
    try:
        folder = Folder(path)
    except NotFoundError:
        folder = None
    if folder is None or "saved_model" not in folder.manifest:
        raise OSError(
            f"SavedModel file does not exist at: {path}. Expected a folder written by tf.saved_model.save or "
            "Model.save here; models saved by TensorFlow itself cannot be read."
        )
    try:
        return _Reader(folder).root()
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        raise DataLossError(f"{path}: the manifest is damaged: {error!r}.") from error


def _own_name(name: str) -> str:
    """The name of an attribute, none of those that Python itself uses."""
    if name.startswith("__"):
        raise KeyError(name)
    return name


class _Reader:
    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._content = folder.manifest["saved_model"]
        self._constants: dict[str, Tensor] = {}
        self._items: list[Any] = [self._make(node) for node in self._content["nodes"]]

    def _make(self, node: dict[str, Any]) -> Any:
        kind = node["kind"]
        if kind == "variable":
            value = self._folder.read_file(node["file"])
            return Variable(value, trainable=node["trainable"], name=node["name"])
        if kind == "dict":
            return {}
        if kind == "list":
            return []
        if kind == "function":
            return None
        return Restored(name=node.get("name") if str(node.get("name")).isidentifier() else None)

    def root(self) -> Any:
        for node, item in zip(self._content["nodes"], self._items, strict=True):
            for name, place in node["children"].items():
                child = self._items[place]
                if child is None:
                    continue
                if isinstance(item, dict):
                    item[name] = child
                elif isinstance(item, list):
                    item.append(child)
                elif not hasattr(type(item), _own_name(name)):
                    setattr(item, name, child)
        for saved in self._content["functions"]:
            owner, name = self._items[saved["owner"]], saved["name"]
            restored = self._function(name, saved["parameters"], saved["alternatives"])
            setattr(owner, "_call" if name == "__call__" else _own_name(name), restored)
        signatures = {
            name: Signature(name, self._alternative(name, saved))
            for name, saved in self._content["signatures"].items()
        }
        root = self._items[0]
        root.signatures = signatures
        places = self._content["variables"]
        if places is not None:
            root._ordered = tuple(self._items[place] for place in places)
        return root

    def _function(self, name: str, parameters: list[Any], alternatives: list[Any]) -> Any:
        choose = _Choice(name, parameters, [self._alternative(name, a) for a in alternatives])
        return function(choose, autograph=False)

    def _alternative(self, name: str, saved: dict[str, Any]) -> Alternative:
        return Alternative(
            name,
            unpacked(saved["arguments"]),
            unpacked(saved["results"]),
            saved["count"],
            loaded(self._folder.read_file(saved["program"]).tobytes()),
            [self._capture(c) for c in saved["captures"]],
            [self._capture(w) for w in saved["writes"]],
        )

    def _capture(self, saved: dict[str, Any]) -> Any:
        if "node" in saved:
            return self._items[saved["node"]]
        key = saved["constant"]
        if key not in self._constants:
            self._constants[key] = Tensor(self._folder.read_file(key))
        return self._constants[key]


class Alternative:
    """A saved function for one of its signatures.

    Attributes:
      arguments: (args, kwargs) with `TensorSpec`s for tensors.
    """

    def __init__(
        self,
        name: str,
        arguments: Any,
        structure: Any,
        count: int,
        program: Any,
        captures: list[Any],
        writes: list[Any],
    ) -> None:
        self.arguments = arguments
        self._name, self._structure, self._count = name, structure, count
        self._program, self._captures, self._writes = program, captures, writes
        self._sized: dict[Any, Traced] = {}

    @property
    def out_specs(self) -> list[TensorSpec]:
        """Specs of the results; sizes that depend on the arguments' are None."""
        avals = self._program.out_avals[: self._count]
        return [TensorSpec([_known(d) for d in a.shape], a.dtype) for a in avals]

    def tensors_of(self, args: Any, kwargs: Any) -> list[Tensor] | None:
        """The tensors among the arguments of a call, or None when it does not fit."""
        try:
            parts = nest.flatten_up_to(self.arguments, (args, kwargs))
        except (TypeError, ValueError):
            return None
        tensors = []
        for spec, value in zip(nest.flatten(self.arguments), parts, strict=True):
            if not isinstance(spec, TensorSpec):
                if isinstance(value, (Tensor, np.ndarray)) or value != spec:
                    return None
                continue
            try:
                tensor = convert_to_tensor(value, dtype_hint=spec.dtype)
            except (TypeError, ValueError):
                return None
            if not spec.is_compatible_with(tensor):
                return None
            tensors.append(tensor)
        return tensors

    def call(self, tensors: Sequence[Tensor]) -> Any:
        """Runs it; variables that it wrote when it was saved are written."""
        key = tuple(tuple(t.shape.as_list()) for t in tensors)
        traced = self._sized.get(key)
        if traced is None:
            captures = [c._value for c in self._captures]
            closed = program_for(self._program, [t._value for t in tensors], captures)
            traced = Traced(
                self._name, closed, self._captures, self._writes, self._structure, self._count
            )
            self._sized[key] = traced
        return traced.call(tensors)


class _Choice:
    """Calls the alternative that fits."""

    def __init__(self, name: str, parameters: list[Any], alternatives: list[Alternative]) -> None:
        self.__name__ = name
        self._parameters = parameters
        self._alternatives = alternatives

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        for positional, named in self._forms(args, kwargs):
            for alternative in self._alternatives:
                tensors = alternative.tensors_of(positional, named)
                if tensors is not None:
                    return alternative.call(tensors)
        options = "\n".join(
            f"  Option {i}: {a.arguments[0]}, {a.arguments[1]}"
            for i, a in enumerate(self._alternatives, 1)
        )
        raise ValueError(
            f"Could not find matching concrete function to call loaded from the SavedModel: {self.__name__} got "
            f"{args}, {kwargs}. Expected one of {len(self._alternatives)} option(s):\n{options}"
        )

    def _forms(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The call as it is, and with defaults and keywords in their places."""
        yield args, kwargs
        left, full = dict(kwargs), list(args)
        for name, *default in self._parameters[len(args) :]:
            if name in left:
                full.append(left.pop(name))
            elif default:
                full.append(unpacked(default[0]))
            else:
                break
        yield tuple(full), left
        # Defaults that the trace was not told of.
        yield tuple(full[: max(len(args), len(full) - 1)]), left


class Signature(Signed):
    """A signature of a saved object: takes tensors by name and returns a dictionary of them.

    Attributes:
      name: its name.
      structured_input_signature: ((), specs by name).
    """

    def __init__(self, name: str, alternative: Alternative) -> None:
        self.name = name
        self._alternative = alternative
        self.structured_input_signature = ((), alternative.arguments[1])
        self._run: Callable[..., Any] = function(
            lambda *tensors: alternative.call(tensors), autograph=False
        )

    @property
    def structured_outputs(self) -> dict[str, TensorSpec]:
        """Specs of the results by name."""
        specs = self._alternative.out_specs
        structure = self._alternative._structure
        return nest.map_structure(lambda s: specs[s.index] if isinstance(s, Slot) else s, structure)

    @property
    def captured_inputs(self) -> list[Any]:
        """Variables and constants that it uses."""
        return list(self._alternative._captures)

    def __call__(self, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
        """Runs it.

        Raises:
          TypeError: when a tensor is missing, unknown, or has another dtype or shape.
        """
        specs = self.structured_input_signature[1]
        if args and len(args) == len(specs) == 1:
            kwargs, args = {next(iter(specs)): args[0]}, ()
        if args or set(kwargs) != set(specs):
            raise TypeError(
                f"signature {self.name} takes the tensors {sorted(specs)} by name, got "
                f"{len(args)} without a name and {sorted(kwargs)}."
            )
        tensors = self._alternative.tensors_of((), {name: kwargs[name] for name in specs})
        if tensors is None:
            raise TypeError(f"signature {self.name} takes {specs}, got {kwargs}.")
        return self._run(*tensors)


def _known(size: Any) -> int | None:
    return size if isinstance(size, int) else None
