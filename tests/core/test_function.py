import collections
import concurrent.futures
import gc
import inspect
import logging
import pickle
import re
import threading
import time
import weakref

import numpy as np
import pytest

import meshflow as tf
from helpers import assert_close
from meshflow.environment.garbage_collection import collect_garbage


def test_traces_once_per_signature():
    traces = []

    @tf.function
    def f(x, k=1):
        traces.append((x.shape, x.dtype, k))
        return x * k

    f(tf.constant([1.0]))
    f(tf.constant([2.0]))
    f(np.array([3.0], np.float32))
    f(tf.constant([2.0]), 1)
    f(tf.constant([2.0]), k=1)
    assert len(traces) == 1
    f(tf.constant([1.0, 2.0]))
    f(tf.constant([1]))
    f(tf.constant([1.0]), 2)
    assert len(traces) == 4


def test_variables_are_read_and_written_at_call_time():
    v = tf.Variable(1.0)

    @tf.function
    def f(x):
        v.assign_add(x)
        return v * 2.0

    assert float(f(tf.constant(1.0))) == 4
    v.assign(10.0)
    assert float(f(tf.constant(1.0))) == 22 and float(v) == 11


@pytest.mark.nan_expected  # JAX donates nothing while it checks for NaNs
def test_variables_have_separate_buffers():
    first, second, third = (tf.Variable(tf.zeros([4])) for _ in range(3))

    @tf.function
    def step(x):
        total = first + second + third
        # Written in another order than read, beside a result of the same shape.
        for variable in (third, first, second):
            variable.assign_add(x)
        return total

    concrete = step.get_concrete_function(tf.ones([4]))
    captured = [v._value for v in concrete.captured_inputs]
    text = concrete.lower([np.ones(4, np.float32)], captured).as_text()
    arguments = text[text.index("@main(") : text.index("->")].split("%arg")[1:]
    buffers = [re.search(r"aliasing_output = (\d+)", a) for a in arguments[1:]]
    assert [int(found[1]) for found in buffers if found] == [0, 1, 2]
    for written, captured in zip(concrete.traced.writes, concrete.captured_inputs, strict=True):
        assert written is captured


def test_values_read_before_a_donating_call_survive():
    v = tf.Variable(np.arange(4.0, dtype=np.float32))
    before = v.read_value()

    @tf.function
    def step():
        v.assign_add(tf.ones([4]))

    step()
    step()
    assert_close(before, [0, 1, 2, 3])
    assert_close(v, [2, 3, 4, 5])


def test_structures_and_python_results():
    @tf.function
    def f(d):
        return {"sum": d["a"] + d["b"][0], "text": "hello", "none": None, "pair": (d["a"], 3)}

    out = f({"a": tf.constant(1.0), "b": [tf.constant(2.0)]})
    assert (
        float(out["sum"]) == 3
        and out["text"].numpy() == b"hello"
        and out["none"] is None
        and out["pair"][1].numpy() == 3
    )


def test_static_results_remain_static_in_the_outer_function():
    rows = tf.function(lambda x: x.shape[0])
    double = tf.function(lambda x: tf.zeros([rows(x) * 2]))
    assert rows(tf.ones([3])).numpy() == 3 and double(tf.ones([3])).shape == [6]


def test_a_concrete_function_is_called_by_position_by_name_and_with_tensors_only():
    @tf.function
    def f(x, k, y):
        return x * k - y

    c = f.get_concrete_function(tf.constant(1.0), 2, tf.TensorSpec([], tf.float32, name="why"))
    x, y = tf.constant(5.0), tf.constant(3.0)
    for call in (
        lambda: c(x, y),
        lambda: c(x, 2, y),
        lambda: c(x=x, y=y),
        lambda: c(x, why=y),
    ):
        assert call().numpy() == 7
    with pytest.raises(TypeError, match="k=2"):
        c(x, 3, y)
    with pytest.raises(TypeError, match="unexpected keyword argument"):
        c(x, 2, y, z=1)
    with pytest.raises(tf.errors.InvalidArgumentError, match="int32"):
        c(tf.constant(1), y)
    assert c.pretty_printed_signature().splitlines()[:3] == [
        "Input Parameters:",
        "  x (POSITIONAL_OR_KEYWORD): TensorSpec(shape=(), dtype=tf.float32, name=None)",
        "  k (POSITIONAL_OR_KEYWORD): Literal[2]",
    ]


