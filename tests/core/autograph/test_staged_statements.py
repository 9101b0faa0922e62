"""`if`, `while`, `for` and friends on symbolic tensors, inside `tf.function`."""

from __future__ import annotations

import collections
import re

import numpy as np
import pytest

import meshflow as tf


def run(function, *values):
    """The result of a staged call, as Python values."""
    result = tf.function(function)(*(tf.constant(v) for v in values))
    return tf.nest.map_structure(lambda t: t.numpy().tolist() if tf.is_tensor(t) else t, result)


def line_of(function, offset):
    return f"{re.escape(__file__)}:{function.__code__.co_firstlineno + offset}"


# ---- branches -----------------------------------------------------------------------------------


def test_if_returns_structures():
    Pair = collections.namedtuple("Pair", "a b")

    def f(x):
        if x > 0:
            result = {"k": [x, 2 * x], "p": Pair(1, x)}
        else:
            result = {"k": [-x, x], "p": Pair(2, 0)}
        return result

    assert run(f, 3) == {"k": [3, 6], "p": Pair(1, 3)}
    assert run(f, -3) == {"k": [3, -3], "p": Pair(2, 0)}


def test_equal_python_values_remain_python_values():
    kinds = []

    def f(x):
        if x > 0:
            axis, name, y = 0, "a", x
        else:
            axis, name, y = 0, "a", -x
        kinds.append((axis, name))
        return y

    assert run(f, -2) == 2
    assert kinds == [(0, "a")]


def test_numbers_get_the_dtype_of_the_other_branch():
    def f(x):
        if x > 0:
            y = 1
        else:
            y = x * 0.5
        return y

    assert run(f, 3.0) == 1.0
    assert tf.function(f)(tf.constant(3.0)).dtype == tf.float32


def test_early_returns():
    def f(x):
        if x > 10:
            return x, "big"[0] == "b"
        if x > 5:
            for i in tf.range(4):
                if i == x - 6:
                    return i, False
        return -x, True

    assert [run(f, v) for v in (11, 7, 10, 1)] == [
        [11, True],
        [1, False],
        [-10, True],
        [-1, True],
    ] or [run(f, v) for v in (11, 7, 10, 1)] == [(11, True), (1, False), (-10, True), (-1, True)]


def test_variable_only_used_in_one_branch():
    def f(x):
        if x > 0:
            half = x // 2
            y = half + 1
        else:
            y = x
        return y

    assert run(f, 8) == 5


def test_attributes_and_items_assigned_in_branches():
    class Holder:
        pass

    holder, table = Holder(), {"a": 1, "b": 0}
    holder.value = tf.constant(0)

    def f(x):
        if x > 0:
            holder.value = x
            table["a"] = x * 2
        result = holder.value + table["a"]
        holder.value, table["a"] = 0, 1
        return result

    assert run(f, 4) == 12
    assert run(f, -4) == 1
    assert holder.value == 0 and table == {"a": 1, "b": 0}


def test_objects_are_restored_after_an_error():
    class Holder:
        value = 1

    holder = Holder()

    def f(x):
        if x > 0:
            holder.value = x
            y = tf.constant([1, 2])
        else:
            y = tf.constant([[1, 2]])
        return y

    with pytest.raises(TypeError, match="same shape"):
        run(f, 1)
    assert holder.value == 1


def test_lists_changed_in_both_branches():
    def f(x):
        items = [x]
        if x > 0:
            items.append(x * 2)
        else:
            items.append(0)
        items.append(7)
        return items

    assert run(f, 3) == [3, 6, 7]
    assert run(f, -3) == [-3, 0, 7]


def test_variables_written_in_branches():
    v, w = tf.Variable(1), tf.Variable(10)

    @tf.function
    def f(x):
        if x > 0:
            v.assign_add(x)
        else:
            w.assign(v * 2)
        return v + w

    assert int(f(tf.constant(5))) == 16
    assert int(f(tf.constant(-1))) == 18
    assert (int(v), int(w)) == (6, 12)


