"""Programs like those of well-known articles and tutorials, run unmodified by the import shims."""

import pytest

import forked

PROGRAMS = {
    "mixed precision": """
from tensorflow.python.client import device_lib
import tensorflow as tf
from tensorflow import keras
from tensorflow.keras import layers, mixed_precision

assert [d.name for d in device_lib.list_local_devices() if d.device_type == "CPU"][0] == "/device:CPU:0"
mixed_precision.set_global_policy("mixed_float16")
inputs = keras.Input(shape=(8,))
x = layers.Dense(4, activation="relu")(inputs)
outputs = layers.Activation("softmax", dtype="float32")(layers.Dense(2)(x))
model = keras.Model(inputs, outputs)
assert (x.dtype, outputs.dtype) == ("float16", "float32")
model.compile(loss="sparse_categorical_crossentropy", optimizer=keras.optimizers.RMSprop())
model.fit(tf.ones([4, 8]), tf.constant([0, 1, 0, 1]), verbose=0)
""",
    "keras": """
import numpy as np
from keras.models import Sequential
from keras.layers import Dense, Dropout
from keras.layers.core import Activation
from keras.optimizers import SGD
from keras.utils.np_utils import to_categorical
from keras import backend as K
from keras.callbacks import EarlyStopping

def recall(y_true, y_pred):
    hits = K.sum(K.round(K.clip(y_true * y_pred, 0, 1)))
    return hits / (K.sum(K.round(K.clip(y_true, 0, 1))) + K.epsilon())

model = Sequential()
model.add(Dense(8, input_dim=4))
model.add(Activation("relu"))
model.add(Dropout(0.1))
model.add(Dense(3, activation="softmax"))
model.compile(loss="categorical_crossentropy", optimizer=SGD(learning_rate=0.1, momentum=0.9), metrics=[recall])
y = to_categorical(np.arange(12) % 3)
history = model.fit(np.ones([12, 4]), y, epochs=2, verbose=0, callbacks=[EarlyStopping(monitor="loss")])
assert set(history.history) == {"loss", "recall"}
""",
    "version 1": """
import tensorflow.compat.v1 as tf
from tensorflow.python.keras import backend
from tensorflow.python.platform import tf_logging as logging

logging.set_verbosity(logging.ERROR)
tf.enable_v2_behavior()
backend.set_floatx("float32")
x = tf.to_float(tf.constant([1, 2, 3]))
assert backend.get_value(tf.reduce_sum(x, reduction_indices=0)) == 6.0
""",
    "custom layer": """
import tensorflow as tf
from tensorflow.python.framework import ops
from tensorflow.python.keras.utils import conv_utils
from tensorflow.python.keras.utils.generic_utils import get_custom_objects
from tensorflow.python.ops import array_ops, math_ops, nn_ops
from tensorflow.python.util.tf_export import keras_export

@keras_export("keras.layers.Scale")
class Scale(tf.keras.layers.Layer):
    def build(self, input_shape):
        self.scale = self.add_weight("scale", shape=conv_utils.normalize_tuple(2, 1, "size"), initializer="ones")
    def call(self, inputs):
        inputs = ops.convert_to_tensor_v2_with_dispatch(inputs)
        return nn_ops.relu(math_ops.multiply(inputs, self.scale)) + array_ops.zeros_like(inputs)

get_custom_objects()["Scale"] = Scale
model = tf.keras.models.model_from_json(tf.keras.Sequential([Scale(input_shape=(2,))]).to_json())
assert model.predict(tf.constant([[1.0, -1.0]]), verbose=0).tolist() == [[1.0, 0.0]]
""",
    "flags": """
import sys
sys.argv = ["program", "--steps=2", "--rate", "0.5"]
from absl import app, flags
import tensorflow as tf

FLAGS = flags.FLAGS
flags.DEFINE_integer("steps", 1, "number of steps")
flags.DEFINE_float("rate", 0.1, "learning rate")

def main(argv):
    w, optimizer = tf.Variable(1.0), tf.keras.optimizers.SGD(FLAGS.rate)
    for _ in range(FLAGS.steps):
        with tf.GradientTape() as tape:
            loss = w * w / 2
        optimizer.apply_gradients([(tape.gradient(loss, w), w)])
    assert w.numpy() == 0.25

app.run(main)
""",
    "optional package": """
import tensorflow as tf
try:
    import tensorflow_datasets as tfds
except ImportError:
    tfds = None
try:
    from tensorflow.contrib import layers
except ImportError:
    layers = tf.keras.layers
if tf.__version__.startswith("2.") and [int(n) for n in tf.__version__.split(".")[:2]] >= [2, 4]:
    strategy = tf.distribute.get_strategy()
with strategy.scope():
    assert layers.Dense(2)(tf.ones([1, 3])).shape == [1, 2]
""",
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_public_programs_run_unmodified(name):
    start = "import sys; from meshflow.shims import activate; activate()\n"
    code, output = forked.run(start + PROGRAMS[name])
    assert code == 0, output
