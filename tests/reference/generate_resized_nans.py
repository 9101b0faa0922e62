"""Write resized_nans.npz: TensorFlow's results and gradients of resizing an image with NaN and infinity.

TF_USE_LEGACY_KERAS=1 python tests/reference/generate_resized_nans.py
"""

from pathlib import Path

import numpy as np
import tensorflow as tf

METHODS = ("bilinear", "nearest", "bicubic", "area", "lanczos3", "lanczos5", "gaussian")


def main():
    image = np.random.RandomState(0).rand(1, 6, 7, 2).astype("float32")
    image[0, 2, 3, 0], image[0, 4, 1, 1] = np.nan, np.inf
    results = {"image": image}
    for method in (*METHODS, "mitchellcubic"):
        for height, width in ((12, 14), (4, 5)):
            for antialias in (0, 1):
                name = f"{method}_{height}_{width}_{antialias}"
                x = tf.constant(image)
                with tf.GradientTape() as tape:
                    tape.watch(x)
                    y = tf.image.resize(x, (height, width), method, antialias=bool(antialias))
                results[name] = y.numpy()
                if method != "area":  # TensorFlow defines no gradient.
                    gradient = np.zeros(y.shape, "float32")
                    gradient[0, 1, 1, 0], gradient[0, 2, 2, 1] = np.nan, 1
                    results["grad_" + name] = tape.gradient(y, x, tf.constant(gradient)).numpy()
    np.savez_compressed(Path(__file__).with_name("resized_nans.npz"), **results)


if __name__ == "__main__":
    main()
