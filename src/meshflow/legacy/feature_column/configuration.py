"""Serialization of feature columns as configurations of a layer."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

from meshflow.core.values.dtypes import DType, as_dtype
from meshflow.environment.types import Config, Json
from meshflow.keras import initializers, registry, serialization
from meshflow.keras.safe_mode import HeldName, refuse
from meshflow.legacy.feature_column import categorical, crossing, dense, numeric, vocabulary
from meshflow.legacy.feature_column.base import FeatureColumn


@functools.cache
def _classes() -> dict[str, type]:
    """Map the names of column classes to the classes, once their modules are complete."""
    return {
        name: value
        for module in (categorical, crossing, dense, numeric, vocabulary)
        for name, value in vars(module).items()
        if isinstance(value, type) and issubclass(value, FeatureColumn)
    }


# Fields with the name of a file that is read.
_FILES = ("vocabulary_file", "ckpt_to_restore", "ckpt_to_load_from")


def serialize(column: FeatureColumn) -> Config:
    """Serialize a column: `{'class_name': ..., 'config': ...}`.

    Args:
      column: The column.
    """
    fields = {f.name: getattr(column, f.name) for f in dataclasses.fields(column) if f.compare}
    return {
        "class_name": type(column).__name__,
        "config": {name: _plain(value, name) for name, value in fields.items()},
    }


def _plain(value: object, name: str = "") -> Json:
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
    serialized = serialization.legacy(value)
    return HeldName(serialized, value) if isinstance(serialized, str) else serialized


def deserialize_all(
    configs: list[Config | FeatureColumn], custom_objects: Mapping[str, Any] | None = None
) -> list[FeatureColumn]:
    """Deserialize columns; columns that shared a table share one again.

    Args:
      configs: Configurations that `serialize` returned; columns are returned unchanged.
      custom_objects: Functions and classes by name.

    Raises:
      ValueError: If a class or function is unknown, or a file must be read in safe mode.
    """
    tables: dict[str, dict[str, Any]] = {}
    return [_column(config, dict(custom_objects or {}), tables) for config in configs]


def _column(
    config: Mapping[str, Any] | FeatureColumn,
    custom_objects: dict[str, Any],
    tables: dict[str, dict[str, Any]],
) -> FeatureColumn:
    if isinstance(config, FeatureColumn):
        return config
    if config["class_name"] not in _classes():
        raise ValueError(f"Unknown feature column: {config['class_name']}")
    values = {k: _value(k, v, custom_objects, tables) for k, v in config["config"].items()}
    if "collection" in values:
        values["shared"] = tables.setdefault(values["collection"], {})
    column: FeatureColumn = _classes()[config["class_name"]](**values)
    return column


def _value(
    name: str, value: Json, custom_objects: dict[str, Any], tables: dict[str, dict[str, Any]]
) -> Any:
    if isinstance(value, HeldName):
        return value.value
    if name in _FILES and isinstance(value, str):
        refuse(
            f"a feature column with {name}={value!r}",
            "This reads a file that the configuration names.",
        )
    if isinstance(value, Mapping) and value.get("class_name") in _classes():
        return _column(value, custom_objects, tables)
    if isinstance(value, (list, tuple)):
        return tuple(_value("", item, custom_objects, tables) for item in value)
    if name == "dtype":
        return as_dtype(value)
    if name == "initializer":
        return initializers.deserialize(value, custom_objects)
    if name == "normalizer_fn" and value is not None:
        return registry.Family("function").get(value, custom_objects)
    return value