def test_an_input_signature_holds_specs():
    with pytest.raises(TypeError, match="TensorSpec"):
        tf.function(lambda x: x, input_signature=[1])


def test_variables_created_on_the_first_call_only():
    class Counter(tf.Module):
        def __init__(self):
            super().__init__()
            self.v = None

        @tf.function
        def __call__(self, x):
            if self.v is None:
                self.v = tf.Variable(tf.random.normal([]) * 0.0 + 1.0)
            return self.v.assign_add(x)

    c = Counter()
    c(tf.constant(1.0))
    assert float(c(tf.constant(1.0))) == 3

    kept = []

    @tf.function
    def another(x):
        kept.append(tf.Variable(1.0))
        return kept[-1] + x

    # The function is traced a second time, which creates another variable.
    for _ in range(2):
        with pytest.raises(ValueError, match="singleton"):
            another(tf.constant(1.0))


def test_unreferenced_variable_is_an_error_at_the_first_call():
    with pytest.raises(ValueError, match="singleton"):
        tf.function(lambda: tf.Variable(1.0) + 1.0)()


def test_objects_that_imports_have_frozen_keep_variables():
    class Line:
        @tf.function
        def __call__(self, x):
            if not hasattr(self, "w"):
                self.w = tf.Variable(2.0)
            return x * self.w

    line = Line()
    gc.freeze()
    try:
        assert [float(line(tf.constant(x))) for x in (1.0, 3.0)] == [2, 6]
        with pytest.raises(ValueError, match="singleton"):
            tf.function(lambda: tf.Variable(1.0) + 1.0)()
    finally:
        gc.unfreeze()


def test_methods_are_bound_per_instance_without_keeping_it_alive():
    class Model:
        def __init__(self, k):
            self.k = k

        @tf.function
        def f(self, x):
            return x * self.k

    a, b = Model(2.0), Model(3.0)
    assert float(a.f(tf.constant(1.0))) == 2 and float(b.f(tf.constant(1.0))) == 3
    a.f.get_concrete_function(tf.TensorSpec([None]))
    reference = weakref.ref(a)
    del a
    collect_garbage()
    assert reference() is None
    # But an expression that uses the method does, as for other methods.
    assert b.f is b.f
    kept = Model(4.0).f
    collect_garbage()
    assert float(kept(tf.constant(1.0))) == 4 and float(Model(5.0).f(tf.constant(1.0))) == 5


def test_types_of_functions_are_described_as_in_tensorflow():
    pair = collections.namedtuple("Pair", "a b")
    spec, text = tf.TensorSpec([None]), "TensorSpec(shape=(None,), dtype=tf.float32, name=None)"
    x = {"k": [spec, 3], "p": pair(spec, "s")}
    concrete = tf.function(lambda x, y=None, **others: (x["k"], None)).get_concrete_function(
        x, y=(), z=tf.TensorSpec([2], tf.int32, name="given")
    )
    kind = f"Dict[['k', List[{text}, Literal[3]]], ['p', Pair[['a', {text}], ['b', Literal['s']]]]]"
    z = "TensorSpec(shape=(2,), dtype=tf.int32, name='given')"
    result = f"Tuple[List[{text}, TensorSpec(shape=(), dtype=tf.int32, name=None)], Literal[None]]"
    assert (
        str(concrete)
        == f"""ConcreteFunction Input Parameters:
  x (POSITIONAL_OR_KEYWORD): {kind}
  y (POSITIONAL_OR_KEYWORD): Tuple[]
  z (KEYWORD_ONLY): {z}
Output Type:
  {result}
Captures:
  None"""
    )
    line = f"(x: {kind}, y: Tuple[], *, z: {z}) -> {result}"
    assert concrete.pretty_printed_signature(verbose=False) == str(concrete.function_type) == line
    parameters = concrete.function_type.parameters
    assert isinstance(concrete.function_type, tf.types.experimental.FunctionType)
    assert parameters["z"].type_constraint == tf.TensorSpec([2], tf.int32, name="given")
    assert not parameters["z"].optional and "Tuple" in str(concrete.function_type.output)
    v = tf.Variable([1.0])
    starred = tf.function(lambda *args: args[0] + v).get_concrete_function(spec, v)
    assert (
        str(starred)
        == f"""ConcreteFunction Input Parameters:
  args_0 (POSITIONAL_ONLY): {text}
  args_1 (POSITIONAL_ONLY): VariableSpec(shape=(1,), dtype=tf.float32, trainable=True, alias_id=0)
Output Type:
  {text}
Captures:
  {id(v)}: TensorSpec(shape=(), dtype=tf.resource, name=None)"""
    )


