"""Handlers for tables and for whole variables beside XLA's own code."""

import jax
import pytest

from meshflow.kernels import renewals, table_rows


@pytest.fixture
def every_size(monkeypatch):
    """Handlers take rows, tables and variables of any size."""
    monkeypatch.setattr(table_rows, "LEAST_ROW", 0)
    monkeypatch.setattr(table_rows, "LEAST_SIZE", 0)
    monkeypatch.setattr(renewals, "LEAST_SIZE", 0)


def both(monkeypatch, run, *operands, handler="meshflow_"):
    """The result by the handler, which must be there, and by XLA."""
    lowered = jax.jit(run).lower(*operands)
    assert handler in lowered.as_text()
    found = lowered.compile()(*operands)
    monkeypatch.setattr(table_rows, "LEAST_ROW", 1 << 40)
    monkeypatch.setattr(renewals, "LEAST_SIZE", 1 << 40)
    plain = jax.jit(lambda *o: run(*o)).lower(*operands)
    assert handler not in plain.as_text()
    return found, plain.compile()(*operands)
