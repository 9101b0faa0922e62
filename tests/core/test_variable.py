import collections
import copy

import numpy as np
import pytest

import meshflow as tf
from helpers import assert_close


def test_assignments():
    v = tf.Variable([1.0, 2.0], name="v")
    assert v.name == "v:0" and v.trainable
    v.assign([3.0, 4.0])
    v.assign_add([1.0, 1.0])
    v.assign_sub([0.0, 5.0])
    assert_close(v, [4, 0])


def test_sliced_assignment_eagerly_and_in_a_function():
    v = tf.Variable(np.zeros((3, 2), np.float32))
    v[1].assign([1.0, 2.0])
    v[:, 0].assign([7.0, 8.0, 9.0])
    assert_close(v, [[7, 0], [8, 2], [9, 0]])

    @tf.function
    def f():
        v[2, 1].assign(5.0)
        return v[2]

    assert_close(f(), [9, 5])
    assert_close(v, [[7, 0], [8, 2], [9, 5]])


def test_mismatches_name_the_variable():
    v = tf.Variable([1.0, 2.0], name="weights")
    with pytest.raises(ValueError, match="weights"):
        v.assign([1.0])
    with pytest.raises(ValueError, match="int64"):
        v.assign(tf.constant([1, 2], tf.int64))


def test_added_values_have_the_shape_of_the_variable():
    variable = tf.Variable([0, 1, 2, 3])
    for method in (variable.assign_add, variable.assign_sub):
        for value in (1, [1], [[1, 1, 1, 1]]):
            with pytest.raises(tf.errors.InvalidArgumentError, match="shapes must be equal"):
                method(value)
            with pytest.raises(ValueError, match="shapes must be equal"):
                tf.function(lambda m=method, v=value: m(v))()
    assert variable.numpy().tolist() == [0, 1, 2, 3]


def test_operators_and_conversion():
    v = tf.Variable(3.0)
    assert float(v * 2 + 1) == 7 and float(1 - v) == -2 and bool(v > 2)
    assert float(tf.add(v, v)) == 6
    with pytest.raises(TypeError, match="ref"):
        hash(v)


def test_names_scopes_creators_and_copies():
    with tf.name_scope("outer"), tf.name_scope("inner"):
        assert tf.Variable(1.0, name="w").name == "outer/inner/w:0"
    v = tf.Variable([1.0])
    w = copy.deepcopy(v)
    w.assign([2.0])
    assert_close(v, [1.0])
    with pytest.raises(ValueError, match="initial_value"):
        tf.Variable()


def test_scatter_updates():
    v = tf.Variable(np.zeros((3, 1), np.float32))
    v.scatter_add(tf.IndexedSlices(tf.constant([[1.0], [2.0]]), tf.constant([0, 0])))
    v.scatter_update(tf.IndexedSlices(tf.constant([[9.0]]), tf.constant([2])))
    assert_close(v, [[3], [0], [9]])


def test_module_collects_variables():
    class Inner(tf.Module):
        def __init__(self):
            super().__init__()
            self.w = tf.Variable(1.0)

    class Outer(tf.Module):
        def __init__(self):
            super().__init__("outer")
            self.parts = [Inner(), {"x": Inner()}]
            self.fixed = tf.Variable(1, trainable=False)

    outer = Outer()
    assert (
        len(outer.variables) == 3
        and len(outer.trainable_variables) == 2
        and len(outer.submodules) == 2
    )


def test_scatters_at_coordinates():
    def after(method):
        v = tf.Variable([1.0, 2.0, 3.0, 4.0])
        assert getattr(v, method)([[1], [3]], [10.0, 1.0]) is v
        return v.numpy().tolist()

    assert after("scatter_nd_add") == [1, 12, 3, 5]
    assert after("scatter_nd_sub") == [1, -8, 3, 3]
    assert after("scatter_nd_update") == [1, 10, 3, 1]
    assert after("scatter_nd_max") == [1, 10, 3, 4]
    assert after("scatter_nd_min") == [1, 2, 3, 1]


