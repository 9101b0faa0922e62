"""Rows of tables by the kernels are those that XLA's code reads, writes and sums, bit for bit."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshflow as tf
from kernels.beside_xla import both, every_size, marks  # noqa: F401
from meshflow.kernels import library, table_rows

pytestmark = marks(library.SUM_ROWS)


def numbers(shape, rows, dtype):
    """Return row numbers, some repeated and some out of range."""
    return jnp.asarray(np.random.default_rng(1).integers(-3, rows + 3, shape), dtype)


@pytest.mark.parametrize("mode", ["fill", "clip", "promise_in_bounds"])
@pytest.mark.parametrize("index", ["int32", "int64"])
@pytest.mark.parametrize("table, shape", [((5, 3), (40,)), ((300, 65), (6, 7)), ((9, 2, 5), (1,))])
def test_reading(monkeypatch, table, shape, index, mode):
    values = jnp.asarray(np.random.default_rng(0).normal(size=table), "float32")
    chosen = numbers(shape, table[0], index)
    if mode == "promise_in_bounds":
        chosen = jnp.clip(chosen, 0, table[0] - 1)
    # Of numbers that are no row's there are no numbers.
    with jax.debug_nans(False):
        found, plain = both(monkeypatch, lambda t, i: t.at[i].get(mode=mode), values, chosen)
    np.testing.assert_array_equal(found, plain)


@pytest.mark.parametrize("dtype", ["bfloat16", "float64", "int32", "uint8"])
def test_reading_other_types(monkeypatch, dtype):
    values = jnp.asarray(np.arange(60).reshape(12, 5), dtype)
    read = lambda t, i: t.at[i].get(mode="clip")
    found, plain = both(monkeypatch, read, values, numbers((30,), 12, "int32"))
    np.testing.assert_array_equal(found, plain)


@pytest.mark.parametrize("what", ["set", "add"])
@pytest.mark.parametrize("table, shape", [((5, 3), (40,)), ((300, 65), (6, 7)), ((9, 2, 5), (1,))])
def test_writing(monkeypatch, table, shape, what):
    random = np.random.default_rng(0)
    values = jnp.asarray(random.normal(size=table), "float32")
    new = jnp.asarray(random.normal(size=(*shape, *table[1:])), "float32")
    write = lambda t, i, v: getattr(t.at[i], what)(v, mode="drop")
    found, plain = both(monkeypatch, write, values, numbers(shape, table[0], "int64"), new)
    np.testing.assert_array_equal(found, plain)


def test_large_updates_are_divided_among_threads(monkeypatch):
    random = np.random.default_rng(0)
    values = jnp.asarray(random.normal(size=(50, 3001)), "float32")
    new = jnp.asarray(random.normal(size=(400, 3001)), "float32")
    run = lambda t, i, v: (t.at[i].add(v), t.at[i].get(mode="clip"))
    for found, plain in zip(
        *both(monkeypatch, run, values, numbers((400,), 50, "int64"), new), strict=True
    ):
        np.testing.assert_array_equal(found, plain)


def test_earlier_reads_are_not_overwritten():
    table, rows = jnp.zeros((4, 16)), jnp.ones((2, 16))
    old, new = jax.jit(lambda t, i, v: (t, t.at[i].set(v)))(table, jnp.array([0, 3]), rows)
    assert float(old.sum()) == 0
    assert new[:, 0].tolist() == [1, 0, 0, 1]


@pytest.mark.parametrize("index", ["int32", "int64"])
def test_sums(index):
    count, chosen = 7, np.array([3, 9, 3, 0, 7, 3, 8, 0], index)
    rows = np.random.default_rng(0).normal(size=(8, 5)).astype("f4")
    lowered = jax.jit(lambda r, i: table_rows.sum_duplicate_rows(r, i, count)).lower(rows, chosen)
    assert "meshflow_sum_rows" in lowered.as_text()
    different, total = (np.asarray(x) for x in lowered.compile()(rows, chosen))
    assert different.dtype == index
    assert len(set(different.tolist())) == 8
    here = different < count
    assert sorted(different[here]) == [0, 3]
    for number, row in zip(different[here], total[here], strict=True):
        exact = np.zeros(5, "f4")
        for given in rows[chosen == number]:
            exact += given
        np.testing.assert_array_equal(row, exact)


def test_other_forms_use_xla():
    table, index = jnp.ones((6, 8)), jnp.array([1, 2])
    programs = [
        lambda t, i: t[:, i],
        lambda t, i: t[i, 2:5],
        lambda t, i: t.at[i].mul(2.0),
        lambda t, i: t.at[:, i].add(1.0),
        lambda t, i: t.astype("bfloat16").at[i].add(1),
    ]
    for run in programs:
        assert "meshflow" not in jax.jit(run).lower(table, index).as_text()


def test_small_tables_use_xla(monkeypatch):
    monkeypatch.undo()
    run = jax.jit(lambda t, i: t[i])
    assert "meshflow" not in run.lower(jnp.ones((6, 64)), jnp.array([1, 2])).as_text()
    assert "meshflow" not in run.lower(jnp.ones((6, 4)), jnp.zeros(5000, int)).as_text()


def test_derivatives_and_loops_over_examples():
    table = jnp.arange(12.0, dtype=jnp.float32).reshape(4, 3)
    loss = lambda t, i: (t[i] ** 2).sum()
    found = jax.jit(jax.vmap(jax.grad(loss), (None, 0)))(table, jnp.array([[0, 0], [3, 1]]))
    np.testing.assert_array_equal(found[0], [[0, 4, 8], [0, 0, 0], [0, 0, 0], [0, 0, 0]])
    np.testing.assert_array_equal(found[1][1], [6, 8, 10])


def test_by_the_public_names():
    table = tf.Variable(tf.zeros([100, 64]))
    table.scatter_add(tf.IndexedSlices(tf.ones([80, 64]), tf.range(80) // 2))
    found = tf.function(lambda i: tf.gather(table, i))(tf.constant([0, 39, 40]))
    assert found[:, 0].numpy().tolist() == [2, 2, 0]
