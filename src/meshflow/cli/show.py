"""`meshflow show` and `meshflow predict`: inspect a saved model and call its signatures."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Annotated, Any

import numpy as np
import typer

from meshflow.core.runtime.errors import OpError
from meshflow.core.runtime.isolation import call_isolated
from meshflow.core.values import nest
from meshflow.core.values.dtypes import as_dtype
from meshflow.core.values.specs import TensorSpec
from meshflow.environment.sandbox import choose_mechanism
from meshflow.environment.types import Json, PyTree
from meshflow.files.copies import local_file_or_folder
from meshflow.files.listing import measure_folder
from meshflow.saved_model import DEFAULT_SERVING_SIGNATURE_DEF_KEY, load
from meshflow.saved_model.saving.function_discovery import (
    iterate_functions,
    iterate_signatures,
    list_parameters,
)

_FolderArgument = Annotated[
    str, typer.Argument(help="SavedModel folder, of Meshflow or TensorFlow.")
]


def show(
    folder: _FolderArgument,
    tags: Annotated[
        str, typer.Option(help="Tags of the graph, as serve,gpu. Default: the serving graph.")
    ] = "",
    signature: Annotated[str, typer.Option(help="Show only this signature.")] = "",
    ops: Annotated[bool, typer.Option(help="Also list the TensorFlow ops of the graph.")] = False,
    isolated: Annotated[
        bool, typer.Option(help="Read the model in a process without network and write access.")
    ] = choose_mechanism() is not None,
) -> None:
    """Show the tags, the signatures and the functions of a saved model."""
    try:
        tag_list = tags.split(",") if tags else None
        describe = _describe_in_isolation if isolated else describe_saved_model
        for line in describe(folder, tag_list, signature, ops):
            # Names of files of others may contain control sequences of terminals.
            typer.echo("".join(c if c.isprintable() else repr(c)[1:-1] for c in line))
    except (OpError, ImportError, OSError, ValueError) as error:
        sys.exit(str(error))


def _describe_in_isolation(
    folder: str, tags: Sequence[str] | None, only: str, ops: bool
) -> Iterator[str]:
    """Yield the lines of `describe_saved_model`, which an isolated process computes."""
    with local_file_or_folder(folder) as path:
        arguments = {"folder": os.path.abspath(path), "tags": tags, "only": only, "ops": ops}
        target = f"{__name__}:write_description"
        content = call_isolated(target, arguments, folder, measure_folder(path))
    yield from content.decode(errors="replace").splitlines()


def write_description(arguments: Json, file: IO[bytes]) -> None:
    """Write the description of a saved model; called in an isolated process."""
    for line in describe_saved_model(
        *(arguments[key] for key in ("folder", "tags", "only", "ops"))
    ):
        file.write(line.encode(errors="backslashreplace") + b"\n")


def describe_saved_model(
    folder: str, tags: Sequence[str] | None, only: str, ops: bool
) -> Iterator[str]:
    """Yield lines that describe a saved model.

    Args:
      folder: Folder of the saved model.
      tags: Tags of the graph; None selects the default graph.
      only: Name of the only signature to describe; "" describes everything.
      ops: Whether to list the ops of the graph.
    """
    loaded, meta = load(folder, tags), _load_meta_graph(folder, tags)
    if only and only not in loaded.signatures:
        raise ValueError(f"{folder} has no signature {only!r}; it has {sorted(loaded.signatures)}.")
    if meta is not None and not only:
        yield f"tags: {', '.join(sorted(meta.meta_info_def.tags))}"
    for name in sorted([only] if only else loaded.signatures):
        yield from _describe_signature(name, loaded.signatures[name], meta)
    if only:
        return
    for name, function in iterate_functions(loaded):
        if name.startswith("_") and name != "__call__":
            continue
        yield f"function {name}"
        for _, args, kwargs in iterate_signatures(function):
            yield f"  {_format_call(list_parameters(function), args, kwargs)}"
    if ops and meta is not None:
        functions = meta.graph_def.library.function
        nodes = [*meta.graph_def.node, *(n for f in functions for n in f.node_def)]
        yield f"ops: {', '.join(sorted({n.op for n in nodes}))}"


def _load_meta_graph(folder: str, tags: Sequence[str] | None) -> Any:
    """Load TensorFlow's MetaGraphDef; None if the folder has no graph."""
    from meshflow.saved_model.graph.reading import graph_loader  # noqa: PLC0415 - the module needs an optional package

    return graph_loader.read_meta_graph(folder, tags) if graph_loader.has_graph(folder) else None