def test_nested_tf_functions_and_methods():
    class Model:
        def __init__(self):
            self.v = tf.Variable(2.0)

        @tf.function
        def call(self, x, training):
            if training and tf.reduce_sum(x) > 0:
                return x * self.v
            return self.inner(x)

        @tf.function
        def inner(self, x):
            return x if x[0] < 0 else -x

    model = Model()
    assert model.call(tf.constant([1.0]), True).numpy().tolist() == [2.0]
    assert model.call(tf.constant([1.0]), False).numpy().tolist() == [-1.0]


def test_conditional_expressions_and_logic():
    def f(x, y):
        a = x if x > y else y
        b = (x > 0 and y > 0) or not x < 5
        c = 0 < x < y
        return a, b, c, x > 0 and True, False or y > 0

    cases = [(1, 2), (-1, 3), (7, -7)]
    for case in cases:
        assert list(run(f, *case)) == list(f(*case))


def test_known_tensors_are_python_conditions():
    traced = []

    def f(x):
        if tf.shape(x)[0] > 2:
            traced.append("long")
            return x[:2]
        traced.append("short")
        return x

    assert run(f, [1, 2, 3]) == [1, 2]
    assert traced == ["long"]


# ---- loops --------------------------------------------------------------------------------------


def test_while_changes_several_variables():
    def collatz(n):
        steps = 0
        top = n
        while n != 1:
            if n % 2 == 0:
                n = n // 2
            else:
                n = 3 * n + 1
            top = max(top, n)
            steps += 1
        return steps, top

    assert list(run(collatz, 27)) == list(collatz(27)) == [111, 9232]


def test_nested_loops_with_jumps():
    def f(n):
        total = 0
        for i in tf.range(n):
            if i % 2 == 0:
                continue
            j = 0
            while True:
                j += 1
                if j > i:
                    break
                if j == 4:
                    return total, i
                total += i * j
        return total, -1

    def expected(n):
        total = 0
        for i in range(n):
            if i % 2 == 0:
                continue
            j = 0
            while True:
                j += 1
                if j > i:
                    break
                if j == 4:
                    return total, i
                total += i * j
        return total, -1

    for n in (0, 2, 4, 9):
        assert tuple(run(f, n)) == expected(n)


def test_for_over_a_tensor_and_enumerate_and_zip():
    def f(x, y):
        total = tf.zeros([2])
        for row in x:
            total += row
        for i, row in enumerate(x, 1):
            total += row * tf.cast(i, tf.float32)
        for a, b in zip(x, y):
            total += a * b
        return total

    x, y = np.arange(6.0).reshape(3, 2).astype("float32"), np.ones((4, 2), "float32")
    expected = x.sum(0) + (x * np.arange(1, 4)[:, None]).sum(0) + x.sum(0)
    np.testing.assert_allclose(run(f, x, y), expected)


def test_for_over_ranges_known_and_unknown():
    def f(n):
        a = b = c = d = 0
        for i in tf.range(n):
            a += i
        for i in range(n):
            b += i
        for i in tf.range(2, n, 3):
            c += i
        for i in tf.range(n, 0, -2):
            d += i
        return a, b, c, d

    for n in (0, 1, 7, 10):
        expected = [sum(range(n)), sum(range(n)), sum(range(2, n, 3)), sum(range(n, 0, -2))]
        assert list(run(f, n)) == expected


def test_ranges_of_floats_and_with_a_dtype():
    def f(x):
        total = 0.0
        for v in tf.range(0.0, x, 0.5):
            total += v
        count = tf.constant(0, tf.int64)
        for i in tf.range(tf.cast(x, tf.int32), dtype=tf.int64):
            count += i
        return total, count

    assert tuple(run(f, 2.2)) == (0.0 + 0.5 + 1.0 + 1.5 + 2.0, 1)