@pytest.mark.parametrize("shape", [[], [None], [1]])
def test_concrete_functions_accept_any_string_of_the_shape(shape):
    function = tf.function(lambda x: x + x)
    concrete = function.get_concrete_function(tf.TensorSpec(shape, tf.string))
    example = function.get_concrete_function(tf.constant("a", shape=[d or 1 for d in shape]))
    text = tf.constant("ab", shape=[d or 1 for d in shape])
    for traced in (concrete, example):
        assert traced(text).shape == text.shape
        assert np.ravel(traced(x=text).numpy()).tolist() == [b"abab"]
        assert traced.structured_outputs.dtype is tf.string
    assert concrete.structured_outputs.shape.as_list() == shape
    with pytest.raises(TypeError, match="expected TensorSpec"):
        concrete(tf.constant(1))


def test_input_signature():
    @tf.function(input_signature=[tf.TensorSpec([None], tf.float32)])
    def f(x):
        return tf.reduce_sum(x)

    assert float(f([1.0, 2.0])) == 3
    assert float(f(tf.constant([1.0, 2.0, 3.0]))) == 6
    with pytest.raises((ValueError, TypeError), match="float32"):
        f(tf.constant([[1.0]]))


def test_concrete_functions():
    v = tf.Variable(2.0)

    @tf.function
    def f(x):
        return x * v

    c = f.get_concrete_function(tf.TensorSpec([2], tf.float32))
    assert_close(c(tf.constant([1.0, 2.0])), [2, 4])
    assert c.structured_outputs.shape == (2,) and [w.name for w in c.variables] == [v.name]
    with pytest.raises(TypeError):
        c(tf.constant([1.0]))
    anysize = f.get_concrete_function(tf.TensorSpec([None], tf.float32))
    assert anysize.structured_outputs.shape.as_list() == [None]
    assert_close(anysize(tf.constant([1.0, 2.0, 3.0])), [2, 4, 6])


def test_nested_functions_share_variables():
    v = tf.Variable(0.0)

    @tf.function
    def inner(x):
        v.assign_add(x)
        return v * 1.0

    @tf.function
    def outer(x):
        return inner(x) + inner(x)

    assert float(outer(tf.constant(1.0))) == 3 and float(v) == 2


def test_side_effects_happen_once_per_trace(capsys):
    @tf.function
    def f(x):
        print("tracing")
        return x

    f(tf.constant(1))
    f(tf.constant(2))
    assert capsys.readouterr().out == "tracing\n"


def test_run_functions_eagerly(capsys):
    @tf.function
    def f(x):
        print("running")
        return x

    tf.config.run_functions_eagerly(True)
    f(tf.constant(1))
    f(tf.constant(1))
    assert capsys.readouterr().out == "running\n" * 2


def test_retracing_warning(caplog):
    @tf.function
    def f(x):
        return x

    with caplog.at_level(logging.WARNING, logger="meshflow"):
        for i in range(6):
            f(i)
    assert "retracing" in caplog.text


