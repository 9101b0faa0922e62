"""Test images that declare more pixels than their files contain or than the limit permits: refused
before allocation."""

import io
import os
import struct
import sys
import textwrap
import zlib

import numpy as np
import pytest

import forked
import meshflow as tf
from meshflow.kernels import images, resize
from meshflow.ops.image import pillow_files

Image = pytest.importorskip("PIL.Image")
D = tf.data.Dataset


def png(height, width, content=b"\0\0\0\0"):
    def chunk(name, data):
        check = zlib.crc32(name + data)
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", check)

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    end = chunk(b"IDAT", zlib.compress(content)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + end


def encode_image(kind, mode="RGB", **options):
    file = io.BytesIO()
    Image.new(mode, (13, 9)).save(file, kind, **options)
    return bytearray(file.getvalue())


def read(path):
    return tf.io.decode_image(tf.io.read_file(path), channels=3, expand_animations=False)


def resize_file(path):
    return tf.image.resize(read(path), [4, 4])


def in_batches(path):
    return D.from_tensor_slices([path] * 3).map(resize_file).batch(3)


WAYS = {
    "alone": read,
    "in a map": lambda path: list(D.from_tensor_slices([path]).map(read)),
    "in a map that loads images": lambda path: list(D.from_tensor_slices([path]).map(resize_file)),
    "in batches": lambda path: list(in_batches(path)),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("size", [1_000_000, 60_000, 4_000])
def test_a_small_file_of_a_large_image_is_refused_by_its_name(tmp_path, way, size):
    path = tmp_path / "large.png"
    path.write_bytes(png(size, size))
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"large\.png: Invalid PNG") as caught:
        WAYS[way](str(path))
    assert str(caught.value).count(str(path)) == 1


def test_oversized_images_allocate_no_memory(tmp_path):
    (tmp_path / "large.png").write_bytes(png(60_000, 60_000))
    code = f"""
    import resource, sys
    sys.path += {[os.path.dirname(__file__), *sys.path]!r}
    import test_image_limits as t
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for way in t.WAYS.values():
        try:
            way(sys.argv[1])
        except t.tf.errors.InvalidArgumentError:
            continue
        raise SystemExit("not refused")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300_000
    """
    assert forked.run(textwrap.dedent(code), tmp_path / "large.png") == [0, ""]


def jpeg(progressive=False):
    data = encode_image("JPEG", progressive=progressive)
    place = data.index(b"\xff\xc2" if progressive else b"\xff\xc0")
    data[place + 5 : place + 9] = struct.pack(">HH", 65_500, 65_500)
    return data


def gif():
    data = encode_image("GIF", "P")
    data[6:10] = struct.pack("<HH", 65_535, 65_535)
    return data


def bmp():
    data = encode_image("BMP")
    data[18:26] = struct.pack("<ii", 12_000, 11_000)
    return data


def webp():
    data = encode_image("WEBP", lossless=True)
    (bits,) = struct.unpack_from("<I", data, 21)
    data[21:25] = struct.pack("<I", bits | 0xFFFFFFF)
    return data


@pytest.mark.parametrize("make", [jpeg, lambda: jpeg(True), gif, bmp, webp])
def test_other_formats(make, tmp_path, recwarn):
    path = tmp_path / "large"
    path.write_bytes(make())
    for way in WAYS.values():
        with pytest.raises(
            tf.errors.InvalidArgumentError, match=r"(?s)large: .*(more than|cannot hold)"
        ):
            way(str(path))
    assert not recwarn.list


def test_all_frames_count(monkeypatch):
    frames = [Image.new("RGB", (30, 20), (30 * n, 0, 0)) for n in range(1, 8)]
    file = io.BytesIO()
    frames[0].save(file, "GIF", save_all=True, append_images=frames[1:])
    assert tf.io.decode_gif(file.getvalue()).shape == [7, 20, 30, 3]
    monkeypatch.setenv("MESHFLOW_MAX_IMAGE_BYTES", "8000")
    with pytest.raises(
        tf.errors.InvalidArgumentError, match=r"7 x 20 x 30 .*MESHFLOW_MAX_IMAGE_BYTES"
    ):
        tf.io.decode_gif(file.getvalue())
    assert tf.io.decode_image(file.getvalue(), expand_animations=False).shape == [20, 30, 3]


@pytest.mark.parametrize("kind", ["PNG", "JPEG"])
def test_limit_is_enforced_in_maps_and_configurable(tmp_path, monkeypatch, kind):
    path = tmp_path / "image"
    path.write_bytes(encode_image(kind))
    for way in WAYS.values():
        monkeypatch.setenv("MESHFLOW_MAX_IMAGE_BYTES", "200")
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"image: .*13 pixels"):
            way(str(path))
        monkeypatch.setenv("MESHFLOW_MAX_IMAGE_BYTES", "1e6")
        way(str(path))


