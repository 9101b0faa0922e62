"""The table that `Model.summary` prints has the columns, breaks and frames of Keras 2."""

import numpy as np

import meshflow as tf

layers = tf.keras.layers


def lines(model, **options):
    found = []
    model.summary(print_fn=found.append, **options)
    return "\n".join(found).split("\n")


def test_columns_and_rows_that_are_too_long():
    model = tf.keras.Sequential(
        [
            layers.Dense(4, input_shape=(3,), name="d"),
            layers.BatchNormalization(name="a_long_name"),
        ],
        name="s",
    )
    rows = lines(model)
    assert rows[0] == 'Model: "s"' and rows[1] == "_" * 65
    assert rows[2] == " Layer (type)                Output Shape              Param #   "
    assert rows[4] == " d (Dense)                   (None, 4)                 16        "
    assert rows[6:8] == [
        " a_long_name (BatchNormaliz  (None, 4)                 16        ",
        " ation)                                                          ",
    ]
    assert rows[-4:-1] == [
        "Total params: 32 (128.00 Byte)",
        "Trainable params: 24 (96.00 Byte)",
        "Non-trainable params: 8 (32.00 Byte)",
    ]


def test_several_sources_are_listed_on_separate_lines():
    given = [tf.keras.Input((2,), name=name) for name in "ab"]
    rows = lines(tf.keras.Model(given, layers.Add(name="sum")(given)))
    at = next(i for i, row in enumerate(rows) if row.startswith(" sum"))
    assert rows[at].endswith("['a[0][0]',                   ")
    assert rows[at + 1].strip() == "'b[0][0]']"


def test_models_inside_are_framed():
    inner = tf.keras.Sequential([layers.Dense(2, name="x"), layers.ReLU(name="y")], name="inner")
    rows = lines(tf.keras.Sequential([tf.keras.Input((3,)), inner]), expand_nested=True)
    at = next(i for i, row in enumerate(rows) if row.startswith(" inner"))
    assert rows[at + 1] == f"|{'¯' * 63}|"
    assert rows[at + 2] == "| x (Dense)                  (None, 2)                 8        |"
    assert rows[at + 3] == f"|{' ' * 63}|"
    assert rows[at + 4].startswith("| y (ReLU)")
    assert rows[at + 5] == "¯" * 65


def test_layers_of_a_subclass_have_shapes_of_several_calls():
    class Wrapper(tf.keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = layers.Dense(2, name="dense")

        def call(self, inputs):
            return self.dense(inputs)

    model = Wrapper()
    model(np.zeros((1, 3)))
    assert " dense (Dense)               multiple                  8         " in lines(model)