def test_python_ranges_are_unrolled():
    traced = []

    def f(x):
        outputs = []
        for i in range(3):
            traced.append(i)
            outputs.append(x * i)
        return outputs

    assert run(f, 2) == [0, 2, 4]
    assert traced == [0, 1, 2]


def test_tensor_loops_are_traced_once():
    traced = []

    def f(x):
        for _ in tf.range(1000):
            traced.append(1)
            x = x + 1
        return x

    assert run(f, 0) == 1000
    assert traced == [1]


def test_variable_first_set_in_a_loop_and_used_after():
    def f(n):
        for i in tf.range(n):
            last = i * 2
        return last

    def known(x):
        for row in x:
            last = row * 2
        return last

    assert run(f, 5) == 8
    assert run(known, [1, 2, 3]) == 6


def test_none_before_a_loop_that_always_runs():
    def f(x):
        loss = None
        for row in x:
            loss = row * 2
        return loss

    assert run(f, [1, 2]) == 4


def test_break_on_a_tensor_in_a_python_loop():
    def f(x):
        for i in [1, 2, 3, 4]:
            x = x + i
            if x > 5:
                break
        else:
            x = -x
        return x, i

    for value in (0, 3, -100, 9):
        expected = f(value)
        assert tuple(run(f, value)) == expected


def test_while_true_with_break_on_a_tensor():
    def f(x):
        count = 0
        while True:
            x = x * 2
            count += 1
            if x > 100:
                break
        return x, count

    assert tuple(run(f, 3)) == (192, 6)


def test_while_true_with_return():
    def f(x):
        while True:
            x = x * 2
            if x > 100:
                return x

    assert run(f, 3) == 192


def test_known_tensors_may_change_shape_in_a_while_loop():
    def f(x):
        while tf.size(x) > 1:
            x = x[::2] + x[1::2]
        return x

    assert run(f, [1, 2, 3, 4, 5, 6, 7, 8]) == [36]


def test_known_counters_do_not_unroll_long_loops():
    traced = []

    def f(x):
        i = tf.constant(0)
        while i < 500:
            traced.append(1)
            i += 1
            x = x + 1
        return x

    assert run(f, 0) == 500
    assert len(traced) < 30


def test_maximum_iterations():
    def f(n):
        i = 0
        while i < n:
            tf.autograph.experimental.set_loop_options(maximum_iterations=3)
            i += 1
        k = 0
        for k in tf.range(n):
            tf.autograph.experimental.set_loop_options(maximum_iterations=2, parallel_iterations=1)
            i += 10
        return i, k

    assert tuple(run(f, 10)) == (23, 1)


def test_variables_written_in_loops():
    v = tf.Variable(0)
    w = tf.Variable([0.0, 0.0])

    @tf.function
    def f(x):
        for i in tf.range(3):
            v.assign_add(i)
            if v > 1:
                w.assign_add(x)
        while v < 20:
            v.assign(v * 2)
        return v.read_value()

    assert int(f(tf.constant([1.0, 2.0]))) == 24
    assert w.numpy().tolist() == [1.0, 2.0]


def test_list_item_and_attribute_carried_by_a_loop():
    class Holder:
        total = 0

    holder = Holder()

    def f(n):
        parts = [0, 0]
        for i in tf.range(n):
            parts[0] += i
            holder.total = holder.total + 1
            parts[1] = parts[0] * 2
        result = [*parts, holder.total]
        holder.total = 0
        return result

    assert run(f, 4) == [6, 12, 4]


def test_training_loop_with_a_tape_inside():
    v = tf.Variable(5.0)

    @tf.function
    def train(steps):
        loss = tf.constant(0.0)
        for _ in tf.range(steps):
            with tf.GradientTape() as tape:
                loss = (v - 2.0) ** 2
            v.assign_sub(0.1 * tape.gradient(loss, v))
        return loss

    value, expected = 5.0, 0.0
    for _ in range(4):
        expected = (value - 2) ** 2
        value -= 0.2 * (value - 2)
    assert float(train(tf.constant(4))) == pytest.approx(expected, rel=1e-5)
    assert float(v) == pytest.approx(value, rel=1e-5)


