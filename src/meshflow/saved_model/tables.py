"""Lookup tables in files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from meshflow.core.runtime.errors import DataLossError
from meshflow.core.values.dtypes import as_dtype
from meshflow.core.values.tensor import Tensor
from meshflow.lookup.initializers import KeyValueTensorInitializer
from meshflow.lookup.mutable import MutableHashTable
from meshflow.lookup.static import StaticHashTable, StaticVocabularyTable
from meshflow.lookup.table import Table

__all__ = ["described", "made"]


def described(table: Table) -> dict[str, Any]:
    """What a table is made of: its kind and dtypes, and arrays of keys, values and the default.

    Args:
      table: the table.
    """
    about: dict[str, Any] = {"key": table.key_dtype.name, "value": table.value_dtype.name}
    if isinstance(table, StaticVocabularyTable):
        inner = table._table
        about |= {"table": "vocabulary", "buckets": table._buckets}
        return about if inner is None else about | _content(inner)
    kind = "mutable" if isinstance(table, MutableHashTable) else "static"
    return about | {"table": kind} | _content(table)


def _content(table: Any) -> dict[str, Any]:
    keys, values = (np.asarray(t._value) for t in table.export())
    return {"keys": keys, "values": values, "default": np.asarray(table._default._value)}


def made(about: Mapping[str, Any], read: Callable[[str], np.ndarray]) -> Table:
    """The table that was described.

    Args:
      about: its description, with keys of arrays.
      read: gives the array of a key.

    Raises:
      DataLossError: for a kind of table that is not known.
    """
    arrays = {part: read(about[part]) for part in ("keys", "values", "default") if part in about}
    filled = None
    if "keys" in arrays:
        filled = KeyValueTensorInitializer(Tensor(arrays["keys"]), Tensor(arrays["values"]))
    if about["table"] == "vocabulary":
        return StaticVocabularyTable(filled, about["buckets"], as_dtype(about["key"]))
    default = Tensor(arrays["default"])
    if about["table"] == "static":
        return StaticHashTable(filled, default)
    if about["table"] != "mutable":
        raise DataLossError(f"a table is of a kind that is not known: {about['table']!r}.")
    table = MutableHashTable(as_dtype(about["key"]), as_dtype(about["value"]), default)
    if len(arrays["keys"]):
        table.insert(Tensor(arrays["keys"]), Tensor(arrays["values"]))
    return table
