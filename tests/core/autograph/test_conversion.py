"""Test which callables are converted, and that conversion preserves the meaning of Python code."""

from __future__ import annotations

import functools
import importlib
import json
import linecache
import sys
import traceback

import pytest

import meshflow as tf
from meshflow.core.autograph import compiler, conversion, convert, convert_if_enabled, is_enabled
from meshflow.core.autograph.conversion import convert_callable

GLOBAL = 10


def sign(x):
    if x > 0:
        return 1
    elif x < 0:
        return -1
    return 0


def factorial(n):
    return 1 if n <= 1 else n * factorial(n - 1)


def tree(x, depth):
    if depth == 0:
        return x
    if tf.reduce_sum(x) > 0:
        x = x * 2
    return tree(x, depth - 1) + 1


def is_even(n):
    return True if n == 0 else is_odd(n - 1)


def is_odd(n):
    return False if n == 0 else is_even(n - 1)


@functools.lru_cache
def cached_factorial(n):
    return 1 if n <= 1 else n * cached_factorial(n - 1)


@tf.function
def compiled_recursion(x, depth):
    if depth > 0:
        return compiled_recursion(x + 1, depth - 1)
    return x


@tf.function
def collatz(x, depth=0):
    if depth >= 3:
        return x
    if x % 2 == 0:
        return collatz(x // 2, depth + 1)
    return collatz(3 * x + 1, depth + 1)


fibonacci = tf.function(lambda n: n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2))


class Walker(tf.Module):
    """Methods that call themselves."""

    @tf.function
    def walk(self, x, depth):
        return x if depth == 0 else self.walk(x * 2, depth - 1)

    @staticmethod
    def count(x, depth):
        return x if depth == 0 else Walker.count(x + 1, depth - 1)

    @classmethod
    def __hide(cls, x, depth):
        return x if depth == 0 else cls.__hide(x * 3, depth - 1)

    def reveal(self, x):
        return self.__hide(x, 2)


class Base:
    def scale(self, x):
        return 2 * x if x > 0 else x


class Model(Base):
    """Methods, private names, `super()` and attributes."""

    factor = 3

    def __init__(self):
        self.__hidden = 5
        self.calls = 0

    def scale(self, x):
        if x > 1:
            return super().scale(x) + self.__hidden
        return super(Model, self).scale(x) * self.factor  # noqa: UP008 - both forms are tested

    @staticmethod
    def half(x):
        return x // 2 if x > 0 else x

    @classmethod
    def triple(cls, x):
        return x * cls.factor if x > 0 else x

    @property
    def limit(self):
        return self.__hidden if self.calls > 0 else 0

    def __call__(self, x):
        self.calls += 1
        return self.scale(x) if x != 7 else self.limit


def test_function_keeps_its_name_defaults_and_docs():
    def f(a, b=2, *rest, c=3, **others):
        """Text."""
        if a > b:
            return a, b, rest, c, others
        return b

    converted = convert_callable(f)
    assert converted is not f
    assert (converted.__name__, converted.__doc__, converted.__qualname__) == (
        "f",
        "Text.",
        f.__qualname__,
    )
    assert converted(5) == (5, 2, (), 3, {})
    assert converted(5, 1, 7, c=4, d=5) == (5, 1, (7,), 4, {"d": 5})
    assert converted(1) == 2


def test_conversion_is_done_once_per_code():
    def make():
        return lambda x: 1 if x else 0

    one, other = make(), make()
    assert convert_callable(one).__code__ is convert_callable(one).__code__
    assert convert_callable(one).__code__ is convert_callable(other).__code__


def test_methods_static_methods_properties_and_super():
    model = Model()
    for x in (-2, 1, 5):
        assert convert_callable(model.scale)(x) == model.scale(x)
        assert convert_callable(Model.half)(x) == Model.half(x)
        assert convert_callable(Model.triple)(x) == Model.triple(x)
    assert convert_callable(model)(5) == 15
    assert model.calls == 1
    assert convert_callable(model)(7) == 5


