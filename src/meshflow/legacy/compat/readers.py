"""Readers of queues of files of TensorFlow 1, which only serve as base classes."""

from __future__ import annotations

from typing import Any

from meshflow.core.runtime.errors import NotAvailableError

_NAMES = [
    "FixedLengthRecordReader",
    "IdentityReader",
    "LMDBReader",
    "ReaderBase",
    "TFRecordReader",
    "TextLineReader",
    "WholeFileReader",
]
__all__ = [*_NAMES]


def _raise_not_available(self: Any, *args: object, **kwargs: object) -> None:
    raise NotAvailableError(
        f"tf.compat.v1.{type(self).__name__}: queues of input files belong to TensorFlow 1's graph mode; use tf.data."
    )


for _name in _NAMES:
    _doc = (
        "Reader of a queue of files.\n\nRaises:\n  NotAvailableError: At construction; use tf.data."
    )
    globals()[_name] = type(
        _name, (), {"__init__": _raise_not_available, "__doc__": _doc, "__module__": __name__}
    )