def test_int_float_bool_max_any():
    def f(x):
        if any(x > 3) and not all(x > 0):
            y = float(max(x)) + 0.5
        else:
            y = float(int(min(x[0], 2)))
        return y, bool(x[0])

    assert tuple(run(f, [0, 5])) == (5.5, False)
    assert tuple(run(f, [1, 2])) == (1.0, True)


def test_assert_on_a_tensor():
    def f(x):
        assert x > 0, "must be positive"
        return x

    assert run(f, 2) == 2


def test_iterable_with_its_own_rule():
    from meshflow.core.staging.loops import LoopElements

    class Squares:
        def __init__(self, n):
            self.n = n

        def __autograph_for__(self):
            return LoopElements(self.n, lambda i: {"value": i * i})

        def __iter__(self):
            raise AssertionError("staged loops do not iterate")

    squares = Squares(4)

    def f(x):
        for item in squares:
            x += item["value"]
        for i, item in enumerate(squares):
            if i > 2:
                break
            x += item["value"] * i
        return x

    assert run(f, 0) == (0 + 1 + 4 + 9) + (0 + 1 + 8)


# ---- gradients ----------------------------------------------------------------------------------


def numerical(function, x, step=1e-6):
    gradient = np.zeros_like(x)
    for i in np.ndindex(x.shape):
        up, down = x.copy(), x.copy()
        up[i] += step
        down[i] -= step
        gradient[i] = (float(function(tf.constant(up))) - float(function(tf.constant(down)))) / (
            2 * step
        )
    return gradient


def newton(x):
    y = tf.ones_like(x)
    while tf.reduce_max(tf.abs(y * y - x)) > 1e-10:
        y = (y + x / y) / 2
    return tf.reduce_sum(y)


def polynomial(x):
    total = tf.zeros([], tf.float64)
    for i in tf.range(5):
        if i % 2 == 0:
            total += tf.reduce_sum(x ** tf.cast(i, tf.float64))
        else:
            total -= tf.reduce_prod(x)
    return total


def stopped(x):
    total = tf.zeros([], tf.float64)
    for row in x:
        if row > 2.5:
            break
        total = total * row + tf.sin(row)
    return total


def chosen(x):
    if tf.reduce_sum(x) > 3:
        y = x * x
        return tf.reduce_sum(y * x)
    return tf.reduce_sum(tf.exp(x))


@pytest.mark.parametrize("function", [newton, polynomial, stopped, chosen])
@pytest.mark.parametrize("x", [[1.5, 2.0, 0.3], [1.0, 3.0, 0.7]])
def test_gradients_agree_with_finite_differences(function, x):
    x = np.array(x)
    staged = tf.function(function)
    tensor = tf.constant(x)
    with tf.GradientTape() as outer:
        outer.watch(tensor)
        with tf.GradientTape() as tape:
            tape.watch(tensor)
            value = staged(tensor)
        gradient = tape.gradient(value, tensor)
    np.testing.assert_allclose(gradient.numpy(), numerical(staged, x), rtol=1e-5, atol=1e-7)

    @tf.function
    def inside(t):
        with tf.GradientTape() as tape:
            tape.watch(t)
            value = function(t)
        return tape.gradient(value, t)

    np.testing.assert_allclose(inside(tensor).numpy(), gradient.numpy(), rtol=1e-9)
    second = outer.gradient(gradient, tensor).numpy()
    expected = numerical(lambda t: tf.reduce_sum(inside(t)), x)
    np.testing.assert_allclose(second, expected, rtol=1e-4, atol=1e-6)


# ---- errors -------------------------------------------------------------------------------------