def test_closures_see_later_changes():
    count = 0

    def step(x):
        nonlocal count
        if x > 0:
            count += 1
        return count

    converted = convert_callable(step)
    assert converted(1) == 1
    count = 10
    assert converted(1) == 11
    assert count == 11


def test_globals_can_be_assigned():
    def f(x):
        global GLOBAL
        if x:
            GLOBAL = x
        return GLOBAL

    converted = convert_callable(f)
    assert converted(0) == 10
    assert converted(4) == 4
    assert converted(10) == GLOBAL == 10


def test_partials_and_lambdas_on_one_line():
    first, second = (lambda x: "a" if x else "b"), (lambda x: "c" if x else "d")
    assert [convert_callable(first)(1), convert_callable(second)(0)] == ["a", "d"]
    assert convert_callable(functools.partial(sign, x=-4))() == -1
    nested = lambda x: lambda y: x if y else -x
    assert convert_callable(nested)(3)(False) == -3


def test_decorated_functions_are_converted_inside():
    def twice(function):
        @functools.wraps(function)
        def wrapper(x):
            return function(x) + function(x) if x else 0

        return wrapper

    @twice
    def f(x):
        return 1 if x > 1 else 2

    assert convert_callable(f)(2) == 2
    assert convert_callable(f)(1) == 4
    staged = tf.function(f)
    assert int(staged(tf.constant(5))) == 2


def test_functions_called_by_converted_ones_are_converted():
    def helper(x):
        return sign(x) + 10

    @tf.function
    def f(x):
        return helper(x)

    assert [int(f(tf.constant(v))) for v in (-3, 0, 8)] == [9, 10, 11]


def test_recursion_on_python_values():
    def power(x, n):
        if n == 0:
            return 1
        return x * power(x, n - 1)

    assert convert_callable(power)(3, 4) == 81
    assert int(tf.function(power)(tf.constant(2), 5)) == 32


def test_inner_functions_and_callbacks():
    @tf.function
    def f(x):
        def clip(v):
            if v > 3:
                v = tf.constant(3)
            return v

        return tf.map_fn(lambda v: clip(v) if v > 0 else -v, x)

    assert f(tf.constant([-5, 2, 9])).numpy().tolist() == [5, 2, 3]


def test_builtins_take_user_functions():
    def keep(x):
        return 1 if x > 1 else 0

    def f(items):
        return (
            list(map(sign, items)),
            list(filter(keep, items)),
            functools.reduce(lambda a, b: a + b, items),
        )

    assert convert_callable(f)([3, -1, 2]) == f([3, -1, 2])


def test_library_functions_are_not_converted():
    assert convert_callable(json.dumps) is json.dumps
    assert convert_callable(len) is len
    assert convert_callable(tf.reduce_sum) is tf.reduce_sum
    assert convert_callable(Model) is Model


def test_generators_and_frame_readers_are_not_converted():
    def numbers(n):
        for i in range(n):
            if i != 1:
                yield i

    def reader(x):
        if x:
            y = 1
        return sorted(locals())

    def finally_jump(x):
        for _ in range(3):
            try:
                x += 1
            finally:
                if x > 3:
                    break
        return x

    for function, args in ((numbers, (3,)), (reader, (1,)), (finally_jump, (2,))):
        assert convert_callable(function) is function
        assert compiler.get_failure_reason(function)
        function(*args)

    def user(n):
        return [i for i in numbers(n) if i > 0]

    assert convert_callable(user)(4) == [2, 3]


def test_no_source_falls_back_silently():
    scope = {}
    exec("def f(x):\n    return 1 if x else 2", scope)
    assert convert(scope["f"])(0) == 2