def test_a_compiled_loop_refuses_by_itself():
    if images._find_compiled_loop() is None:
        pytest.skip("the loops are not built here")
    how = images.ImageLoadingOptions(False, 3, 1, True, True, 4, 4)
    out = [np.zeros((4, 4, 3), np.float32) for _ in range(4)]
    texts = [
        png(1_000_000, 1_000_000),
        bytes(encode_image("PNG")),
        png(4_000, 4_000),
        bytes(jpeg()),
    ]
    failed = images.load_images(
        texts, how, np.tile([0, 0, 4, 4], (4, 1)), [()] * 4, np.zeros(4), out
    )
    assert failed.tolist() == [True, False, True, True]


def test_resizing_to_no_memory_is_an_error():
    if resize._find_compiled_loop() is None:
        pytest.skip("the loops are not built here")
    many = 1 << 46
    places = np.zeros(1, np.int32).ctypes.data
    row = np.zeros(1, np.uint8).ctypes.data
    # A row that is far longer than memory: the C++ exception must not leave the decoder.
    args = (row, 1, many, places, places, places, 1, 3, places, places, places, 1, row)
    assert resize._find_compiled_loop()(*args) == 1


def test_postscript_is_never_opened(tmp_path):
    program = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n%%EOF\n"
    with pytest.raises(tf.errors.InvalidArgumentError, match="Unknown image file format"):
        pillow_files.open_image(program)
    path = tmp_path / "program.eps"
    path.write_bytes(program)
    with pytest.raises(ValueError, match="does not run EPS images"):
        tf.keras.utils.load_img(path)


def test_decompression_bombs(tmp_path, monkeypatch):
    monkeypatch.setenv("MESHFLOW_MAX_UNPACKED_BYTES", "1e5")
    bomb = zlib.compress(b"0" * 200_000)
    with pytest.raises(tf.errors.ResourceExhaustedError, match="MESHFLOW_MAX_UNPACKED_BYTES"):
        tf.io.decode_compressed(bomb, "ZLIB")
    path = tmp_path / "bomb"
    path.write_bytes(bomb)
    fixed = tf.data.FixedLengthRecordDataset(str(path), 10, compression_type="ZLIB")
    for data in (tf.data.TextLineDataset(str(path), "ZLIB"), fixed):
        with pytest.raises(tf.errors.ResourceExhaustedError, match="bomb has a"):
            list(data)
    with tf.io.TFRecordWriter(str(path), "GZIP") as writer:
        writer.write(b"0" * 2_000_000)
    with pytest.raises(tf.errors.ResourceExhaustedError, match="bomb: the record at byte 0"):
        list(tf.data.TFRecordDataset(str(path), "GZIP"))
    monkeypatch.delenv("MESHFLOW_MAX_UNPACKED_BYTES")
    assert len(next(iter(tf.data.TFRecordDataset(str(path), "GZIP"))).numpy()) == 2_000_000


def test_patches_of_volumes():
    volume = tf.reshape(tf.range(12.0), [1, 2, 3, 2, 1])
    patches = tf.compat.v1.extract_volume_patches(volume, [1, 2, 2, 1, 1], [1, 1, 2, 1, 1], "SAME")
    # TensorFlow's values.
    assert patches[0, :, :, 0].numpy().tolist() == [
        [[0.0, 2.0, 6.0, 8.0], [4.0, 0.0, 10.0, 0.0]],
        [[6.0, 8.0, 0.0, 0.0], [10.0, 0.0, 0.0, 0.0]],
    ]
    with pytest.raises(tf.errors.InvalidArgumentError, match="expected ksizes"):
        tf.extract_volume_patches(volume, [1, 2, 2, 1], [1, 1, 1, 1, 1], "SAME")
    with pytest.raises(tf.errors.InvalidArgumentError, match="5-dimensional"):
        tf.extract_volume_patches(volume[0], [1, 1, 1, 1, 1], [1, 1, 1, 1, 1], "SAME")
