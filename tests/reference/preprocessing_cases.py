"""List preprocessing layers evaluated by tf-keras (generate_preprocessing.py): expressions of tf,
np and these names."""

ROWS = [[0.0, 7.0, 4.0], [2.0, 9.0, 6.0], [0.0, 7.0, 4.0], [2.0, 9.0, 6.0]]
NUMBERS = [[-1.5, 1.0, 3.4, 0.5], [0.0, 3.0, 1.3, 0.0]]
WORDS = [["a", "c", "d"], ["d", "z", "b"]]
KNOWN = ["a", "b", "c", "d"]
CODES = [[12, 1138, 42], [42, 1000, 36]]
TEXTS = ["The quick brown fox, jumped!", "over the LAZY dog.", "the fox"]
SOME = ["the", "fox", "quick"]


def names(tf, np):
    """Return the names available to the expressions."""

    def adapted(layer, data):
        layer.adapt(data)
        return layer

    image = np.random.RandomState(0).rand(2, 7, 6, 2).astype("f4") * 300 - 20
    return {
        **globals(),
        "tf": tf,
        "np": np,
        "L": tf.keras.layers,
        "adapted": adapted,
        "words": tf.constant(WORDS),
        "texts": tf.constant(TEXTS),
        "codes": np.array(CODES),
        "rows": np.array(ROWS, "f4"),
        "numbers": np.array(NUMBERS),
        "image": image,
        "dataset": lambda data: tf.data.Dataset.from_tensor_slices(data).batch(2),
    }


def plain(value):
    """Convert a result to JSON."""
    if hasattr(value, "numpy"):
        value = value.numpy()
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    return value


def run(tf, np, expression):
    """The result of an expression, or the name of its exception."""
    try:
        return plain(eval(expression, names(tf, np)))
    except Exception as error:
        return type(error).__name__