def test_error_variable_missing_in_a_branch():
    def f(x):
        if x > 0:
            y = 1
        return y

    def g(x):
        if x > 0:
            pass
        else:
            y = x
        return y

    with pytest.raises(
        ValueError, match=f"'y' must also be initialized in the else branch.*{line_of(f, 1)}"
    ):
        run(f, 1)
    with pytest.raises(
        ValueError, match=f"'y' must also be initialized in the main branch.*{line_of(g, 1)}"
    ):
        run(g, 1)


def test_error_return_in_one_branch_only():
    def f(x):
        if x > 0:
            return x

    text = f"The else branch must also have a return value.*{line_of(f, 1)}"
    with pytest.raises(ValueError, match=text):
        run(f, 1)


def test_error_branches_differ():
    def dtype(x):
        if x > 0:
            y = x
        else:
            y = 0.5
        return y

    def structure(x):
        if x > 0:
            y = [x, x]
        else:
            y = x
        return y

    def value(x):
        if x > 0:
            y = "text"
        else:
            y = x
        return y

    with pytest.raises(
        TypeError, match=r"'y' must have the same dtype in both.*int32\[\].*float32\[\]"
    ):
        run(dtype, 1)
    with pytest.raises(
        TypeError, match=r"'y' must have the same structure.*\[int32\[\], int32\[\]\].*int32"
    ):
        run(structure, 1)
    with pytest.raises(
        TypeError, match=r"'y' must have the same value.*text.*Only numbers and tensors"
    ):
        run(value, 1)


def test_error_undefined_before_a_loop():
    def f(n):
        for _ in tf.range(n):
            total = total + 1  # noqa: F821
        return total

    with pytest.raises(
        ValueError, match=f"'total' must be defined before the loop.*{line_of(f, 1)}"
    ):
        run(f, 3)


def test_error_state_changes_form():
    def shape(n):
        x = tf.zeros([1])
        while n > 0:
            x = tf.concat([x, x], 0)
            n -= 1
        return x

    def dtype(n):
        x = 0
        for i in tf.range(n):
            x = tf.cast(i, tf.float32)
            y = x + tf.cast(x, tf.float32)
            x = y
            if i > 2:
                x = x + 1
        return x

    def grows(n):
        items = []
        for i in tf.range(n):
            items.append(i)
        return items

    def none(n):
        best = None
        for i in tf.range(n):
            if best is None:
                best = i
            else:
                best = best + i
        return best

    with pytest.raises(
        TypeError,
        match=rf"'x' must keep its shape.*{line_of(shape, 2)}.*float32\[1\].*float32\[2\]",
    ):
        run(shape, 3)
    assert run(dtype, 3) == 4.0
    with pytest.raises(
        ValueError, match=r"'items' is a list that tensors are added to.*TensorArray"
    ):
        tf.function(grows, jit_compile=True)(tf.constant(3))
    with pytest.raises(ValueError, match="'best' is None before the loop"):
        run(none, 3)


def test_error_non_scalar_condition():
    def f(x):
        if x > 0:
            return x
        return -x

    with pytest.raises(ValueError, match=r"shape \(2,\) is ambiguous"):
        run(f, [1, 2])


def test_loop_variable_starts_with_its_current_value():
    v = tf.Variable(1.0)

    def counted(n):
        x = v
        for _ in tf.range(n):
            x = x + 1.0
        return x

    def doubled(n):
        x = v
        while x < n:
            x = x * 2.0
        return x

    assert run(counted, 3) == 4 and run(doubled, 5.0) == 8
    assert v == 1


STATE, OTHER_STATE = tf.Variable(3.0), tf.Variable(5.0)


def return_variable(x):
    if x > 0:
        return STATE
    return x * 2


def assign_variable(x):
    y = x
    if x > 0:
        y = STATE
    return y


def assign_different_variables(x):
    if x > 0:
        y = STATE
    else:
        y = OTHER_STATE
    return y + 1


def choose_variable(x):
    return STATE if x > 0 else x


