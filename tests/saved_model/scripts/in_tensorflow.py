"""Load SavedModels in TensorFlow and test them: results, gradients, training, serving, conversion.

Arguments: a folder, and names of models in it. `NAME.npz` has inputs `x0`, ...; results are written
to `NAME.tf.npz`.
"""

import os
import sys

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import numpy as np
import tensorflow as tf
import tf_keras


def loss_of(outputs):
    return sum(tf.reduce_sum(v**2) for v in tf.nest.flatten(outputs))


def check(folder, name):
    """Return TensorFlow's results for one model."""
    path, found = f"{folder}/{name}", {}
    with np.load(f"{path}.npz") as file:
        names = file["names"].tolist()
        inputs = [tf.constant(file[f"x{i}"]) for i in range(len(names))]
    given = inputs[0] if len(inputs) == 1 else inputs
    model = tf.saved_model.load(path)
    with tf.GradientTape() as tape:
        outputs = model(given)
        loss = loss_of(outputs)
    weights = {v.name: v for v in tape.watched_variables()}
    for i, value in enumerate(tf.nest.flatten(outputs)):
        found[f"y{i}"] = value
    watched = sorted(weights)
    gradients = tape.gradient(loss, [weights[n] for n in watched])
    found["weights"] = np.array(watched)
    found |= {f"g{i}": tf.convert_to_tensor(g) for i, g in enumerate(gradients)}
    signature = model.signatures["serving_default"]
    named = dict(zip(names, inputs, strict=True))
    found["one"] = next(iter(signature(**{k: v[:1] for k, v in named.items()}).values()))
    losses = []
    for _ in range(3):
        with tf.GradientTape() as tape:
            loss = loss_of(model(given, training=True))
        found_gradients = tape.gradient(loss, list(weights.values()))
        # Steep ones do not make the next loss larger.
        clipped, _ = tf.clip_by_global_norm(found_gradients, 10.0)
        for weight, gradient in zip(weights.values(), clipped, strict=True):
            weight.assign_sub(0.01 * tf.convert_to_tensor(gradient))
        losses.append(loss)
    found["losses"] = np.array(losses)
    # Saved there again, it still has its gradients.
    tf.saved_model.save(tf.saved_model.load(path), f"{path}.again")
    with tf.GradientTape() as tape:
        outputs = tf.saved_model.load(f"{path}.again")(given)
        loss = loss_of(outputs)
    found["again"] = tf.nest.flatten(outputs)[0]
    found["trainable_again"] = len(tape.gradient(loss, tape.watched_variables()))
    arrays = {k: v.numpy() for k, v in named.items()}
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        meta = tf.compat.v1.saved_model.loader.load(session, ["serve"], path)
        about = meta.signature_def["serving_default"]
        feed = {about.inputs[k].name: arrays[k] for k in named}
        served = session.run([about.outputs[k].name for k in sorted(about.outputs)], feed)
        found |= {f"served{i}": v for i, v in enumerate(served)}
    made = tf_keras.models.load_model(path)
    outputs = tf.nest.flatten(made(given))
    found |= {f"keras{i}": v for i, v in enumerate(outputs)}
    made.compile("sgd", "mse")
    found["keras_losses"] = made.fit(given, outputs, epochs=2, verbose=0).history["loss"]
    if os.environ.get("CONVERT"):
        found["lite"] = _run_converted(path, inputs)
    np.savez(f"{path}.tf.npz", **{k: np.asarray(v) for k, v in found.items()})


def _run_converted(path, inputs):
    data = tf.lite.TFLiteConverter.from_saved_model(path).convert()
    interpreter = tf.lite.Interpreter(model_content=data)
    place = interpreter.get_input_details()[0]["index"]
    interpreter.resize_tensor_input(place, inputs[0].shape)
    interpreter.allocate_tensors()
    interpreter.set_tensor(place, inputs[0].numpy())
    interpreter.invoke()
    return interpreter.get_tensor(interpreter.get_output_details()[0]["index"])


if __name__ == "__main__":
    for each in sys.argv[2:]:
        check(sys.argv[1], each)