def test_statements_of_every_kind():
    def f(x):
        total: int = 0
        data = {"a": 1}
        match x:
            case 0:
                kind = "zero"
            case int() if x > 5:
                kind = "big"
            case [first, *others]:
                return first, others
            case {"k": value, **remaining}:
                return value, remaining
            case _:
                kind = "small"
        if (n := x * 2) > 6 and (m := n + 1):
            total += m
        try:
            total += 10 // (x - 1)
        except ZeroDivisionError as error:
            kind = str(error)
        else:
            total += 1
        finally:
            data["b"] = 2
        with open("/dev/null") as stream:
            if stream.closed:
                return None
        del data["a"]
        import math as m2

        class Local:
            value = total if total else -1

            def get(self):
                return self.value

        assert n == 2 * x, "no"
        squares = [i * i for i in range(x) if i % 2 or i == 0]
        return (
            kind,
            total,
            data,
            m2.floor(1.5),
            Local().get(),
            squares,
            (lambda *a, **k: (a, k))(1, b=2),
        )

    converted = convert_callable(f)
    assert converted is not f
    for x in (0, 1, 3, 9):
        assert converted(x) == f(x)
    assert converted([1, 2, 3]) == (1, [2, 3])
    assert converted({"k": 1, "l": 2}) == (1, {"l": 2})


def test_unbound_variables_remain_unbound():
    def f(x):
        if x:
            y = 1
        return y

    with pytest.raises(NameError, match="y"):
        convert_callable(f)(0)
    assert convert_callable(f)(1) == 1


def test_loops_over_iterators_stop_where_python_does():
    def f(iterator):
        for x in iterator:
            if x == 2:
                break
        else:
            return None
        return list(iterator)

    assert convert_callable(f)(iter(range(6))) == [3, 4, 5]
    assert convert_callable(f)(iter([1])) is None


def test_short_circuits():
    def f(x):
        return (x is not None and x > 3 and x[0]) or "none"

    assert convert_callable(f)(None) == "none"
    assert convert_callable(f)(1) == "none"

    def g(a, b, c):
        return a() < b() < c()

    calls = []

    def value(v):
        return lambda: calls.append(v) or v

    assert convert_callable(g)(value(3), value(2), value(5)) is False
    assert calls == [3, 2]


def test_tracebacks_show_the_users_lines():
    def f(x):
        if x > 0:
            for i in range(2):
                x = x + i
                fail(x)
        return x

    def fail(x):
        while True:
            raise RuntimeError("here")

    first = f.__code__.co_firstlineno
    with pytest.raises(RuntimeError) as raised:
        convert(f)(1)
    own = [(e.lineno, e.name) for e in traceback.extract_tb(raised.tb) if e.filename == __file__][
        1:
    ]
    expected = [(1, "f"), (2, "f"), (4, "f"), (8, "fail"), (9, "fail")]
    assert own == [(first + offset, name) for offset, name in expected]
    assert not any("staging" in e.filename for e in traceback.extract_tb(raised.tb))


def test_do_not_convert():
    @tf.autograph.experimental.do_not_convert
    def plain(x):
        assert not is_enabled()
        return 1 if x > 0 else 2

    @tf.function
    def f(x):
        return plain(x)

    assert plain(-1) == 2
    with pytest.raises(TypeError, match=r"symbolic tf\.Tensor"):
        f(tf.constant(1))
    assert int(tf.function(lambda x: x + plain(3))(tf.constant(1))) == 2

    @tf.function(autograph=False)
    def g(x):
        return 1 if x > 0 else 2

    with pytest.raises(TypeError, match=r"symbolic tf\.Tensor"):
        g(tf.constant(1))


def test_convert_if_enabled_follows_the_caller():
    seen = []

    @tf.function
    def f(x):
        seen.append(convert_if_enabled(sign))
        return x

    f(tf.constant(1))
    assert seen[0].__code__ is convert_callable(sign).__code__ is not sign.__code__
    assert convert_if_enabled(sign) is sign