_FILLS = ("reflect", "wrap", "constant", "nearest")
IMAGES = [
    *(
        f"L.{layer}, fill_mode={fill!r}, interpolation={how!r}, fill_value=3.0)(image, training=True)"
        for layer in (
            "RandomTranslation((0.3, 0.3), (0.2, 0.2)",
            "RandomTranslation((-0.9, -0.9), (-0.95, -0.95)",
            "RandomRotation((-0.2, -0.2)",
            "RandomZoom((0.9, 0.9), (-0.5, -0.5)",
        )
        for fill in _FILLS
        for how in ("bilinear", "nearest")
    ),
    "L.RandomZoom((-0.3, -0.3))(image, training=True)",
    "L.RandomBrightness((0.3, 0.3))(image, training=True)",
    "L.RandomBrightness((0.2, 0.2), value_range=(0, 1))(image, training=True)",
    "L.RandomHeight((0.5, 0.5))(image, training=True)",
    "L.RandomWidth((-0.5, -0.5), interpolation='nearest')(image, training=True)",
    "L.RandomFlip('horizontal')(image, training=False)",
    *(f"L.RandomCrop{size}(image, training=False)" for size in ((2, 2), (9, 3), (3, 6))),
    *(f"L.CenterCrop{size}(image)" for size in ((2, 2), (3, 3), (9, 9))),
    *(
        f"L.Resizing(4, 9, interpolation={how!r}, crop_to_aspect_ratio={crop})(image)"
        for how in ("bilinear", "nearest", "bicubic", "area")
        for crop in (False, True)
    ),
]
VALUES = [
    "adapted(L.Normalization(), rows)(rows)",
    "adapted(L.Normalization(axis=None), rows)(rows)",
    "adapted(L.Normalization(), dataset(rows))(rows)",
    "adapted(L.Normalization(axis=(1, 2)), np.ones((2, 3, 4)))(np.ones((2, 3, 4)) + 1)",
    "adapted(L.Normalization(), rows).get_weights()",
    "adapted(adapted(L.Normalization(), rows), rows * 2)(rows)",
    "L.Normalization(mean=[1, 2, 3], variance=[2, 3, 4])(rows)",
    "L.Normalization(mean=3.0, variance=2.0, invert=True)(rows)",
    "L.Normalization(mean=3.0)",
    "adapted(L.Normalization(axis=0), rows)",
    "adapted(L.Normalization(axis=4), rows)",
    "adapted(L.Normalization(mean=1.0, variance=4.0), rows)",
    "L.Discretization([0.0, 1.0, 2.0])(numbers)",
    "adapted(L.Discretization(num_bins=4), numbers)(numbers)",
    "adapted(L.Discretization(num_bins=5), numbers).bin_boundaries",
    *(f"L.Discretization([0.0, 1.0], output_mode={m!r})(numbers[0])" for m in ("one_hot", "count")),
    "L.Discretization([0.0, 1.0], output_mode='multi_hot')(numbers)",
    "L.Discretization([0.0, 1.0], output_mode='one_hot')(numbers)",
    "L.Discretization([1.0], num_bins=3)",
    "L.CategoryEncoding(4, 'one_hot')([3, 2, 0, 1])",
    "L.CategoryEncoding(4)([[0, 1], [0, 0], [1, 2], [3, 1]])",
    "L.CategoryEncoding(4, 'count')(np.array([[0, 1], [0, 0]]), count_weights=np.array([[0.1, 0.2], [0.1, 0.1]]))",
    "L.CategoryEncoding(4)([5])",
    "L.CategoryEncoding(4, 'one_hot')([[0, 2], [1, 2]])",
    "L.CategoryEncoding()",
    "L.Hashing(3)([['A'], ['B'], ['C'], ['D'], ['E']])",
    "L.Hashing(3, mask_value='')([['A'], ['B'], [''], ['C'], ['D']])",
    "L.Hashing(3, salt=[133, 137])([['A'], ['B'], ['C'], ['D'], ['E']])",
    "L.Hashing(3, salt=133)([['A'], ['B'], ['C'], ['D'], ['E']])",
    "L.Hashing(5, mask_value=0, output_mode='one_hot')(np.array([1, 2, 0]))",
    "L.Hashing(4, output_mode='count')(['A', 'B', 'F'])",
    "L.Hashing(0)",
    "L.HashedCrossing(5)((tf.constant(['A', 'B', 'A', 'B', 'A']), tf.constant([101, 101, 101, 102, 102])))",
    "L.HashedCrossing(5, output_mode='one_hot')((tf.constant(['A', 'B']), tf.constant([101, -7])))",
    "L.HashedCrossing(4)([codes])",
    "L.StringLookup(vocabulary=KNOWN)(words)",
    "L.StringLookup(vocabulary=KNOWN, num_oov_indices=2)(words)",
    "L.StringLookup(vocabulary=KNOWN, num_oov_indices=0)(words)",
    "L.StringLookup(vocabulary=KNOWN, mask_token='')(tf.constant([['a', '', 'zz']]))",
    *(
        f"L.StringLookup(vocabulary=KNOWN, output_mode={m!r})(words)"
        for m in ("multi_hot", "count", "binary")
    ),
    "L.StringLookup(vocabulary=KNOWN, output_mode='one_hot', mask_token='')(tf.constant([['a'], ['']]))",
    "L.StringLookup(vocabulary=KNOWN, output_mode='count', max_tokens=8, pad_to_max_tokens=True)(words)",
    "L.StringLookup(vocabulary=KNOWN, output_mode='tf_idf', idf_weights=[0.25, 0.75, 0.6, 0.4])(words)",
    "L.StringLookup(vocabulary=KNOWN, output_mode='tf_idf')",
    "adapted(L.StringLookup(output_mode='tf_idf'), tf.data.Dataset.from_tensor_slices([['a', 'b', 'b'], ['a', 'c', 'd']]).batch(1))(words)",
    "L.StringLookup(vocabulary=KNOWN, invert=True)(np.array([[0, 1, 4], [3, 9, -1]]))",
    "adapted(L.StringLookup(), words).get_vocabulary()",
    "adapted(L.StringLookup(max_tokens=3), words).get_vocabulary()",
    "adapted(L.StringLookup(mask_token='a', num_oov_indices=2), words).get_vocabulary()",
    "L.StringLookup(vocabulary=['', '[UNK]', 'a'], mask_token='').get_vocabulary()",
    "L.StringLookup(vocabulary=['a', 'a'])",
    "L.StringLookup(vocabulary=['a', ''], mask_token='')",
    "L.StringLookup(vocabulary=KNOWN, max_tokens=3)",
    "L.StringLookup()(words)",
    "L.StringLookup(vocabulary='/no/such/file')",
    "L.IntegerLookup(vocabulary=[12, 36, 1138, 42])(codes)",
    "L.IntegerLookup(vocabulary=[12, 36, 1138, 42], num_oov_indices=2)(codes)",
    "L.IntegerLookup(vocabulary=[12, 36, 1138, 42], num_oov_indices=3)(np.array([[-3, -4, -5, -6, 12]]))",
    "L.IntegerLookup(vocabulary=[12, 36, 1138, 42], num_oov_indices=0)(codes)",
    "L.IntegerLookup(vocabulary=[12, 36, 1138, 42], mask_token=0, output_mode='multi_hot')(codes)",
    "L.IntegerLookup(vocabulary=[12, 36, 1138, 42], invert=True)(np.array([[1, 3, 4], [4, 0, 2]]))",
    "adapted(L.IntegerLookup(), codes).get_vocabulary()",
    "L.TextVectorization(vocabulary=SOME)(texts)",
    "L.TextVectorization(vocabulary=SOME, output_sequence_length=3)(texts)",
    "L.TextVectorization(vocabulary=SOME, output_sequence_length=8)(texts)",
    "L.TextVectorization(vocabulary=SOME)('the fox')",
    "L.TextVectorization(vocabulary=SOME)(tf.constant([['a', 'b']]))",
    "L.TextVectorization(vocabulary=['the fox', 'the'], ngrams=2)(texts)",
    *(
        f"L.TextVectorization(vocabulary=SOME, output_mode={m!r})(texts)"
        for m in ("multi_hot", "count")
    ),
    "adapted(L.TextVectorization(output_mode='tf_idf', max_tokens=4), TEXTS)(texts)",
    *(
        f"adapted(L.TextVectorization({o}), TEXTS).get_vocabulary()"
        for o in (
            "",
            "max_tokens=4",
            "standardize=None",
            "standardize='lower'",
            "standardize='strip_punctuation'",
            "split='character'",
            "split=None",
            "ngrams=(2, 3)",
            "output_mode='count', ngrams=2",
        )
    ),
    "L.TextVectorization(output_mode='count', output_sequence_length=3)",
    "L.TextVectorization(standardize='foo')",
    "L.TextVectorization(dtype='int32')",
]
CASES = [*IMAGES, *VALUES]
