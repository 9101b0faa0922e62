"""Functions of many ops, for TensorFlow to save and Meshflow to run: (specs, inputs, function of the two's `tf`)."""

import numpy as np

RNG = np.random.RandomState(0)
ROWS = RNG.rand(3, 4).astype("float32") + 0.1
IMAGES = RNG.rand(2, 8, 8, 3).astype("float32")
SQUARES = RNG.randn(2, 3, 3).astype("float32")
SQUARES = SQUARES @ SQUARES.transpose(0, 2, 1) + 3 * np.eye(3, dtype="float32")
WORDS = np.array([b"Hello World", b"a b  c", b""], object)
BOXES = np.array([[0, 0, 1, 1], [0, 0, 1, 0.9], [0.5, 0.5, 2, 2]], "float32")


def cases(tf):
    """Return the functions by name, each with the specs of its arguments and the arguments."""
    spec = tf.TensorSpec
    rows, images = spec([None, 4]), spec([None, 8, 8, 3])
    words = spec([None], tf.string)
    ids = tf.constant([0, 0, 2])

    def special(x):
        y = x + 1.0
        return {
            "asinh": tf.asinh(x),
            "acosh": tf.acosh(y),
            "xlogy": tf.math.xlogy(x, y),
            "igamma": tf.math.igamma(x, y),
            "log_sums": tf.math.cumulative_logsumexp(x, 1),
            "norm": tf.math.reduce_euclidean_norm(x, 1),
            "bits": tf.bitcast(x, tf.int32),
            "complex": tf.math.angle(tf.complex(x, y)),
            "in_top": tf.math.in_top_k(tf.zeros([3], tf.int32), x, 2),
            "places": tf.searchsorted(tf.sort(x[0]), [0.3, 0.6]),
            "histogram": tf.histogram_fixed_width(x, [0.0, 1.0], 4),
            "means": tf.math.segment_mean(x, ids),
            "smallest": tf.math.unsorted_segment_min(x, ids, 3),
            "most": tf.tensor_scatter_nd_max(x, [[0, 1]], [9.0]),
            "rounded": tf.quantization.fake_quant_with_min_max_args(x),
        }

    def matrices(x):
        return {
            "cholesky": tf.linalg.cholesky(x),
            "inverse": tf.linalg.inv(x),
            "logdet": tf.linalg.slogdet(x)[1],
            "solved": tf.linalg.solve(x, x[:, :, :1]),
            "triangular": tf.linalg.triangular_solve(x, x[:, :, :1], adjoint=True),
            "values": tf.linalg.svd(x, compute_uv=False),
            "eigen": tf.linalg.eigvalsh(x),
            "diagonals": tf.linalg.diag(x[0], k=1),
            "part": tf.linalg.diag_part(x, k=(-1, 1)),
            "set": tf.linalg.set_diag(x, x[:, 0]),
        }

    def spectra(x):
        spectrum = tf.signal.rfft(x)
        return {"rfft": spectrum, "irfft": tf.signal.irfft(spectrum), "dct": tf.signal.dct(x)}

    def pictures(x):
        best, places = tf.nn.max_pool_with_argmax(x, 2, 2, "SAME")
        return {
            "area": tf.image.resize(x, [4, 4], "area"),
            "smooth": tf.image.resize(x, [5, 4], antialias=True),
            "lanczos": tf.image.resize(x, [4, 6], "lanczos3"),
            "hue": tf.image.adjust_hue(x, 0.1),
            "saturation": tf.image.adjust_saturation(x, 1.5),
            "contrast": tf.image.adjust_contrast(x, 2.0),
            "crops": tf.image.crop_and_resize(x, BOXES[:1] / 2, [0], [4, 4]),
            "patches": tf.image.extract_patches(
                x, [1, 3, 3, 1], [1, 2, 2, 1], [1, 1, 1, 1], "SAME"
            ),
            "best": best,
            "places": places,
            "local": tf.nn.local_response_normalization(x),
        }

    def boxes(x):
        return {"kept": tf.image.non_max_suppression(x, [0.9, 0.8, 0.7], 3)}

    def sizes_by_values(x):
        found = tf.where(x > 0.5)
        values, places, counts = tf.unique_with_counts(tf.cast(x[0] * 3, tf.int32))
        ragged = tf.RaggedTensor.from_row_lengths(x, tf.cast(found[:1, 1] + 3, tf.int64) * 0 + 3)
        return {
            "masked": tf.boolean_mask(x, x[:, 0] > 0.5),
            "found": found,
            "values": values,
            "places": places,
            "counts": counts,
            "frames": tf.signal.frame(x, 2, 1, axis=1),
            "padded": ragged.to_tensor(),
            "common": tf.sparse.to_dense(tf.sets.intersection(counts[None], counts[None])),
        }

    def ranges(n):
        return {"range": tf.range(n), "filled": tf.fill([n, 2], 1.5), "eye": tf.eye(n)}

    def gradients(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            hidden = tf.nn.relu(
                tf.nn.conv2d(x, IMAGES[:1, :3, :3].transpose(1, 2, 3, 0), 2, "SAME")
            )
            pooled = tf.nn.max_pool2d(hidden, 2, 1, "VALID")
            logits = tf.tanh(tf.reduce_sum(pooled, [1, 2])) * tf.constant([1.0, -1.0])
            loss = tf.nn.sparse_softmax_cross_entropy_with_logits([0, 1], logits)
        return {"gradient": tape.gradient(loss, x), "loss": loss}

    def text(x):
        parts = tf.strings.split(x)
        return {
            "rows": parts.to_tensor("-"),
            "lengths": parts.row_lengths(),
            "letters": tf.strings.bytes_split(x).to_tensor(),
            "points": tf.strings.unicode_decode(x, "UTF-8").to_tensor(),
            "grams": tf.strings.ngrams(parts, 2).to_tensor(),
            "lower": tf.ragged.map_flat_values(tf.strings.lower, parts).to_tensor(),
            "each": tf.map_fn(tf.strings.length, x, fn_output_signature=tf.int32),
            "hashed": tf.strings.to_hash_bucket_strong(x, 100, [1, 2]),
            "numbers": tf.strings.to_number(tf.strings.regex_replace(x, ".*", "1")),
            "raw": tf.io.decode_raw(tf.strings.substr(tf.strings.join([x, "...."]), 0, 4), "uint8"),
        }

    def records(x):
        wanted = {
            "a": tf.io.FixedLenFeature([2], tf.float32),
            "b": tf.io.FixedLenFeature([], tf.string, ""),
            "c": tf.io.FixedLenFeature([1], tf.int64, [7]),
            "d": tf.io.VarLenFeature(tf.float32),
        }
        found = tf.io.parse_example(x, wanted)
        return {**found, "d": tf.sparse.to_dense(found["d"])}

    def photographs(x):
        def one(data):
            image = tf.image.convert_image_dtype(tf.io.decode_png(data, 3), tf.float32)
            return tf.image.resize(image, [4, 4])

        return {"images": tf.map_fn(one, x, fn_output_signature=tf.TensorSpec([4, 4, 3]))}

    floats = lambda *v: tf.train.Feature(float_list=tf.train.FloatList(value=v))
    words_of = lambda *v: tf.train.Feature(bytes_list=tf.train.BytesList(value=v))
    example = {"a": floats(1.0, 2.0), "b": words_of(b"hi"), "d": floats(3.0)}
    record = tf.train.Example(features=tf.train.Features(feature=example)).SerializeToString()
    picture = tf.io.encode_png((IMAGES[0] * 255).astype("uint8")).numpy()
    return {
        "special": (rows, ROWS, special),
        "matrices": (spec([None, 3, 3]), SQUARES, matrices),
        "spectra": (rows, ROWS, spectra),
        "pictures": (images, IMAGES, pictures),
        "boxes": (spec([None, 4]), BOXES, boxes),
        "sizes_by_values": (rows, ROWS, sizes_by_values),
        "ranges": (spec([], tf.int32), np.int32(3), ranges),
        "gradients": (images, IMAGES, gradients),
        "text": (words, WORDS, text),
        "records": (words, np.array([record, record], object), records),
        "photographs": (words, np.array([picture, picture], object), photographs),
    }
