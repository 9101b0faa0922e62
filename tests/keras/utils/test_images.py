import numpy as np

from meshflow import keras


def test_scaled_images_of_one_channel_have_bytes():
    # 255 / max rounds up for many maxima, so max * (255 / max) may exceed 255.
    modes = {keras.utils.array_to_img(np.array([[[0.0], [m]]])).mode for m in np.arange(1, 300)}
    assert modes == {"L"}