def test_reading_parts_and_dividing_rows():
    v = tf.Variable([[1.0, 2.0], [3.0, 4.0]])
    assert_close(v.gather_nd([[0, 1]]), [2])
    assert_close(v.sparse_read([1]), [[3, 4]])
    v.scatter_div(tf.IndexedSlices(tf.constant([[2.0, 2.0]]), tf.constant([0])))
    assert_close(v, [[0.5, 1], [3, 4]])
    with pytest.raises(TypeError, match="not IndexedSlices"):
        v.scatter_add(3)


def test_variable_repr():
    v = tf.Variable(1.0)
    assert v.initializer is None and v.is_initialized().numpy()
    for name in ("synchronization", "aggregation"):
        with pytest.raises(ValueError, match=name):
            tf.Variable(1.0, **{name: "bad"})


def test_modules_list_variables_by_sorted_keys_and_flatten_by_predicate():
    class Nested(tf.Module):
        def __init__(self):
            super().__init__()
            self.parts = {"b": tf.Variable(1.0), "a": [tf.Variable(2.0)]}
            self.inner = tf.Module()
            self.inner.scale = 3

    nested = Nested()
    assert [float(v) for v in nested.variables] == [2, 1]
    numbers = nested._flatten(predicate=lambda x: isinstance(x, (int, tf.Variable)), with_path=True)
    assert [path for path, _ in numbers] == [("parts", "a", 0), ("parts", "b"), ("inner", "scale")]
    assert list(nested._flatten(recursive=False, predicate=lambda x: x == 3)) == []


def test_modules_skip_ignored_attributes_and_search_sequences():
    class Hiding(tf.Module):
        _TF_MODULE_IGNORED_PROPERTIES = frozenset(("hidden", "part"))

    module = Hiding()
    module.hidden, module.part = tf.Variable(1.0), tf.Module()
    assert module.variables == () and module.submodules == ()
    module.line = collections.deque([tf.Variable(2.0)])
    module.pair = collections.namedtuple("Pair", "x y")(tf.Variable(3.0), 4)
    assert [float(v) for v in module.variables] == [2, 3]
    found = module._flatten(predicate=lambda x: isinstance(x, tf.Variable), with_path=True)
    assert [path for path, _ in found] == [("line", 0), ("pair", "x")]


@pytest.mark.parametrize("method", ["scatter_add", "scatter_max", "scatter_update"])
def test_wrong_rows_raise_errors_of_tensorflow(method):
    v = tf.Variable(tf.zeros([3, 2]))
    for slices in (
        tf.IndexedSlices(tf.ones([1, 5]), [0]),
        tf.IndexedSlices(tf.ones([1, 2]), ["a"]),
    ):
        with pytest.raises(tf.errors.InvalidArgumentError, match=method):
            getattr(v, method)(slices)
    assert not np.any(v.numpy())


def test_modules_yield_the_variables_of_each_submodule_together():
    # The order is that of TensorFlow 2.15, in which each submodule is followed by its own submodules.
    root = tf.Module()
    root.a, root.b, root.z = tf.Module(), tf.Module(), tf.Variable(0.0, name="z")
    root.a.x, root.b.w = tf.Module(), tf.Variable(0.0, name="w")
    root.a.x.v = [tf.Variable(0.0, name="v"), root.z]
    root.a.x.loop = root
    assert [v.name for v in root.variables] == ["z:0", "v:0", "w:0"]
    is_variable = lambda leaf: isinstance(leaf, tf.Variable)
    paths = dict(root._flatten(with_path=True, predicate=is_variable))
    assert paths["a", "x", "v", 1] is paths["z",] is paths["a", "x", "loop", "z"] is root.z
    assert ("a", "x", "loop", "a", "x", "v", 0) not in paths
