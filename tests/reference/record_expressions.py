"""Examples, tensors and calls of the parsing functions that TensorFlow and Meshflow both run."""

import numpy as np

EXPRESSIONS = [
    "tf.io.parse_single_example(examples[0], {'n': tf.io.FixedLenFeature([], tf.int64)})",
    "tf.io.parse_single_example(examples[0], {'xs': tf.io.FixedLenFeature([2, 2], tf.float32), 's': tf.io.FixedLenFeature([], tf.string)})",
    "tf.io.parse_single_example(examples[0], {'none': tf.io.FixedLenFeature([2], tf.int64, 7)})",
    "tf.io.parse_single_example(examples[0], {'none': tf.io.FixedLenFeature([2], tf.float32, [1.0, 2.0])})",
    "tf.io.parse_single_example(examples[0], {'none': tf.io.FixedLenFeature([], tf.string, 'd')})",
    "tf.io.parse_single_example(examples[0], {'empty': tf.io.FixedLenFeature([1], tf.string, 'd')})",
    "tf.io.parse_single_example(examples[0], {'var': tf.io.FixedLenSequenceFeature([], tf.int64, allow_missing=True)})",
    "tf.io.parse_single_example(examples[1], {'var': tf.io.VarLenFeature(tf.int64), 'none': tf.io.VarLenFeature(tf.string)})",
    "tf.io.parse_example(examples, {'n': tf.io.FixedLenFeature([], tf.int64), 'xs': tf.io.FixedLenFeature((4,), tf.float32)})",
    "tf.io.parse_example(examples, {'var': tf.io.FixedLenSequenceFeature([], tf.int64, True)})",
    "tf.io.parse_example(examples, {'var': tf.io.FixedLenSequenceFeature([], tf.int64, True, -1)})",
    "tf.io.parse_example(examples, {'xs': tf.io.FixedLenSequenceFeature([2], tf.float32, True)})",
    "tf.io.parse_example(examples, {'none': tf.io.FixedLenSequenceFeature([], tf.string, True)})",
    "tf.io.parse_example(examples, {'var': tf.io.VarLenFeature(tf.int64)})",
    "tf.io.parse_example(examples, {'none': tf.io.VarLenFeature(tf.float32)})",
    "tf.io.parse_example(examples[:0], {'n': tf.io.FixedLenFeature([3], tf.int64)})",
    "tf.io.parse_example(examples, {'sp': tf.io.SparseFeature('ix', 'v', tf.float32, 10)})",
    "tf.io.parse_single_example(examples[0], {'sp': tf.io.SparseFeature(['ix', 'iy'], 'v', tf.float32, [10, 9])})",
    "tf.io.parse_single_example(examples[0], {'n': tf.io.FixedLenFeature([], tf.float32)})",
    "tf.io.parse_single_example(examples[0], {'none': tf.io.FixedLenFeature([], tf.int64)})",
    "tf.io.parse_single_example(examples[0], {'xs': tf.io.FixedLenFeature([3], tf.float32)})",
    "tf.io.parse_single_example(examples[0], {'xs': tf.io.FixedLenSequenceFeature([3], tf.float32, True)})",
    "tf.io.parse_single_example(examples[0], {'xs': tf.io.FixedLenSequenceFeature([], tf.float32)})",
    "tf.io.parse_single_example(examples[0], {'xs': tf.io.FixedLenFeature([None], tf.float32)})",
    "tf.io.parse_single_example('junk', {'n': tf.io.FixedLenFeature([], tf.int64)})",
    "tf.io.parse_single_example(examples[0], {})",
    "tf.io.parse_single_sequence_example(sequences[0], {'id': tf.io.FixedLenFeature([], tf.int64)}, {'steps': tf.io.FixedLenSequenceFeature([2], tf.float32)})",
    "tf.io.parse_single_sequence_example(sequences[0], sequence_features={'none': tf.io.FixedLenSequenceFeature([2], tf.float32, True)})",
    "tf.io.parse_single_sequence_example(sequences[0], sequence_features={'words': tf.io.VarLenFeature(tf.string)})",
    "tf.io.parse_single_sequence_example(sequences[0], sequence_features={'none': tf.io.FixedLenSequenceFeature([], tf.int64)})",
    "tf.io.parse_single_sequence_example(sequences[0], sequence_features={'words': tf.io.FixedLenSequenceFeature([2], tf.string)})",
    "tf.io.parse_sequence_example(sequences, {'id': tf.io.FixedLenFeature([], tf.int64)}, {'steps': tf.io.FixedLenSequenceFeature([2], tf.float32)})",
    "tf.io.parse_sequence_example(sequences, sequence_features={'words': tf.io.VarLenFeature(tf.string)})[:2]",
]


def expressions():
    """The calls."""
    return EXPRESSIONS


def examples(tf):
    """Examples, and sequence examples."""
    train = tf.train

    def integers(*values):
        return train.Feature(int64_list=train.Int64List(value=values))

    def floats(*values):
        return train.Feature(float_list=train.FloatList(value=values))

    def strings(*values):
        return train.Feature(bytes_list=train.BytesList(value=values))

    first = {
        "n": integers(-3),
        "xs": floats(1.5, -2, 3, 4),
        "s": strings(b"hello"),
        "var": integers(1, 2, 3),
        "ix": integers(7, 2),
        "iy": integers(1, 8),
        "v": floats(0.5, 2.5),
        "empty": train.Feature(),
    }
    second = {
        "n": integers(2**40),
        "xs": floats(0, 0, 1e-30, 4),
        "s": strings(b"a"),
        "var": integers(9),
        "ix": integers(),
        "v": floats(),
    }
    single = [
        train.Example(features=train.Features(feature=f))
        for f in (first, second, {**first, **second})
    ]

    def sequence(number, steps, words):
        lists = {
            "steps": train.FeatureList(feature=[floats(*s) for s in steps]),
            "words": train.FeatureList(feature=[strings(*w) for w in words]),
        }
        return train.SequenceExample(
            context=train.Features(feature={"id": integers(number)}),
            feature_lists=train.FeatureLists(feature_list=lists),
        )

    return single, [
        sequence(1, [(1, 2), (3, 4), (5, 6)], [(b"a", b"b"), (b"c",)]),
        sequence(2, [(7, 8)], [(), (b"d", b"e", b"f")]),
    ]


def tensors(tf):
    """Tensors to be serialized."""
    kinds = ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
    kinds += ("float16", "bfloat16", "float32", "float64", "complex64", "complex128")
    numbers = np.array([[0, 1, 2], [3, 1, 1]])
    made = [tf.constant(numbers.astype(tf.as_dtype(k).as_numpy_dtype)) for k in kinds]
    return [
        *made,
        tf.constant([["a", "bc"]]),
        tf.constant("x"),
        tf.constant(2.5),
        tf.constant(np.zeros((0, 3), "f4")),
        tf.constant(np.ones((2, 2), "i4")),
    ]
