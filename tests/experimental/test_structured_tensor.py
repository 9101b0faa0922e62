"""`tf.experimental.StructuredTensor`, with results of TensorFlow 2.21."""

import pytest

import meshflow as tf

Structured = tf.experimental.StructuredTensor
PAIRS = [{"x": 1, "y": [1, 2]}, {"x": 2, "y": [3]}]
ROWS = [[{"x": 1}, {"x": 2}], [], [{"x": 3}]]
NESTED = [{"u": {"a": [1]}, "v": [{"b": 2}, {"b": 3}]}, {"u": {"a": []}, "v": []}]


def make(pyval):
    return Structured.from_pyval(pyval)


@pytest.mark.parametrize("pyval", [{"x": 1, "y": [1, 2]}, PAIRS, ROWS, NESTED])
def test_round_trip(pyval):
    value = make(pyval)
    assert value.to_pyval() == pyval
    assert tf.function(lambda s: s)(value).to_pyval() == pyval
    assert bool(value == make(pyval))


@pytest.mark.parametrize(
    ("compute", "expected"),
    [
        (lambda: [make(p).shape.as_list() for p in ({"x": 1}, PAIRS, ROWS)], [[], [2], [3, None]]),
        (lambda: [make(p).rank for p in ({"x": 1}, PAIRS, ROWS)], [0, 1, 2]),
        (lambda: make(NESTED).field_names(), ("u", "v")),
        (lambda: [int(make(ROWS).nrows()), make({"x": 1}).nrows()], [3, None]),
        (lambda: make(NESTED).field_value(("v", "b")).to_list(), [[2, 3], []]),
        (lambda: make(ROWS).row_partitions[0].row_splits().numpy().tolist(), [0, 2, 2, 3]),
        (lambda: make(PAIRS)[0].to_pyval(), PAIRS[0]),
        (lambda: [make(ROWS)[0].to_pyval(), make(ROWS)[0, 1].to_pyval()], [ROWS[0], ROWS[0][1]]),
        (lambda: [make(ROWS)[1:].to_pyval(), make(ROWS)[:, :1].to_pyval()], [ROWS[1:], [[{"x": 1}], [], [{"x": 3}]]]),
        (lambda: [make(PAIRS)[:, "x"].numpy().tolist(), make(PAIRS)[1, "y"].numpy().tolist()], [[1, 2], [3]]),
        (lambda: Structured.from_fields({"x": [1, 2]}, [2]).to_pyval(), [{"x": 1}, {"x": 2}]),
        (lambda: Structured.from_fields({}, [2]).to_pyval(), [{}, {}]),
        (lambda: Structured.from_fields_and_rank({"x": [[1, 2]]}, 2).to_pyval(), [[{"x": 1}, {"x": 2}]]),
        (lambda: make(PAIRS).with_updates({"y": None, "z": [5, 6]}).to_pyval(), [{"x": 1, "z": 5}, {"x": 2, "z": 6}]),
        (lambda: make(NESTED).with_updates({("u", "a"): None, "v": None}).to_pyval(), [{"u": {}}, {"u": {}}]),
        (lambda: make(ROWS).merge_dims(0, 1).to_pyval(), [{"x": 1}, {"x": 2}, {"x": 3}]),
        (lambda: make(NESTED).promote(("v", "b"), "c").field_value("c").to_list(), [[2, 3], []]),
        (lambda: make([{"x": 1}, {"x": 2}, {"x": 3}]).partition_outer_dimension(
            tf.experimental.RowPartition.from_row_lengths([2, 1])).to_pyval(), [[{"x": 1}, {"x": 2}], [{"x": 3}]]),
        (lambda: Structured.from_shape(tf.experimental.DynamicRaggedShape.from_lengths([2])).to_pyval(), [{}, {}]),
        (lambda: tf.function(lambda s: s.with_updates({"x": s.field_value("x") * 2}))(make(PAIRS)).to_pyval(),
         [{"x": 2, "y": [1, 2]}, {"x": 4, "y": [3]}]),
        (lambda: str(make(PAIRS)), '<StructuredTensor(\n    fields={\n        "x": tf.Tensor([1 2], shape=(2,), dtype=int32),\n'
         '        "y": <tf.RaggedTensor [[1, 2], [3]]>},\n    shape=(2,))>'),
    ],
)  # fmt: skip
def test_values(compute, expected):
    assert compute() == expected


@pytest.mark.parametrize(
    ("use", "error"),
    [
        (lambda: make(PAIRS).field_value("z"), KeyError),
        (lambda: make(PAIRS)["x"], TypeError),
        (lambda: Structured.from_fields({"x": [1, 2]}, [3]), ValueError),
        (lambda: Structured.from_fields({"x": [1, 2], "y": [1, 2, 3]}, [None]), ValueError),
        (lambda: Structured.from_fields({1: [1]}, [1]), TypeError),
        (lambda: make([{"x": 1}, {"y": 2}]), KeyError),
    ],
)
def test_errors(use, error):
    with pytest.raises(error):
        use()


def test_ops_apply_to_fields():
    value = make([{"x": 1, "y": [1, 2]}, {"x": 3, "y": []}])
    rows = value.to_pyval()
    assert tf.concat([value, value], 0).to_pyval() == rows * 2
    assert tf.gather(value, [1, 0]).to_pyval() == rows[::-1]
    assert tf.expand_dims(value, 1).to_pyval() == [[row] for row in rows]
    shuffled = tf.random.shuffle(value, seed=1).to_pyval()
    assert sorted(row["x"] for row in shuffled) == [1, 3]
    assert (int(tf.size(value)), int(tf.rank(value))) == (2, 1)
    assert tf.shape(value).static_lengths() == [2]
    assert tf.ones_like(value, tf.int32).numpy().tolist() == [1, 1]
    empty = Structured.from_shape(tf.experimental.DynamicRaggedShape.from_lengths([2]))
    assert tf.concat([empty, empty], 0).shape == [4]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda s: tf.concat([s, s], 1), "axis=1 out of bounds"),
        (lambda s: tf.concat([s, tf.constant([1])], 0), "must be a list of StructuredTensors"),
        (lambda s: tf.concat([s, make([[{"x": 1}]])], 0), "Ranks of sub-message do not match"),
        (lambda s: tf.concat([s, make([{"y": 1}])], 0), "must have the same fields"),
        (lambda s: tf.gather(make({"x": 1}), 0), "axis=0 out of bounds"),
        (lambda s: tf.random.shuffle(make({"x": 1})), "scalar"),
    ],
)
def test_ops_check_shapes_and_fields(call, message):
    with pytest.raises(ValueError, match=message):
        call(make([{"x": 1}]))
