import collections
import dataclasses

import attr
import pytest
from hypothesis import given
from hypothesis import strategies as st

import meshflow as tf

structures = st.recursive(
    st.integers(),
    lambda inner: (
        st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text(max_size=3), inner)
    ),
    max_leaves=12,
)


@given(structures)
def test_flatten_and_pack_are_inverse(structure):
    assert tf.nest.pack_sequence_as(structure, tf.nest.flatten(structure)) == structure


@given(structures)
def test_map_structure_visits_every_leaf(structure):
    assert tf.nest.flatten(tf.nest.map_structure(lambda x: x + 1, structure)) == [
        x + 1 for x in tf.nest.flatten(structure)
    ]


def test_structure_differences_name_their_path():
    with pytest.raises(ValueError, match=r"\['a'\]"):
        tf.nest.assert_same_structure({"a": [1]}, {"a": 1})
    with pytest.raises(ValueError, match="2 atoms, but flat_sequence had 1 items"):
        tf.nest.pack_sequence_as([1, 2], [1])
    with pytest.raises(ValueError, match="cannot guarantee that it is safe"):
        tf.nest.pack_sequence_as("leaf", [1, 2])
    with pytest.raises(TypeError, match="incompatible type `<class 'str'>`"):
        tf.nest.pack_sequence_as([1, 2], "ab")
    with pytest.raises(TypeError, match="incompatible type `<class 'int'>`"):
        tf.nest.pack_sequence_as([1], 5)


def test_structure_differences_show_the_leaves():
    with pytest.raises(ValueError, match="is a sequence, while substructure") as raised:
        tf.nest.assert_same_structure(((1, 2), 3), ("a", "b"))
    assert "first structure:\n((., .), .)\nEntire second structure:\n(., .)" in str(raised.value)
    with pytest.raises(ValueError, match="number of elements: the first has 2, the second 1"):
        tf.nest.assert_same_structure([1, 2], [1])
    with pytest.raises(ValueError, match="same set of keys"):
        tf.nest.assert_same_structure({"a": 1}, {"b": 1})


@attr.s
class Pair:
    first = attr.ib()
    second = attr.ib()


def test_objects_of_attrs_are_nested():
    pair = Pair(1, [2, 3])
    assert tf.nest.flatten(pair) == [1, 2, 3]
    assert tf.nest.map_structure(lambda x: 2 * x, pair) == Pair(2, [4, 6])
    with pytest.raises(TypeError, match="sequence type"):
        tf.nest.assert_same_structure(pair, (1, [2, 3]))
    traced = tf.function(lambda p: Pair(p.first + p.second, p.second))
    result = traced(Pair(tf.constant(1), tf.constant(2)))
    assert isinstance(result, Pair) and result.first.numpy() == 3
    assert traced(Pair(tf.constant(4), tf.constant(2))).first.numpy() == 6
    assert traced.experimental_get_tracing_count() == 1


@attr.s(frozen=True)
class Labeled:
    _value = attr.ib()
    label = attr.ib(init=False, default="x")
    scale = attr.ib(kw_only=True)


def test_objects_of_attrs_with_other_arguments_than_fields():
    value = Labeled(1, scale=2)
    assert tf.nest.flatten(value) == [1, "x", 2]
    doubled = tf.nest.map_structure(lambda x: 2 * x, value)
    assert (doubled._value, doubled.label, doubled.scale) == (2, "xx", 4)
    assert tf.function(lambda v, x: v._value + x)(value, tf.constant(2)).numpy() == 3


def test_named_tuples_of_other_names_differ_and_keywords_are_checked():
    one, two = collections.namedtuple("One", "a b"), collections.namedtuple("Two", "a b")
    with pytest.raises(TypeError, match="sequence type"):
        tf.nest.assert_same_structure(one(1, 2), two(1, 2))
    with pytest.raises(ValueError, match="bad"):
        tf.nest.map_structure(lambda x: x, [1], bad=1)


def test_dimensions_of_version_1():
    size = tf.compat.v1.Dimension
    assert (13 - size(12), 2 // size(12), 4 % size(9), [0] * size(2)) == (1, 0, 4, [0, 0])
    assert not size(0) and not size(None) and (size(12) != size(None)) is None
    assert tf.TensorShape([size(3), size(None)]).concatenate(size(2)).as_list() == [3, None, 2]
    with pytest.raises(TypeError, match="must be integer or None"):
        size([])
    with pytest.raises(TypeError, match="use // instead"):
        size(4) / 2


def test_views_of_dictionaries_are_sequences_in_their_order():
    scores = collections.OrderedDict(b=1, a=[2, 3])
    assert tf.nest.flatten(scores.values()) == [1, 2, 3]
    assert tf.nest.flatten({"view": scores.items()}) == ["b", 1, "a", 2, 3]
    assert tf.nest.map_structure(lambda x: x + 1, scores.values()) == [2, [3, 4]]
    tf.nest.assert_same_structure(scores.values(), [5, [6, 7]], check_types=False)
    assert tf.nest.is_nested({}.keys())
    parts = {"a": tf.ones([2, 3]), "b": tf.ones([2, 1])}
    assert tf.keras.layers.concatenate(parts.values()).shape == (2, 4)


def test_errors_show_both_structures():
    with pytest.raises(
        ValueError,
        match=r"structure\.\n\nFirst structure: type=str str=a\n\nSecond structure: type=dict",
    ):
        tf.nest.assert_same_structure("a", {"k": 2.0})


@dataclasses.dataclass
class _Masked:
    is_valid: bool
    values: object

    def __tf_flatten__(self):
        return (self.is_valid,), (self.values,)

    @classmethod
    def __tf_unflatten__(cls, metadata, components):
        return cls(*metadata, *components)


def test_objects_that_flatten_themselves():
    masked = _Masked(True, {"b": tf.constant(2), "a": [tf.constant(1)]})
    assert tf.nest.is_nested(masked)
    assert [int(leaf) for leaf in tf.nest.flatten([masked])] == [1, 2]
    assert tf.nest.pack_sequence_as(masked, [3, 4]) == _Masked(True, {"a": [3], "b": 4})
    assert tf.nest.map_structure(lambda x, y: x + y, _Masked(False, 1), _Masked(True, 2)) == _Masked(False, 3)  # fmt: skip
    doubled = tf.function(lambda m: tf.nest.map_structure(lambda x: x * 2, m))(masked)
    assert doubled.is_valid
    assert int(doubled.values["b"]) == 4
    with pytest.raises(TypeError, match="same sequence type"):
        tf.nest.assert_same_structure(masked, [1])


def test_containers_of_other_types_are_compared_by_their_sizes():
    point = collections.namedtuple("point", "x y")
    for first, second in (
        (point(1, 2), {"x": 1, "z": 2}),
        ([1, 2], {"a": 1, "b": 2}),
        ({"a": 1}, (1,)),
    ):
        tf.nest.assert_same_structure(first, second, check_types=False)
        with pytest.raises(TypeError):
            tf.nest.assert_same_structure(first, second)
    assert tf.nest.map_structure(lambda x, y: x + y, point(1, 2), {"a": 3, "b": 4}, check_types=False) == point(4, 6)  # fmt: skip
    with pytest.raises(ValueError, match="same set of keys"):
        tf.nest.assert_same_structure({"a": 1}, {"b": 1})
    with pytest.raises(ValueError, match="number of elements"):
        tf.nest.assert_same_structure([1], {"a": 1, "b": 2}, check_types=False)
