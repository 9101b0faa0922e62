"""Descriptions of lookup tables in the manifest, and tables made from them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from meshflow.core.runtime.errors import DataLossError
from meshflow.core.values.dtypes import as_dtype
from meshflow.core.values.tensor import Tensor
from meshflow.lookup.initializers import KeyValueTensorInitializer
from meshflow.lookup.mutable_tables import MutableHashTable
from meshflow.lookup.static_tables import StaticHashTable, StaticVocabularyTable
from meshflow.lookup.table import Table


def describe_table(table: Table) -> dict[str, Any]:
    """Describe a table: its type and dtypes, and arrays with its keys, values and default value.

    Args:
      table: The table.
    """
    description: dict[str, Any] = {"key": table.key_dtype.name, "value": table.value_dtype.name}
    if isinstance(table, StaticVocabularyTable):
        inner_table = table.static_table
        description |= {"table": "vocabulary", "buckets": table.num_oov_buckets}
        return description if inner_table is None else description | _export_content(inner_table)
    table_type = "mutable" if isinstance(table, MutableHashTable) else "static"
    return description | {"table": table_type} | _export_content(table)


def _export_content(table: Any) -> dict[str, np.ndarray]:
    keys, values = (np.asarray(t.array) for t in table.export())
    return {"keys": keys, "values": values, "default": np.asarray(table.default.array)}


def create_table(description: Mapping[str, Any], read: Callable[[str], np.ndarray]) -> Table:
    """Create a table from its description.

    Args:
      description: Result of `describe_table`, with keys of arrays in place of the arrays.
      read: Function that returns the array of a key.

    Raises:
      DataLossError: If the type of the table is unknown.
    """
    arrays = {
        part: read(description[part])
        for part in ("keys", "values", "default")
        if part in description
    }
    initializer = None
    if "keys" in arrays:
        initializer = KeyValueTensorInitializer(Tensor(arrays["keys"]), Tensor(arrays["values"]))
    if description["table"] == "vocabulary":
        return StaticVocabularyTable(
            initializer, description["buckets"], as_dtype(description["key"])
        )
    default = Tensor(arrays["default"])
    if description["table"] == "static":
        return StaticHashTable(initializer, default)
    if description["table"] != "mutable":
        raise DataLossError(f"a table has an unknown type: {description['table']!r}.")
    table = MutableHashTable(as_dtype(description["key"]), as_dtype(description["value"]), default)
    if len(arrays["keys"]):
        table.insert(Tensor(arrays["keys"]), Tensor(arrays["values"]))
    return table
