"""Compare handlers for tables and complete variables with XLA's code."""

import jax
import pytest

from meshflow import kernels
from meshflow.kernels import array_updates, table_rows
from meshflow.kernels.library import Library


def needs(handler):
    """The mark of tests of a handler: they are left out where it is not built."""
    status = kernels.status()
    return pytest.mark.skipif(
        not isinstance(status, Library) or not status.has_handler(handler),
        reason="the CPU kernels are not built here",
    )


def marks(handler):
    """The marks of tests of a handler for any size, beside XLA's code as users get it."""
    return [pytest.mark.usefixtures("every_size"), pytest.mark.optimized, needs(handler)]


@pytest.fixture
def every_size(monkeypatch):
    """Let handlers accept rows, tables and variables of any size."""
    monkeypatch.setattr(table_rows, "MIN_ROW_BYTES", 0)
    monkeypatch.setattr(table_rows, "MIN_TOTAL_BYTES", 0)
    monkeypatch.setattr(array_updates, "MIN_BYTES", 0)


def both(monkeypatch, run, *operands, handler="meshflow_"):
    """Return the results of the handler, which must exist, and of XLA."""
    lowered = jax.jit(run).lower(*operands)
    assert handler in lowered.as_text()
    found = lowered.compile()(*operands)
    monkeypatch.setattr(table_rows, "MIN_ROW_BYTES", 1 << 40)
    monkeypatch.setattr(array_updates, "MIN_BYTES", 1 << 40)
    plain = jax.jit(lambda *o: run(*o)).lower(*operands)
    assert handler not in plain.as_text()
    return found, plain.compile()(*operands)