def test_symbolic_tensor_as_boolean_suggests_a_fix():
    @tf.function(autograph=False)
    def f(x):
        return x if x > 0 else -x

    with pytest.raises(tf.errors.OperatorNotAllowedInGraphError, match=r"tf\.cond"):
        f(tf.constant(1.0))


def test_leaked_tensors_are_named():
    leaked = []

    @tf.function
    def f(x):
        leaked.append(x * 2)
        return x

    f(tf.constant(1.0))

    @tf.function
    def g():
        return leaked[0] + 1

    with pytest.raises(tf.errors.InaccessibleTensorError, match="out of scope"):
        g()


def test_shape_arithmetic_remains_static():
    @tf.function
    def f(x):
        n = tf.shape(x)[0] * 2
        return tf.reshape(tf.concat([x, x], 0), [n, -1]) + tf.zeros([n, tf.shape(x)[1]])

    assert f(tf.ones([3, 4])).shape == (6, 4)


def test_control_flow_becomes_xla():
    @tf.function
    def collatz(n):
        steps = tf.constant(0)
        while n > 1:
            if n % 2 == 0:
                n = n // 2
            else:
                n = 3 * n + 1
            steps += 1
        return steps

    assert int(collatz(tf.constant(27))) == 111


def test_py_function_and_numpy_function_in_a_function():
    @tf.function
    def f(x):
        y = tf.numpy_function(lambda a: np.sort(a), [x], tf.TensorSpec([3], tf.float32))
        return y + tf.py_function(lambda t: t * 2.0, [x], tf.TensorSpec([3], tf.float32))

    assert_close(f(tf.constant([3.0, 1.0, 2.0])), [7, 4, 7])


def test_print_runs_every_time(capsys):
    @tf.function
    def f(x):
        tf.print("x is", x)
        return x

    f(tf.constant([1, 2])).numpy()
    f(tf.constant([3, 4])).numpy()
    import jax

    jax.effects_barrier()
    assert capsys.readouterr().err == "x is [1 2]\nx is [3 4]\n"


def test_python_called_with_constants_is_called_every_time():
    calls = []

    def note(x):
        calls.append(int(x))
        return x

    one = tf.constant(1)
    f = tf.function(lambda: tf.py_function(note, [tf.constant(2)], tf.int32) + one)
    assert [int(f()), int(f())] == [3, 3] and calls == [2, 2]


def test_concrete_function_of_any_size_has_a_readable_signature():
    v = tf.Variable(2.0)
    f = tf.function(lambda x: x * v)
    c = f.get_concrete_function(tf.TensorSpec([None, 3]))
    assert f.get_concrete_function(tf.TensorSpec([None, 3])) is c
    assert c.inputs[0] == tf.TensorSpec([None, 3], name="x") and c.inputs[1] is v
    assert c.output_shapes.as_list() == [None, 3] and c.output_dtypes is tf.float32
    assert c.outputs[0].shape.as_list() == [None, 3] and c.variables == c.trainable_variables == (
        v,
    )


def test_leaked_tensor_is_reported_as_out_of_scope():
    leaked = []

    @tf.function
    def f(x):
        leaked.append(x + 1)
        return x

    f(tf.constant(1))
    with pytest.raises(ValueError, match="out of scope"):
        leaked[0] + 1


def test_variables_that_change_their_shape_are_traced_for_each():
    v = tf.Variable([1.0], shape=[None])

    @tf.function
    def double(x):
        v.assign(tf.concat([v, v * x], 0))
        return tf.shape(v)

    assert [int(double(2.0)[0]) for _ in range(3)] == [2, 4, 8]
    assert_close(v[:4], [1, 2, 2, 4])
    v.assign([5.0])
    assert int(double(2.0)[0]) == 2 and len(double._cache) == 3


def test_texts_as_arguments():
    f = tf.function(lambda s: (s, tf.strings.join([s, "b"]), tf.equal(s, "q")))
    for text, same in (("q", True), ("r", False)):
        given, joined, equal = f(tf.constant(text))
        assert given.numpy() == text.encode() and joined.numpy() == text.encode() + b"b"
        assert bool(equal) is same


