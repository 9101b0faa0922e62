"""Columns as configurations of a layer, and back."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from meshflow.core.dtypes import DType, as_dtype
from meshflow.feature_column import categorical, crossing, dense, numeric, vocabulary
from meshflow.feature_column.base import FeatureColumn

_CLASSES: dict[str, type] = {
    name: value
    for module in (categorical, crossing, dense, numeric, vocabulary)
    for name, value in vars(module).items()
    if isinstance(value, type) and issubclass(value, FeatureColumn)
}


def serialize(column: FeatureColumn) -> dict[str, Any]:
    """The configuration of a column: `{'class_name': ..., 'config': ...}`.

    Args:
      column: the column.
    """
    fields = {f.name: getattr(column, f.name) for f in dataclasses.fields(column) if f.compare}
    return {
        "class_name": type(column).__name__,
        "config": {name: _plain(value) for name, value in fields.items()},
    }


def _plain(value: Any) -> Any:
    if isinstance(value, FeatureColumn):
        return serialize(value)
    if isinstance(value, DType):
        return value.name
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if not callable(value):
        return value
    from meshflow.keras import identify

    return identify.serialize(value)


def deserialize_all(
    configs: list[Any], custom_objects: Mapping[str, Any] | None = None
) -> list[FeatureColumn]:
    """The columns of configurations; those that shared a table share one again.

    Args:
      configs: what `serialize` gave; columns stay.
      custom_objects: functions and classes by name.

    Raises:
      ValueError: for an unknown class or function.
    """
    tables: dict[str, dict[str, Any]] = {}
    return [_column(config, dict(custom_objects or {}), tables) for config in configs]


def _column(config: Any, known: dict[str, Any], tables: dict[str, dict[str, Any]]) -> FeatureColumn:
    if isinstance(config, FeatureColumn):
        return config
    if config["class_name"] not in _CLASSES:
        raise ValueError(f"Unknown feature column: {config['class_name']}")
    values = {k: _value(k, v, known, tables) for k, v in config["config"].items()}
    if "collection" in values:
        values["shared"] = tables.setdefault(values["collection"], {})
    made: FeatureColumn = _CLASSES[config["class_name"]](**values)
    return made


def _value(name: str, value: Any, known: dict[str, Any], tables: dict[str, dict[str, Any]]) -> Any:
    from meshflow.keras import identify, initializers

    if isinstance(value, Mapping) and value.get("class_name") in _CLASSES:
        return _column(value, known, tables)
    if isinstance(value, (list, tuple)):
        return tuple(_value("", item, known, tables) for item in value)
    if name == "dtype":
        return as_dtype(value)
    if name == "initializer":
        return initializers.deserialize(value, known)
    if name == "normalizer_fn" and value is not None:
        return identify.lookup(value, {}, "function", known)
    return value
