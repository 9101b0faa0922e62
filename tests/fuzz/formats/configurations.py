"""Configurations in JSON: of models, of single objects, and element specs of saved datasets."""

import functools
import json

import meshflow as tf
from fuzz.formats.models import model
from fuzz.formats.protos import tried


@functools.cache
def seeds():
    layers, keras = tf.keras.layers, tf.keras
    inputs = keras.Input([4], name="x")
    branches = [layers.Dense(2, "relu")(inputs), layers.Dense(2)(inputs)]
    functional = keras.Model(inputs, layers.Add()(branches))
    recurrent = keras.Sequential([keras.Input([3, 2]), layers.Bidirectional(layers.LSTM(2))])
    objects = [
        layers.Conv2D(2, 3, kernel_regularizer="l2"),
        layers.StringLookup(vocabulary=["a", "b"]),
        layers.TextVectorization(max_tokens=5),
        keras.optimizers.Adam(keras.optimizers.schedules.CosineDecay(0.1, 9)),
        keras.losses.Huber(),
        keras.metrics.AUC(),
        keras.initializers.GlorotUniform(3),
    ]
    stored = [json.dumps(keras.saving.serialize_keras_object(one)) for one in objects]
    return [t.encode() for t in (*(m.to_json() for m in (model(), functional, recurrent)), *stored)]


def parse(data):
    try:
        config = json.loads(data)
    except (ValueError, RecursionError):
        return  # Archives and manifests read damaged JSON.
    tried(
        lambda: tf.keras.models.model_from_json(json.dumps(config)),
        lambda: tf.keras.saving.deserialize_keras_object(config),
    )
