"""GIF images and animations."""

import functools

import meshflow as tf
from fuzz.formats.images import PIXELS, encoded


@functools.cache
def seeds():
    from PIL import Image

    frames = [Image.fromarray(PIXELS[::step]) for step in (1, 2, 3)]
    whole = [Image.fromarray(PIXELS + n) for n in range(3)]
    return [
        encoded("GIF"),
        encoded("GIF", "L"),
        encoded("GIF", save_all=True, append_images=frames, disposal=2),
        encoded("GIF", save_all=True, append_images=whole),
    ]


def parse(data):
    tf.io.decode_gif(data)
    tf.io.decode_image(data, expand_animations=False)