def test_to_code_and_to_graph():
    text = tf.autograph.to_code(sign)
    assert "def sign(x)" in text and "ag__.if_stmt(x > 0" in text
    assert tf.autograph.to_code(tf.function(sign)) == text
    assert tf.autograph.to_graph(sign)(-3) == -1
    with pytest.raises(ValueError, match="Python function"):
        tf.autograph.to_code(len)


def test_verbosity_reports_unconverted_functions(caplog):
    tf.autograph.set_verbosity(1)
    try:

        def numbers():
            yield 1

        conversion.convert_callable(numbers)
        assert "numbers is not converted: generators" in caplog.text
    finally:
        tf.autograph.set_verbosity(0)


def test_recursion():
    x = tf.constant(1.0)
    walker = Walker()
    assert tf.function(lambda x: x * factorial(4))(x) == 24
    assert tf.function(lambda x: x * cached_factorial(5))(x) == 120
    assert tf.function(tree)(x, 3) == tf.function(lambda x: tree(x, 3))(x) == tree(x, 3) == 11
    assert tf.function(lambda x: x if is_even(4) else -x)(x) == 1
    assert tf.function(lambda x: walker.count(x, 3))(x) == 4
    assert tf.function(walker.reveal)(x) == 9
    assert tf.autograph.to_graph(factorial)(5) == 120
    numbers = tf.data.Dataset.range(3).map(lambda n: tf.cast(n, tf.float32) * float(factorial(3)))
    assert [float(n) for n in numbers] == [0, 6, 12]


def test_recursive_compiled_functions():
    x = tf.constant(1.0)
    assert compiled_recursion(x, 3) == 4
    assert collatz(tf.constant(6)) == 5
    assert fibonacci(6) == 8
    walker = Walker()
    assert walker.walk(x, 4) == 16
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = walker.walk(x, 3)
    assert tape.gradient(y, x) == 8


def test_local_recursive_functions():
    def local(n):
        return 1 if n == 0 else 2 * local(n - 1)

    @tf.function
    def compiled(x, n):
        return x if n == 0 else compiled(x + local(n), n - 1)

    assert tf.function(lambda x: x * local(3))(tf.constant(1.0)) == 8
    assert compiled(tf.constant(0.0), 2) == 6


MODULE = """{extra}
import math
def make():
    return [lambda x: x + {k} if x > 0 else x, lambda x: x * {k} if x > 0 else -x]

def call_imported(x):
    y = math.sqrt(4)
    return x + y + {k} if x > 0 else x

class Owner:
    def __private(self, x):
        if x > 0:
            return super().__hash__() * 0 + x * {k}
        return x

    call = __private
"""


def test_edited_files(tmp_path, monkeypatch, caplog):
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def write(k, extra=""):
        path.write_text(MODULE.format(k=k, extra=extra))
        importlib.invalidate_caches()
        linecache.checkcache(str(path))
        linecache.cache.pop(str(path), None)

    def run(*functions):
        return [tf.function(f)(tf.constant(2.0)).numpy() for f in functions]

    path = tmp_path / "edited_module.py"
    write(3)
    module = importlib.import_module("edited_module")
    assert run(*module.make(), module.Owner().call, module.call_imported) == [5, 6, 6, 7]
    write(4)
    assert run(*module.make()) == [5, 6]
    importlib.reload(module)
    functions = module.make()
    owner = module.Owner()
    assert run(functions[0]) == [6]
    path.write_text("def unfinished(")  # Functions are located in the source that was read earlier.
    assert run(functions[1]) == [8]
    write(50, "import os")
    assert run(owner.call) == [8]
    write(60)
    importlib.reload(module)
    functions = module.make()
    write(7)  # No text contains these functions.
    with pytest.raises(tf.errors.OperatorNotAllowedInGraphError):
        run(functions[0])
    assert "Reload the module" in caplog.text
    importlib.reload(module)
    assert run(*module.make(), module.Owner().call) == [9, 14, 14]