def _describe_signature(name: str, signature: Any, meta: Any) -> Iterator[str]:
    info = meta.signature_def[name] if meta is not None and name in meta.signature_def else None
    yield f"signature {name}{f' ({info.method_name})' if info is not None and info.method_name else ''}"
    sides = {"in": signature.structured_input_signature[1], "out": signature.structured_outputs}
    named = {
        "in": info.inputs if info is not None else {},
        "out": info.outputs if info is not None else {},
    }
    for direction, specs in sides.items():
        for key in sorted(specs):
            tensor = f"  {named[direction][key].name}" if key in named[direction] else ""
            yield f"  {direction:3} {key}: {_format_spec(specs[key])}{tensor}"


def _format_spec(spec: TensorSpec) -> str:
    sizes = "[...]" if spec.shape.rank is None else str(spec.shape.as_list())
    return f"{spec.dtype.name} {sizes}"


def _format_call(parameters: list[Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    def format_value(value: PyTree) -> str:
        return str(
            nest.map_structure(
                lambda v: _UnquotedText(_format_spec(v)) if isinstance(v, TensorSpec) else v, value
            )
        )

    names = [p[0] for p in parameters] + [f"args_{i}" for i in range(len(args))]
    parts = [f"{n}={format_value(v)}" for n, v in zip(names, args, strict=False)]
    return f"({', '.join([*parts, *(f'{n}={format_value(v)}' for n, v in kwargs.items())])})"


class _UnquotedText(str):
    """Text that `repr` returns without quotes."""

    def __repr__(self) -> str:
        return str(self)


def predict(
    folder: _FolderArgument,
    inputs: Annotated[
        list[str] | None,
        typer.Option("--input", help="Input tensor as name=file.npy, or name=file.npz:key.", metavar="NAME=FILE"),
    ] = None,
    signature: Annotated[
        str, typer.Option(help="Signature to call.")
    ] = DEFAULT_SERVING_SIGNATURE_DEF_KEY,
    out: Annotated[
        str, typer.Option(help="Folder for the results, one .npy file per output.")
    ] = "",
) -> None:  # fmt: skip
    """Call a signature of a saved model with arrays from files, and print or save the results."""
    try:
        signatures = load(folder).signatures
        if signature not in signatures:
            raise ValueError(f"{folder} has no signature {signature!r}: {sorted(signatures)}.")
        specs = signatures[signature].structured_input_signature[1]
        arrays = {
            name: _load_array(file) for name, _, file in (i.partition("=") for i in inputs or [])
        }
        tensors = {
            n: a.astype(_get_numpy_dtype(specs[n])) if n in specs else a for n, a in arrays.items()
        }
        for name, tensor in signatures[signature](**tensors).items():
            value = tensor.numpy()
            if out:
                Path(out).mkdir(parents=True, exist_ok=True)
                saved = np.asarray(value, "S") if value.dtype == object else value
                np.save(Path(out) / f"{name}.npy", saved, allow_pickle=False)
            typer.echo(f"{name}: {_format_spec(TensorSpec(value.shape, as_dtype(value.dtype)))}")
            if not out:
                typer.echo(str(value))
    except (OpError, ImportError, OSError, TypeError, ValueError) as error:
        sys.exit(str(error))


def _get_numpy_dtype(spec: TensorSpec) -> type[Any]:
    return object if spec.dtype.name == "string" else spec.dtype.as_numpy_dtype


def _load_array(source: str) -> np.ndarray:
    """Load an array from a .npy or .npz file without unpickling."""
    stem, _, key = source.partition(".npz:")
    path = f"{stem}.npz" if key else source
    content = np.load(path, allow_pickle=False)
    if isinstance(content, np.ndarray):
        return content
    if key not in content:
        raise ValueError(f"{source}: select an array as {path}:KEY, one of {sorted(content)}.")
    return np.asarray(content[key])