def test_python_is_called_in_the_order_of_the_program():
    seen = []

    def note(x):
        seen.append(int(x))
        return np.int64(0)

    @tf.function
    def run(x):
        for i in range(4):
            tf.numpy_function(note, [x - i], tf.int64)
            tf.py_function(note, [x * i], tf.int64)

    run(tf.constant(3))
    assert seen == [3, 0, 2, 3, 1, 6, 0, 9]


def test_specs_of_unknown_rank():
    power = tf.function(lambda a, b: a**b).get_concrete_function(tf.TensorSpec(None), 2)
    assert power.structured_outputs.shape.rank is None
    assert float(power(tf.constant(3.0))) == 9 and power(tf.ones([2, 3])).shape == [2, 3]


def test_sizes_that_captured_tensors_decide_on():
    edges = tf.constant(np.stack([np.arange(40) % 7, np.arange(40)], 1))

    @tf.function
    def f(x):
        nodes = edges[:, 0]
        total = tf.math.unsorted_segment_sum(x, nodes, tf.reduce_max(nodes) + 1)
        kept = tf.boolean_mask(x, nodes > 4)
        return total, kept, tf.function(lambda: tf.zeros([tf.reduce_max(nodes)]))()

    x = tf.range(40.0)
    total, kept, zeros = f(x)
    assert total.shape == (7,)
    assert total[6].numpy() == 6 + 13 + 20 + 27 + 34
    assert kept.numpy().tolist() == [i for i in range(40) if i % 7 > 4]
    assert zeros.shape == (6,)
    with pytest.raises(TypeError, match="is needed as `shape`"):
        tf.function(lambda n: tf.zeros([tf.reduce_max(n)]), jit_compile=True)(edges)
    with pytest.raises(tf.errors.OperatorNotAllowedInGraphError):
        tf.function(lambda: int(tf.reduce_max(edges)), autograph=False)()


def _in_threads(work):
    failed = []

    def run():
        try:
            for _ in range(60):
                work()
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []


def test_function_under_a_tape_has_exclusive_access_to_written_variables():
    total = tf.Variable(0.0)

    @tf.function
    def step(x):
        total.assign_add(x)
        return x * total

    def work():
        with tf.GradientTape():
            step(tf.constant(1.0))
        step(tf.constant(1.0))

    step(tf.constant(0.0))
    _in_threads(work)
    assert total.numpy() == 480


def test_threads_may_share_variables():
    v = tf.Variable(0.0)
    step = tf.function(lambda: v.assign_add(1.0))
    seen = []

    def work():
        step()
        v.assign_sub(0.5)
        seen.append(float(v * 1.0))

    _in_threads(work)
    assert float(v) == 120.0 and len(seen) == 240


def test_arguments_are_not_to_be_changed():
    @tf.function
    def grow(parts):
        parts[0]["a"].append(tf.constant(1.0))

    parts = [{"a": [tf.constant(0.0)]}]
    with pytest.raises(ValueError, match="grow should not modify"):
        grow(parts)
    assert len(parts[0]["a"]) == 1


def test_objects_that_are_equal_share_a_trace():
    f = tf.function(lambda x, other: x)
    for _ in range(2):
        f(tf.constant(1.0), tf.TensorShape([2, 3]))
        f(tf.constant(1.0), range(3))
    assert f.experimental_get_tracing_count() == 2


def test_sets_and_weak_references_are_no_arguments():
    class Owner:
        pass

    owner = Owner()
    for argument in ({1}, weakref.ref(owner)):
        with pytest.raises(TypeError, match="may change"):
            tf.function(lambda x: x)(argument)


def test_defaults_of_declared_arguments_become_tensors():
    @tf.function(input_signature=[tf.TensorSpec([]), tf.TensorSpec([], tf.bool)])
    def signed(x, keep=True):
        return x if keep else -x

    assert [float(signed(2.0)), float(signed(2.0, keep=False))] == [2.0, -2.0]
    assert signed.get_concrete_function() is signed.get_concrete_function(*signed.input_signature)
    with pytest.raises(TypeError, match="input_signature of signed"):
        signed.get_concrete_function(tf.TensorSpec([3]), tf.TensorSpec([], tf.bool))
    with pytest.raises(TypeError, match="missing a required argument: 'x'"):
        signed()