def choose_variable_in_a_structure(x):
    values = {"a": x}
    if x > 0:
        values = {"a": STATE}
    return values["a"]


def replace_by_variable_in_a_while(x):
    y = x
    while x > 0:
        y = STATE
        x = x - 1
    return y


def replace_variable_in_a_for(x):
    y = STATE
    for i in tf.range(3):
        if i > 0:
            y = OTHER_STATE
        else:
            y = y * x
    return y


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (return_variable, [3.0, -2.0]),
        (assign_variable, [3.0, -1.0]),
        (assign_different_variables, [4.0, 6.0]),
        (choose_variable, [3.0, -1.0]),
        (choose_variable_in_a_structure, [3.0, -1.0]),
        (replace_by_variable_in_a_while, [3.0, -1.0]),
        (replace_variable_in_a_for, [5.0, 5.0]),
    ],
)
def test_variables_and_tensors_can_be_the_values_of_one_name(function, expected):
    results = [tf.function(function)(tf.constant(x)) for x in (1.0, -1.0)]
    assert [float(result) for result in results] == expected


@pytest.mark.parametrize(
    "pack",
    [lambda a, b: (a, b), lambda a, b: [a, b], lambda a, b: {"a": a, "b": [b]}],
    ids=["tuple", "list", "dictionary"],
)
def test_loops_replace_variables_in_structures(pack):
    @tf.function
    def replace_by_variable(x, count):
        values = pack(x, x)
        for _ in tf.range(count):
            values = pack(STATE, x + 1)
        return tf.nest.flatten(values)

    @tf.function
    def replace_variable(x, count):
        values = pack(STATE, OTHER_STATE)
        while count > 0:
            values = pack(tf.nest.flatten(values)[0] + x, OTHER_STATE)
            count -= 1
        return tf.nest.flatten(values)

    for function, expected in (
        (replace_by_variable, [[7.0, 7.0], [3.0, 8.0]]),
        (replace_variable, [[3.0, 5.0], [17.0, 5.0]]),
    ):
        results = [function(tf.constant(7.0), tf.constant(n)) for n in (0, 2)]
        assert [[float(v) for v in result] for result in results] == expected


def test_gradient_of_a_variable_that_a_branch_chose():
    @tf.function
    def differentiate(x):
        with tf.GradientTape() as tape:
            y = STATE if x > 0 else x
            loss = y * y
        return tape.gradient(loss, STATE, unconnected_gradients="zero")

    assert [float(differentiate(tf.constant(x))) for x in (1.0, -1.0)] == [6.0, 0.0]


def test_a_variable_that_both_branches_choose_remains_a_variable():
    @tf.function
    def count(x):
        state = STATE
        if x > 0:
            x = x + 1
            state = STATE
        state.assign(state)
        return x

    assert float(count(tf.constant(1.0))) == 2.0


def test_error_variable_assigned_in_a_condition():
    v = tf.Variable(0)

    def f(n):
        i = 0
        while i < n and v.assign_add(1) < 10:
            i += 1
        return i

    with pytest.raises(ValueError, match=r"condition of the loop.*assigns variable"):
        run(f, 3)


def test_error_range_used_outside_a_for():
    def f(n):
        return list(tf.range(n))

    with pytest.raises(TypeError, match="only known when the traced function runs"):
        run(f, 3)


@pytest.mark.parametrize("elements", [lambda: tf.range(0), lambda: tf.zeros([0, 2])])
def test_gradient_of_a_loop_without_iterations(elements):
    weight = tf.Variable(2.0)

    @tf.function
    def multiply(x):
        result = tf.constant(1.0)
        for _ in elements():
            result = result * x * weight
        return result

    x = tf.constant(3.0)
    with tf.GradientTape() as tape:
        tape.watch(x)
        result = multiply(x)
    gradients = tape.gradient(result, [x, weight])
    assert (result.numpy(), [g.numpy() for g in gradients]) == (1.0, [0.0, 0.0])
