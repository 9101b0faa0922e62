"""Write saved_asserts.tar.xz, a SavedModel of functions that check their argument.

Run with the peers' Python in this folder: `python generate_saved_asserts.py`.
"""

import os
import shutil
import tarfile

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import tensorflow as tf


class Checks(tf.Module):
    """Functions that fail for negative numbers, infinities, or arguments of size 3."""

    def __init__(self):
        checks = {
            "number": lambda x: tf.debugging.Assert(tf.reduce_all(x >= 0.0), [x]),
            "text": lambda x: tf.debugging.assert_non_negative(x, "is negative"),
            "integer": lambda x: tf.debugging.Assert(
                tf.reduce_all(x >= 0.0), [tf.cast(x, tf.int32), "is negative"]
            ),
            "branch": lambda x: tf.cond(
                tf.reduce_sum(x) < 100.0,
                lambda: self.check(x),
                lambda: 0,
            ),
            "loop": lambda x: tf.while_loop(
                lambda i: i < 2, lambda i: [i + 1 + self.check(x)], [tf.constant(0)]
            ),
            "size": lambda x: tf.debugging.Assert(tf.shape(x)[0] < 3, [x]),
            "numerics": lambda x: tf.debugging.check_numerics(1.0 / tf.maximum(x, 0.0), "quotient"),
        }
        spec = tf.TensorSpec([None], tf.float32)
        for name, check in checks.items():
            setattr(self, name, tf.function(self.make_checked(check), input_signature=[spec]))
        self.shape = tf.function(
            lambda x: 2.0 * tf.ensure_shape(tf.boolean_mask(x, x >= 0.0), [2]),
            input_signature=[spec],
        )

    @staticmethod
    def check(x):
        """Check a tensor, and return 0."""
        with tf.control_dependencies([tf.debugging.assert_non_negative(x)]):
            return tf.constant(0)

    @staticmethod
    def make_checked(check):
        """Return a function that doubles its argument after a check."""

        def double(x):
            check(x)
            return 2.0 * x

        return double


def main():
    tf.saved_model.save(Checks(), "saved_asserts")
    with tarfile.open("saved_asserts.tar.xz", "w:xz") as archive:
        archive.add("saved_asserts/saved_model.pb")
        for name in os.listdir("saved_asserts/variables"):
            archive.add(f"saved_asserts/variables/{name}")
    loaded = tf.saved_model.load("saved_asserts")
    for name in ("number", "text", "integer", "branch", "loop", "numerics", "shape"):
        function = getattr(loaded, name)
        print(name, function(tf.constant([1.0, 2.0])).numpy())
        try:
            print("accepts", function(tf.constant([-1.0, 2.0])).numpy())
        except Exception as error:
            print(type(error).__name__, str(error)[:300])
    shutil.rmtree("saved_asserts")


if __name__ == "__main__":
    main()
