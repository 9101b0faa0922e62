"""Primitives that move, reduce and index elements, next to XLA."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from interpreter.comparison import check

RANDOM = np.random.RandomState(0)
X = RANDOM.randn(3, 4, 5).astype(np.float32)
NAN = np.where(RANDOM.rand(3, 4, 5) < 0.1, np.nan, X).astype(np.float32)


def test_shapes():
    def run(x):
        return [
            lax.transpose(x, (2, 0, 1)),
            lax.reshape(x, (5, 12)),
            lax.reshape(x, (5, 12), (2, 1, 0)),
            lax.rev(x, (0, 2)),
            lax.slice(x, (1, 0, 1), (3, 4, 5), (1, 2, 3)),
            lax.pad(x, np.float32(2), [(1, 2, 0), (-1, 0, 2), (0, -2, 1)]),
            lax.pad(x, np.float32(2), [(-3, 1, 0), (0, 0, 0), (-2, -2, 0)]),
            lax.broadcast_in_dim(x, (2, 3, 4, 6, 5), (1, 2, 4)),
            lax.broadcast_in_dim(x[:, :1, 0], (3, 7), (0, 1)),
            lax.squeeze(x[:1], (0,)),
            lax.expand_dims(x, (1, 3)),
            lax.concatenate([x, x[:, 1:]], 1),
            *lax.split(x, (1, 0, 3), 1),
            lax.iota(np.int8, 300),
            lax.broadcasted_iota(np.float32, (2, 3), 0),
            jnp.stack([x, x], 2),
            jnp.tile(x, (2, 1, 3)),
            x,
            x,
            lax.full((2, 0), 1.0),
        ]

    check(run, X)


def test_views_are_copied():
    check(lambda x: (x.T, x[1], x.reshape(-1), x[0].T, jnp.broadcast_to(x, (2, 3, 4, 5))), X)
    check(lambda x: (lambda y: (y, y.T, y.reshape(-1), y + 1, y))(x * 2), X)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64", "int32", "uint8", "bool"])
def test_reductions(dtype):
    x = (
        (NAN if dtype != "bool" else X > 0).astype(jnp.dtype(dtype))
        if dtype[0] in "fb"
        else (X * 9).astype(jnp.dtype(dtype))
    )
    names = (
        ["reduce_or", "reduce_and"]
        if dtype == "bool"
        else ["reduce_max", "reduce_min", "reduce_sum", "reduce_prod"]
    )

    def run(x):
        found = [
            getattr(lax, n)(x, axes) for n in names for axes in [(0,), (1, 2), (0, 1, 2), (2,), ()]
        ]
        found += [getattr(lax, n)(x[:0], (0,)) for n in names]
        if dtype != "bool":
            found += [
                f(x, axis, reverse=r)
                for f in (lax.cumsum, lax.cumprod, lax.cummax, lax.cummin)
                for axis in (0, 2)
                for r in (False, True)
            ]
            found += [f(x, axis, np.int32) for f in (lax.argmax, lax.argmin) for axis in (0, 2)]
        if dtype == "float32":
            found += [
                lax.cumlogsumexp(x, 1),
                lax.reduce(x, np.float32(1), lambda a, b: a * b + 1, (1,)),
            ]
        return found

    check(run, x, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32", "uint8"])
def test_sorts(dtype):
    x = (NAN if dtype[0] in "fb" else X * 3).astype(jnp.dtype(dtype))
    zeros = np.array([0.0, -0.0, np.nan, -np.inf, np.inf, -np.nan], np.float32)

    def run(x, zeros):
        index = lax.broadcasted_iota(np.int32, x.shape, 2)
        return [
            lax.sort(x, 0),
            *lax.sort([x, index], 2),
            *lax.sort([index, x], 1, num_keys=2),
            *lax.top_k(x, 3),
            *lax.approx_min_k(zeros, 2),
            lax.sort(zeros),
            jnp.argsort(zeros),
            jnp.searchsorted(lax.sort(zeros), zeros),
        ]

    check(run, x.astype(np.float32).astype(x.dtype), zeros)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "uint32", "int8", "int64"])
def test_largest_elements_of_long_rows(dtype):
    """Test rows of which few elements are requested, with equal elements, NaN and both zeros."""
    x = (RANDOM.randn(6, 40) * 4).round().astype(np.dtype(dtype))
    if dtype[0] == "f":
        x[:, 3::11], x[3, 7], x[4], x[5, ::2] = np.nan, np.inf, -np.inf, -0.0
    rank = lambda x: jnp.where(x == 0, 0, x)  # XLA orders zeros by their sign in `top_k`.
    check(lambda x: [*lax.top_k(rank(x), 2), *lax.top_k(rank(x), 30), jnp.argsort(x, 0)], x)
    check(lambda x: [lax.sort(x, 1), *lax.sort([x, x], 0, num_keys=1)], x)


def test_conversions_to_integers_and_extrema_of_large_arrays():
    x = (RANDOM.randn(40, 50) * 1e3).astype(np.float32)
    special = x.copy()
    special[0, :6] = np.nan, np.inf, -np.inf, 3e9, -3e9, -0.0

    def run(x):
        limits = [jnp.maximum(x, 0.5), jnp.minimum(0.5, x), jnp.maximum(x, jnp.float32(np.nan))]
        names = ["int8", "uint8", "int32", "uint32", "int64"]
        return [*limits, *[lax.convert_element_type(x, name) for name in names]]

    check(run, x)
    check(run, special)


MODES = ["clip", "fill", "promise_in_bounds"]


@pytest.mark.parametrize("mode", MODES)
def test_gathers_of_one_slice(mode):
    """Test slices at computed places, inside and outside of the array, and repeated scalars."""
    starts = [[0, 1], [1, 2]] if mode == "promise_in_bounds" else [[0, 1], [2, 2], [-1, 0], [9, 9]]

    def run(x, starts):
        found = [lax.broadcast_in_dim(x[0, 0, 0], (2, 3), ()) + x[:2, :3, 1]]
        for start in starts:
            full = lax.GatherDimensionNumbers((0, 1, 2), (), (0, 2))
            found.append(lax.gather(x, start, full, (2, 4, 2), mode=mode))
            plane = lax.GatherDimensionNumbers((0, 1), (1,), (1, 2))
            found.append(lax.gather(x, start, plane, (3, 1, 3), mode=mode))
        return found

    check(run, X, [np.array(start) for start in starts])
    check(run, X.astype(np.int8), [np.array(start) for start in starts])


@pytest.mark.parametrize("mode", MODES)
def test_gathers_of_large_slices(mode):
    x = np.arange(3 * 8 * 9 * 2, dtype=np.float32).reshape(3, 8, 9, 2)
    starts = (
        np.array([[0, 2], [3, 1], [1, 4]])
        if mode[0] == "p"
        else np.array([[0, 2], [9, 1], [-1, 4]])
    )

    def run(x, starts):
        numbers = lax.GatherDimensionNumbers((0, 1, 2), (), (0, 1))
        take = lambda part, start: lax.gather(part, start, numbers, (5, 4, 2), mode=mode)
        return [jax.vmap(take)(x, starts), jax.vmap(take, (None, 0), 2)(x[0], starts)]

    check(run, x, starts)
    check(run, x.swapaxes(1, 2)[:, ::-1], starts)


@pytest.mark.parametrize("mode", MODES)
def test_gathers(mode):
    rows = np.array([[0, 2], [1, 1]], np.int32) if mode[0] == "p" else np.array([[0, 7], [-9, 2]])

    def run(x, rows):
        found = [
            x.at[rows].get(mode=mode),
            x.at[:, rows].get(mode=mode),
            x.at[rows, 1].get(mode=mode),
            x.at[rows, :, rows].get(mode=mode),
            x[1:].at[0, rows].get(mode=mode),
            (x * 9).astype(np.int32).at[rows].get(mode=mode),
            (x > 0).at[rows].get(mode=mode),
            x[:0].at[rows[:0]].get(mode=mode),
            x.at[rows].get(mode=mode, fill_value=3.0) if mode == "fill" else rows,
            jax.vmap(lambda a, i: a.at[i].get(mode=mode))(x[:2], rows),
            jnp.take_along_axis(x[:2, :2, 0], rows, 1, mode=mode),
            lax.dynamic_slice(x, (rows[0, 0], rows[0, 1], rows[1, 0]), (2, 3, 1)),
            lax.dynamic_update_slice(x, x[:2, :1] + 1, (rows[0, 1], rows[1, 0], rows[1, 1])),
            lax.dynamic_index_in_dim(x, rows[0, 1], 1),
        ]
        numbers = lax.GatherDimensionNumbers((0, 2), (1,), (2, 0))
        found.append(lax.gather(x, rows % 2, numbers, (2, 1, 3), mode=mode))
        return found

    check(run, X, rows)


@pytest.mark.parametrize("mode", ["clip", "fill", "promise_in_bounds"])
@pytest.mark.parametrize("name", ["set", "add", "multiply", "min", "max"])
def test_scatters(mode, name):
    rows = (
        np.array([2, 0, 1])
        if mode[0] == "p" or name == "set"
        else np.array([2, -7, 1, 9, 2, 0, 0, 1, 2, 2])
    )
    if name == "set" and mode == "fill":
        rows = np.array([1, 9])

    def run(x, rows):
        n = len(rows)
        update = lambda a, i, u: getattr(a.at[i], name)(u, mode=mode)
        columns = jnp.arange(n) % 4
        return [
            update(x, rows, jnp.arange(n * 20.0, dtype=x.dtype).reshape(n, 4, 5)),
            update(x, (slice(None), rows), x[:, :1] + 1),
            update(x, (rows, columns), x[0, :1, :] * 2),
            update(x[:, 0, 0], rows, x[0, 0, 0]),
            update(x.transpose(0, 2, 1), rows, 2.0),
            update((x * 9).astype(np.int32), rows[:1], 3),
            update(x.astype(jnp.bfloat16), rows, 3.0),
            update(x[:, :, 0], (slice(0, 2), slice(1, 3)), 5.0),
            update(x, rows[:0], x[:0]),
            jax.vmap(lambda a, i: update(a, i, 1.5))(x, jnp.stack([rows] * 3)),
        ]

    check(run, X, rows, rtol=1e-4)


def test_loops_and_branches():
    def run(x, n):
        def step(carry, row):
            total, count = carry
            return (total + row, count + 1), (row * count, total)

        def rotate(values):
            index, a, b = values
            return index + 1, b, a + 1

        return [
            lax.scan(step, (jnp.zeros((4, 5)), 0), x),
            lax.scan(step, (jnp.zeros((4, 5)), 0), x, reverse=True),
            lax.scan(lambda c, _: (c * 2, None), x[0], None, length=3),
            lax.scan(lambda c, r: (c, r), x[0], x),
            lax.scan(step, (jnp.zeros((4, 5)), 0), x[:0]),
            lax.while_loop(lambda v: v[0] < n, rotate, (0, x[0], x[1])),
            lax.fori_loop(0, 4, lambda i, a: a * i + 1, x),
            jax.vmap(lambda v: lax.while_loop(lambda s: s < 10, lambda s: s * 2, v))(
                n + jnp.arange(1, 4)
            ),
            lax.cond(n > 2, lambda a: (a, a + 1), lambda a: (a - 1, a), x),
            lax.switch(n, [lambda a: a, lambda a: a * 2, lambda a: a * 3], x),
            lax.switch(n - 9, [lambda a: a, lambda a: a * 2], x),
            lax.associative_scan(jnp.add, x[:, 0, 0]),
        ]

    check(run, X, np.int32(3))


def test_custom_derivatives_and_calls():
    @jax.custom_vjp
    def double(x):
        return x * 2

    double.defvjp(lambda x: (double(x), None), lambda _, g: (g * 3,))
    loss = lambda x: jnp.sum(jax.nn.relu(double(x)) * jax.nn.gelu(x) + jax.nn.softmax(x))
    check(lambda x: jax.value_and_grad(jax.checkpoint(loss))(x), X, rtol=1e-4)
    check(
        lambda x: jax.pure_callback(
            lambda a: np.asarray(a) + 1, jax.ShapeDtypeStruct(x.shape, x.dtype), x
        ),
        X,
    )


def test_linear_algebra():
    a = RANDOM.randn(2, 4, 4).astype(np.float32)
    spd = a @ a.transpose(0, 2, 1) + np.eye(4, dtype=np.float32)
    bad = np.stack([spd[0], -spd[1]])

    def run(a, spd, bad):
        b = a[:, :, :2]
        return [
            lax.linalg.cholesky(spd),
            jnp.isnan(lax.linalg.cholesky(bad)),
            jnp.linalg.qr(a[:, :, :3]),
            jnp.linalg.qr(a, "complete"),
            lax.linalg.lu(a),
            jnp.linalg.solve(a, b),
            jnp.linalg.inv(a),
            jnp.linalg.det(a),
            jnp.linalg.slogdet(a),
            jnp.linalg.eigh(spd),
            jnp.linalg.svd(a[:, :3], full_matrices=False),
            jnp.linalg.svd(a, compute_uv=False),
            *(
                lax.linalg.triangular_solve(
                    spd, s, left_side=l, lower=w, transpose_a=t, unit_diagonal=u
                )
                for l, s in ((True, b), (False, b.transpose(0, 2, 1)))
                for w in (True, False)
                for t in (True, False)
                for u in (True, False)
            ),
            lax.linalg.tridiagonal_solve(a[:, 0], a[:, 1] + 9, a[:, 2], b),
            # A zero on the diagonal requires an exchange of rows.
            lax.linalg.tridiagonal_solve(a[:, 0], a[:, 1].at[:, 0].set(0), a[:, 2], b),
            jnp.fft.rfft2(a),
            jnp.fft.irfft(a + 0j, 5),
            jnp.fft.ifft(a),
        ]

    check(run, a, spd, bad, rtol=1e-3, atol=1e-4)
