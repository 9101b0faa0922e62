"""Encode small images, and decode them in TensorFlow; run in the peers' environment."""

import os
import struct
import zlib
from pathlib import Path

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import numpy as np
import tensorflow as tf

# Expressions that tests/ops/test_image_codecs.py evaluates for each file, given its bytes `c`.
EXPRESSIONS = {
    "rgb.jpg": [
        "tf.io.decode_jpeg(c)",
        "tf.io.decode_jpeg(c, channels=1)",
        "tf.io.decode_jpeg(c, ratio=2)",
        "tf.image.decode_and_crop_jpeg(c, [3, 2, 7, 5])",
        "tf.image.decode_image(c, dtype=tf.float32)",
        "tf.image.extract_jpeg_shape(c)",
        "tf.io.is_jpeg(c)",
    ],
    "gray.jpg": ["tf.io.decode_jpeg(c)", "tf.io.decode_jpeg(c, channels=3)"],
    "rgb.png": [
        "tf.io.decode_png(c)",
        "tf.io.decode_png(c, channels=1)",
        "tf.io.decode_png(c, channels=4)",
        "tf.io.decode_image(c)",
        "tf.io.decode_image(c, dtype=tf.uint16)",
        "tf.io.is_jpeg(c)",
    ],
    "rgba.png": ["tf.io.decode_png(c)", "tf.io.decode_png(c, channels=3)"],
    "gray.png": ["tf.io.decode_png(c)", "tf.io.decode_png(c, channels=3)"],
    "deep.png": [
        "tf.io.decode_png(c, dtype=tf.uint16)",
        "tf.io.decode_png(c)",
    ],
    "palette.png": ["tf.io.decode_png(c, channels=3)", "tf.io.decode_image(c)"],
    "two.gif": [
        "tf.io.decode_gif(c)",
        "tf.io.decode_image(c)",
        "tf.io.decode_image(c, expand_animations=False)",
    ],
    "rgb.bmp": ["tf.io.decode_bmp(c)", "tf.io.decode_image(c, channels=3)"],
}


COLORS = bytes([10, 20, 30, 200, 100, 50, 0, 255, 128, 255, 255, 255])
PIXELS = np.array([[0, 1, 2, 3], [3, 3, 1, 0], [2, 0, 0, 1]], "uint8")


def palette_png():
    """Return a PNG file whose pixels are indices of colours."""

    def chunk(kind, data):
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    rows = b"".join(b"\0" + row.tobytes() for row in PIXELS)
    header = struct.pack(">IIBBBBB", 4, 3, 8, 3, 0, 0, 0)
    parts = [(b"IHDR", header), (b"PLTE", COLORS), (b"IDAT", zlib.compress(rows)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*p) for p in parts)


def gif():
    """A GIF file of two frames, not compressed: the code table is cleared before every other pixel."""
    found = b"GIF89a" + struct.pack("<HHBBB", 4, 3, 0x81, 0, 0) + COLORS
    for pixels in (PIXELS, PIXELS[::-1]):
        bits = ""
        for i in range(0, pixels.size, 2):
            for code in (4, *pixels.reshape(-1)[i : i + 2]):
                bits = f"{code:03b}" + bits
        bits = "101" + bits
        data = int(bits, 2).to_bytes((len(bits) + 7) // 8, "little")
        found += (
            b"\x21\xf9\x04\x00\x0a\x00\x00\x00" + b"\x2c" + struct.pack("<HHHHB", 0, 0, 4, 3, 0)
        )
        found += b"\x02" + bytes([len(data)]) + data + b"\0"
    return found + b";"


def bmp(rgb):
    """A BMP file, rows from the bottom, colours blue first."""
    height, width = rgb.shape[:2]
    pad = -3 * width % 4
    rows = b"".join(row[:, ::-1].tobytes() + b"\0" * pad for row in rgb[::-1])
    header = struct.pack("<IiiHHIIiiII", 40, width, height, 1, 24, 0, len(rows), 2835, 2835, 0, 0)
    return b"BM" + struct.pack("<IHHI", 54 + len(rows), 0, 0, 54) + header + rows


def files():
    """Encoded images by name."""
    rng = np.random.default_rng(0)
    # Smooth with a little noise, as JPEG expects.
    y, x = np.mgrid[:16, :20]
    waves = [128 + 90 * np.sin(y / 3 + k) + 30 * np.cos(x / 4 - k) for k in range(4)]
    image = np.clip(np.stack(waves, -1) + rng.normal(0, 4, (16, 20, 4)), 0, 255).astype("uint8")
    rgb, gray = image[..., :3], image[..., :1]

    return {
        "rgb.jpg": tf.io.encode_jpeg(rgb, quality=90).numpy(),
        "gray.jpg": tf.io.encode_jpeg(gray, quality=90).numpy(),
        "rgb.png": tf.io.encode_png(rgb).numpy(),
        "rgba.png": tf.io.encode_png(image).numpy(),
        "gray.png": tf.io.encode_png(gray).numpy(),
        "deep.png": tf.io.encode_png(tf.cast(gray, tf.uint16) * 200).numpy(),
        "palette.png": palette_png(),
        "two.gif": gif(),
        "rgb.bmp": bmp(rgb),
    }


def main():
    stored = {}
    for name, data in files().items():
        stored[name] = np.frombuffer(data, np.uint8)
        for number, expression in enumerate(EXPRESSIONS[name]):
            result = eval(expression, {"tf": tf, "c": tf.constant(data)})
            stored[f"{name}_{number}"] = result.numpy()
    rgb = tf.io.decode_png(files()["rgb.png"])
    for quality in (20, 80):
        stored[f"quality_{quality}"] = tf.image.adjust_jpeg_quality(rgb, quality).numpy()
        share = tf.image.convert_image_dtype(rgb, tf.float32)
        stored[f"quality_float_{quality}"] = tf.image.adjust_jpeg_quality(share, quality).numpy()
    stored["expressions"] = np.array([f"{n}|{e}" for n in EXPRESSIONS for e in EXPRESSIONS[n]])
    np.savez_compressed(
        Path(__file__).with_name("images.npz"), version=np.array(tf.__version__), **stored
    )


if __name__ == "__main__":
    main()
