"""Share code of image formats."""

import io

import numpy as np

from meshflow.kernels import images

PIXELS = (np.arange(9 * 13 * 3).reshape(9, 13, 3) * 7 % 251).astype(np.uint8)


def encoded(kind, mode="RGB", **options):
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(PIXELS).convert(mode).save(file, kind, **options)
    return file.getvalue()


def loaded(data):
    """Run the fused map functions."""
    out = np.zeros((4, 4, 3), np.float32)
    how = images.ImageLoadingOptions(False, 3, 1, True, True, 4, 4)
    images.load_images([data], how, np.array([[0, 0, 4, 4]]), [()], np.zeros(1), [out])