def test_threads_share_a_trace():
    def slow(x):
        time.sleep(0.05)
        return x + 1

    f = tf.function(slow)
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: f.get_concrete_function(tf.TensorSpec([])), range(4)))
    assert len({id(concrete) for concrete in found}) == 1


def test_functions_of_functions_methods_and_pickles():
    class Owner:
        @tf.function
        def double(self, x):
            return 2 * x

    owner = Owner()
    assert float(tf.function(owner.double)(x=2.0)) == 4.0
    with pytest.raises(TypeError, match="missing a required argument: 'x'"):
        tf.function(owner.double)()
    again = pickle.loads(pickle.dumps(tf.function(_triple, autograph=False)))
    assert float(again(2.0)) == 6.0
    # Only the method refers to its object.
    scale = Scale(3.0)
    method = pickle.loads(pickle.dumps(scale.times))
    collect_garbage()
    assert float(method(2.0)) == 6.0
    assert list(inspect.signature(method).parameters) == ["x"]


class Scale:
    def __init__(self, by):
        self.by = by

    @tf.function
    def times(self, x):
        return self.by * x


def _triple(x):
    return 3 * x


def test_functions_made_in_a_loop_are_warned_of_twice(caplog):
    def run(x):
        @tf.function
        def made_in_a_loop(x):
            return x

        made_in_a_loop(x)

    for i in range(10):
        run(i)
    assert caplog.text.count("calls to made_in_a_loop (test_function.py:") == 2
    relaxed = tf.function(lambda x: x, reduce_retracing=True)
    for i in range(10):
        relaxed(tf.zeros([i]))
    assert "lambda" not in caplog.text


def test_concrete_function_accepts_only_its_tensors():
    concrete = tf.function(lambda x, y: y).get_concrete_function(1, tf.constant(2))
    assert int(concrete(tf.constant(3))) == 3
    with pytest.raises(TypeError, match="missing a required argument: 'y'"):
        concrete(1)


def test_python_functions_by_keyword_with_results_of_any_shape(caplog):
    doubled = tf.function(
        lambda x: tf.py_function(func=lambda v: tf.concat([v, v], 0), inp=[x], Tout=tf.float32)
    )
    assert doubled(tf.constant([1.0, 2.0])).numpy().tolist() == [1, 2, 1, 2]
    assert "Tout=tf.TensorSpec(shape, tf.float32)" in caplog.text
    parted = tf.function(
        lambda x: tf.numpy_function(
            func=lambda v: (v[:1], v[1:]), inp=[x], Tout=[tf.float32, tf.float32]
        )
    )
    first, rest = parted(tf.constant([1.0, 2.0, 3.0]))
    assert first.numpy().tolist() == [1] and rest.numpy().tolist() == [2, 3]
    one = tf.numpy_function(func=lambda v: (v * 2,), inp=[np.float32(2)], Tout=tf.float32)
    many = tf.numpy_function(func=lambda v: (v * 2,), inp=[np.float32(2)], Tout=[tf.float32])
    assert float(one) == 4 and one.shape == [] and [float(v) for v in many] == [4]


def test_python_functions_as_decorators():
    @tf.py_function(Tout=tf.float32)
    def scaled(x, by=1.0):
        return x * by

    @tf.numpy_function(Tout=tf.TensorSpec([], tf.float32))
    def largest(x):
        return x.max()

    assert float(scaled(2.0, by=3.0)) == 6
    assert float(tf.function(lambda x: largest(x))(tf.constant([1.0, 4.0]))) == 4


