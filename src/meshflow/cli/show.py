"""`meshflow show` and `meshflow run`: what a saved model takes and returns, and calls of its signatures."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from meshflow.core.runtime.errors import OpError
from meshflow.core.values import nest
from meshflow.core.values.dtypes import as_dtype
from meshflow.core.values.specs import TensorSpec
from meshflow.saved_model import DEFAULT_SERVING_SIGNATURE_DEF_KEY, load
from meshflow.saved_model.calls import calls_of, functions_of, parameters_of

__all__ = ["run", "show"]

_Folder = Annotated[str, typer.Argument(help="The folder of a saved model, Meshflow's or TensorFlow's.")]  # fmt: skip


def show(
    folder: _Folder,
    tags: Annotated[
        str, typer.Option(help="Of the graph, as serve,gpu; default the one for serving.")
    ] = "",
    signature: Annotated[str, typer.Option(help="Show this signature alone.")] = "",
    ops: Annotated[bool, typer.Option(help="Show which of TensorFlow's ops it has, too.")] = False,
) -> None:
    """Show a saved model's tags, its signatures with their tensors, and its functions with their arguments."""
    try:
        wanted = tags.split(",") if tags else None
        for line in described(folder, wanted, signature, ops):
            typer.echo(line)
    except (OpError, ImportError, OSError, ValueError) as error:
        sys.exit(str(error))


def described(folder: str, tags: Any, only: str, ops: bool) -> Iterator[str]:
    """Lines of what a saved model has.

    Args:
      folder: the model's.
      tags: those of the graph, or None.
      only: a signature's name, or "" for all that there is.
      ops: whether to name the graph's ops.
    """
    loaded, meta = load(folder, tags), _meta_graph(folder, tags)
    if only and only not in loaded.signatures:
        raise ValueError(f"{folder} has no signature {only!r}: {sorted(loaded.signatures)}.")
    if meta is not None and not only:
        yield f"tags: {', '.join(sorted(meta.meta_info_def.tags))}"
    for name in sorted([only] if only else loaded.signatures):
        yield from _signature(name, loaded.signatures[name], meta)
    if only:
        return
    for name, function in functions_of(loaded):
        if name.startswith("_") and name != "__call__":
            continue
        yield f"function {name}"
        for _, args, kwargs in calls_of(function):
            yield f"  {_call(parameters_of(function), args, kwargs)}"
    if ops and meta is not None:
        functions = meta.graph_def.library.function
        nodes = [*meta.graph_def.node, *(n for f in functions for n in f.node_def)]
        yield f"ops: {', '.join(sorted({n.op for n in nodes}))}"


def _meta_graph(folder: str, tags: Any) -> Any:
    """TensorFlow's description; None in a folder without."""
    from meshflow.saved_model.graph import loading  # noqa: PLC0415 - it needs an optional package

    return loading.meta_graph(folder, tags) if loading.has_graph(folder) else None


def _signature(name: str, signature: Any, meta: Any) -> Iterator[str]:
    about = meta.signature_def[name] if meta is not None and name in meta.signature_def else None
    yield f"signature {name}{f' ({about.method_name})' if about is not None and about.method_name else ''}"
    places = {"in": signature.structured_input_signature[1], "out": signature.structured_outputs}
    named = {
        "in": about.inputs if about is not None else {},
        "out": about.outputs if about is not None else {},
    }
    for way, specs in places.items():
        for key in sorted(specs):
            tensor = f"  {named[way][key].name}" if key in named[way] else ""
            yield f"  {way:3} {key}: {_spec(specs[key])}{tensor}"


def _spec(spec: TensorSpec) -> str:
    sizes = "[...]" if spec.shape.rank is None else str(spec.shape.as_list())
    return f"{spec.dtype.name} {sizes}"


def _call(parameters: list[Any], args: Any, kwargs: Any) -> str:
    def shown(value: Any) -> str:
        return str(
            nest.map_structure(lambda v: _Bare(_spec(v)) if isinstance(v, TensorSpec) else v, value)
        )

    names = [p[0] for p in parameters] + [f"args_{i}" for i in range(len(args))]
    parts = [f"{n}={shown(v)}" for n, v in zip(names, args, strict=False)]
    return f"({', '.join([*parts, *(f'{n}={shown(v)}' for n, v in kwargs.items())])})"


class _Bare(str):
    """Text that shows itself without quotes."""

    def __repr__(self) -> str:
        return str(self)


def run(
    folder: _Folder,
    inputs: Annotated[
        list[str] | None,
        typer.Option("--input", help="A tensor as name=file.npy, or name=file.npz:key.", metavar="NAME=FILE"),
    ] = None,
    signature: Annotated[
        str, typer.Option(help="Which signature.")
    ] = DEFAULT_SERVING_SIGNATURE_DEF_KEY,
    out: Annotated[
        str, typer.Option(help="A folder that gets a .npy file for each result.")
    ] = "",
) -> None:  # fmt: skip
    """Call a signature of a saved model with arrays from files; show what it gives, or write it into files."""
    try:
        called = load(folder).signatures
        if signature not in called:
            raise ValueError(f"{folder} has no signature {signature!r}: {sorted(called)}.")
        specs = called[signature].structured_input_signature[1]
        given = {name: _array(file) for name, _, file in (i.partition("=") for i in inputs or [])}
        tensors = {n: a.astype(_kind(specs[n])) if n in specs else a for n, a in given.items()}
        for name, tensor in called[signature](**tensors).items():
            value = tensor.numpy()
            if out:
                Path(out).mkdir(parents=True, exist_ok=True)
                kept = np.asarray(value, "S") if value.dtype == object else value
                np.save(Path(out) / f"{name}.npy", kept, allow_pickle=False)
            typer.echo(f"{name}: {_spec(TensorSpec(value.shape, as_dtype(value.dtype)))}")
            if not out:
                typer.echo(str(value))
    except (OpError, ImportError, OSError, TypeError, ValueError) as error:
        sys.exit(str(error))


def _kind(spec: TensorSpec) -> Any:
    return object if spec.dtype.name == "string" else spec.dtype.as_numpy_dtype


def _array(place: str) -> np.ndarray:
    """An array of a file, which is never unpickled."""
    stem, _, key = place.partition(".npz:")
    path = f"{stem}.npz" if key else place
    found = np.load(path, allow_pickle=False)
    if isinstance(found, np.ndarray):
        return found
    if key not in found:
        raise ValueError(f"{place}: give one of its arrays as {path}:KEY, of {sorted(found)}.")
    return np.asarray(found[key])
