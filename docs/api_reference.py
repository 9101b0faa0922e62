"""Writes one page per public namespace, and fails when a public name has no docstring."""

import importlib
import inspect
from pathlib import Path

SPACES = (
    *(
        "meshflow",
        "meshflow.math",
        "meshflow.linalg",
        "meshflow.nn",
        "meshflow.random",
        "meshflow.image",
        "meshflow.signal",
    ),
    *(
        "meshflow.bitwise",
        "meshflow.strings",
        "meshflow.debugging",
        "meshflow.nest",
        "meshflow.errors",
        "meshflow.config",
    ),
    *(
        "meshflow.dtypes",
        "meshflow.io",
        "meshflow.autograph",
        "meshflow.keras",
        "meshflow.keras.layers",
        "meshflow.keras.models",
    ),
    *(
        "meshflow.keras.losses",
        "meshflow.keras.metrics",
        "meshflow.keras.optimizers",
        "meshflow.keras.optimizers.schedules",
    ),
    *(
        "meshflow.keras.callbacks",
        "meshflow.keras.initializers",
        "meshflow.keras.regularizers",
        "meshflow.keras.constraints",
    ),
    *(
        "meshflow.keras.activations",
        "meshflow.keras.mixed_precision",
        "meshflow.keras.datasets",
        "meshflow.keras.utils",
    ),
    *("meshflow.keras.saving", "meshflow.keras.backend"),
)


def write(folder: Path) -> None:
    """Writes all pages to a folder."""
    undocumented = []
    text = ["# Reference\n", "Every public name, by namespace.\n"]
    for space in SPACES:
        module = importlib.import_module(space)
        title = space.replace("meshflow", "tf", 1)
        text += [
            f"\n## {title}\n",
            (inspect.getdoc(module) or "").split("\n\n")[0] + "\n",
            "\n```{eval-rst}\n",
        ]
        for name in module.__all__:
            value = getattr(module, name)
            if not (inspect.isfunction(value) or inspect.isclass(value)):
                continue
            doc = inspect.getdoc(value)
            if not doc:
                undocumented.append(f"{space}.{name}")
                continue
            text += _entry(title, name, value, doc)
        text.append("```\n")
    if undocumented:
        raise SystemExit(f"Public names without a docstring: {undocumented}")
    (folder.parent.parent / "reference.md").write_text("".join(text))


def _entry(title: str, name: str, value: object, doc: str) -> list[str]:
    """One name: its signature and docstring, verbatim."""
    try:
        signature = str(inspect.signature(value)).split(" ->")[0]
    except (TypeError, ValueError):
        signature = "(...)"
    body = "\n".join("    " + line for line in doc.splitlines())
    return [f"\n**{title}.{name}** ``{signature}``\n\n::\n\n{body}\n\n"]