def test_objects_define_their_part_of_the_cache_key():
    class Kind(tf.types.experimental.TraceType):
        def __init__(self, size):
            self.size = size

        def __eq__(self, other):
            return isinstance(other, Kind) and other.size == self.size

        def __hash__(self):
            return hash(self.size)

    class Box:
        def __init__(self, size):
            self.size = size

        def __tf_tracing_type__(self, context):
            return Kind(self.size)

    @tf.function
    def read(box):
        return box.size

    assert [int(read(Box(n))) for n in (1, 1, 2)] == [1, 1, 2]
    assert read.experimental_get_tracing_count() == 2


def test_results_must_be_tensors():
    def return_value(value):
        return tf.function(lambda x: (x, [value]))

    for value in (object(), {1, 2}, (i for i in range(2)), lambda: 1, len, int, slice(1), tf):
        with pytest.raises(TypeError, match="must return zero or more Tensors or ExtensionTypes"):
            return_value(value)(tf.constant(1))


def test_compiled_programs_as_text():
    double = tf.function(lambda x: x * 2, jit_compile=True)
    read = double.experimental_get_compiler_ir(tf.constant([1.0]))
    assert read().startswith("HloModule")
    assert read(stage="optimized_hlo").startswith("HloModule")
    assert isinstance(read(stage="hlo_serialized"), bytes)
    with pytest.raises(ValueError, match="Invalid stage"):
        read(stage="other")
    with pytest.raises(ValueError, match="jit_compile=True"):
        tf.function(lambda x: x).experimental_get_compiler_ir(1)
    with pytest.raises(ValueError, match="Only support static input shape"):
        double.experimental_get_compiler_ir(tf.TensorSpec([None]))


def test_initialization_functions_create_variables():
    variables = []

    @tf.function
    def scale(x):
        if not variables:
            variables.append(tf.Variable(2.0))
        return variables[0] * x

    scale.get_initialization_function(tf.constant(1.0))()
    assert variables[0].numpy() == 2
    assert scale(tf.constant(3.0)).numpy() == 6
    with pytest.raises(RuntimeError, match="cannot be called after the function has been used"):
        scale.get_initialization_function(tf.constant(1.0))


def test_function_spec():
    class Adder:
        @tf.function(jit_compile=True)
        def add(self, a, b=2, *, c=3):
            return a + b + c

    spec = Adder().add.function_spec
    assert spec.arg_names == ["a", "b"] and spec.default_values == {"b": 2, "c": 3}
    assert spec.fullargspec.kwonlyargs == ["c"] and spec.fullargspec.defaults == (2,)
    assert spec.input_signature is None and spec.jit_compile and not spec.is_pure
    assert spec.signature_summary(True) == "add(a, b=2, *, c=3)".replace("*, ", "")
    spec = tf.TensorSpec([2])
    function = tf.function(lambda x: x, input_signature=[[spec]])
    assert function.function_spec.flat_input_signature == (spec,)
    assert function.get_concrete_function()._function_spec.arg_names == ["x"]


@pytest.mark.parametrize("value", [[1.0, 2.0, 3.0], "s", tf.constant([1, 2]), object()])
def test_arguments_that_differ_from_the_signature(value):
    function = tf.function(lambda x: x, input_signature=[tf.TensorSpec([2])])
    for kind in (TypeError, ValueError):  # of TensorFlow 2.15 and of earlier versions
        with pytest.raises(kind, match=r"Binding inputs to tf\.function failed"):
            function(value)


def test_signatures_name_arguments_that_they_lack():
    one = tf.function(lambda a, b, c=1: a, input_signature=[tf.TensorSpec([])])
    with pytest.raises(TypeError, match=r"missing type constraint of \['b'\]"):
        one(1.0, 2.0)
    two = tf.function(lambda a, *rest: a, input_signature=[tf.TensorSpec([])])
    with pytest.raises(TypeError, match="too many positional arguments"):
        two(1.0, 2.0)


def test_functions_are_decorated_before_their_first_call():
    double = tf.function(lambda x: x * 2)
    double._decorate(lambda function: lambda x: function(x) + 1)
    assert double(tf.constant(3)).numpy() == 7
    with pytest.raises(ValueError, match="cannot be decorated after they have been traced"):
        double._decorate(lambda function: function)
