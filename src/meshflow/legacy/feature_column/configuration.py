"""Columns as configurations of a layer, and back."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

from meshflow.core.values.dtypes import DType, as_dtype
from meshflow.keras import initializers, registry, serialization
from meshflow.keras.safe_mode import HeldName, refuse
from meshflow.legacy.feature_column import categorical, crossing, dense, numeric, vocabulary
from meshflow.legacy.feature_column.base import FeatureColumn


@functools.cache
def _classes() -> dict[str, type]:
    """The columns that configurations name, once their modules are complete."""
    return {
        name: value
        for module in (categorical, crossing, dense, numeric, vocabulary)
        for name, value in vars(module).items()
        if isinstance(value, type) and issubclass(value, FeatureColumn)
    }


# Fields that say which file to read.
_FILES = ("vocabulary_file", "ckpt_to_restore", "ckpt_to_load_from")


def serialize(column: FeatureColumn) -> dict[str, Any]:
    """The configuration of a column: `{'class_name': ..., 'config': ...}`.

    Args:
      column: the column.
    """
    fields = {f.name: getattr(column, f.name) for f in dataclasses.fields(column) if f.compare}
    return {
        "class_name": type(column).__name__,
        "config": {name: _plain(value, name) for name, value in fields.items()},
    }


def _plain(value: Any, name: str = "") -> Any:
    if isinstance(value, FeatureColumn):
        return serialize(value)
    if isinstance(value, DType):
        return value.name
    if isinstance(value, str) and name in _FILES:
        return HeldName(value, value)
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if not callable(value):
        return value
    made = serialization.legacy(value)
    return HeldName(made, value) if isinstance(made, str) else made


def deserialize_all(
    configs: list[Any], custom_objects: Mapping[str, Any] | None = None
) -> list[FeatureColumn]:
    """The columns of configurations; those that shared a table share one again.

    Args:
      configs: what `serialize` gave; columns stay.
      custom_objects: functions and classes by name.

    Raises:
      ValueError: for an unknown class or function, or in safe mode for a file that is to be read.
    """
    tables: dict[str, dict[str, Any]] = {}
    return [_column(config, dict(custom_objects or {}), tables) for config in configs]


def _column(config: Any, known: dict[str, Any], tables: dict[str, dict[str, Any]]) -> FeatureColumn:
    if isinstance(config, FeatureColumn):
        return config
    if config["class_name"] not in _classes():
        raise ValueError(f"Unknown feature column: {config['class_name']}")
    values = {k: _value(k, v, known, tables) for k, v in config["config"].items()}
    if "collection" in values:
        values["shared"] = tables.setdefault(values["collection"], {})
    made: FeatureColumn = _classes()[config["class_name"]](**values)
    return made


def _value(name: str, value: Any, known: dict[str, Any], tables: dict[str, dict[str, Any]]) -> Any:
    if isinstance(value, HeldName):
        return value.value
    if name in _FILES and isinstance(value, str):
        refuse(
            f"a feature column with {name}={value!r}",
            "This reads a file that the configuration names.",
        )
    if isinstance(value, Mapping) and value.get("class_name") in _classes():
        return _column(value, known, tables)
    if isinstance(value, (list, tuple)):
        return tuple(_value("", item, known, tables) for item in value)
    if name == "dtype":
        return as_dtype(value)
    if name == "initializer":
        return initializers.deserialize(value, known)
    if name == "normalizer_fn" and value is not None:
        return registry.Family("function").get(value, known)
    return value
