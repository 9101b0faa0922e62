"""Build layers, losses, metrics and optimizers whose configurations are compared with tf-keras."""

LAYERS = {
    "Activation": ("relu",),
    "ActivityRegularization": (0.5,),
    "AdditiveAttention": (),
    "AlphaDropout": (0.5,),
    "Attention": (),
    "AveragePooling1D": (),
    "AveragePooling2D": (),
    "BatchNormalization": (),
    "CategoryEncoding": (3,),
    "CenterCrop": (3, 3),
    "Concatenate": (),
    "Conv1D": (3, 2),
    "Conv1DTranspose": (3, 2),
    "Conv2D": (3, 2),
    "Conv2DTranspose": (3, 2),
    "Conv3D": (3, 2),
    "Conv3DTranspose": (3, 2),
    "ConvLSTM2D": (3, 2),
    "Cropping1D": (),
    "Cropping2D": (),
    "Cropping3D": (),
    "Dense": (3,),
    "DepthwiseConv1D": (2,),
    "DepthwiseConv2D": (2,),
    "Discretization": ([1.0, 2.0],),
    "Dot": (1,),
    "Dropout": (0.5,),
    "ELU": (),
    "EinsumDense": ("ab,bc->ac", (3,)),
    "Embedding": (3, 2),
    "Flatten": (),
    "GRU": (3,),
    "GRUCell": (3,),
    "GaussianDropout": (0.5,),
    "GaussianNoise": (0.5,),
    "GlobalAveragePooling1D": (),
    "GlobalMaxPooling2D": (),
    "GroupNormalization": (),
    "Hashing": (3,),
    "LSTM": (3,),
    "LSTMCell": (3,),
    "LayerNormalization": (),
    "LeakyReLU": (),
    "LocallyConnected1D": (3, 2),
    "LocallyConnected2D": (3, 2),
    "Masking": (),
    "MaxPooling2D": (),
    "MultiHeadAttention": (2, 3),
    "Normalization": (),
    "PReLU": (),
    "Permute": ((1,),),
    "RandomContrast": (0.1,),
    "RandomCrop": (3, 3),
    "RandomFlip": (),
    "RandomRotation": (0.1,),
    "RandomZoom": (0.1,),
    "ReLU": (),
    "RepeatVector": (2,),
    "Rescaling": (0.5,),
    "Reshape": ((2,),),
    "Resizing": (3, 3),
    "SeparableConv1D": (3, 2),
    "SeparableConv2D": (3, 2),
    "SimpleRNN": (3,),
    "SimpleRNNCell": (3,),
    "Softmax": (),
    "SpatialDropout1D": (0.5,),
    "SpatialDropout2D": (0.5,),
    "TextVectorization": (),
    "ThresholdedReLU": (),
    "UnitNormalization": (),
    "UpSampling1D": (),
    "UpSampling2D": (),
    "ZeroPadding1D": (),
    "ZeroPadding2D": (),
}
OTHERS = {
    "losses": (
        *("BinaryCrossentropy", "BinaryFocalCrossentropy", "CategoricalCrossentropy", "Hinge"),
        *("CosineSimilarity", "Huber", "LogCosh", "MeanSquaredError", "Poisson"),
        *("SparseCategoricalCrossentropy", "KLDivergence"),
    ),
    "metrics": (
        *("AUC", "Accuracy", "BinaryAccuracy", "BinaryCrossentropy", "F1Score", "Mean"),
        *("FalsePositives", "MeanSquaredError", "Precision", "Recall", "RootMeanSquaredError"),
        *("Sum", "TopKCategoricalAccuracy", "CategoricalCrossentropy", "CosineSimilarity"),
    ),
    "optimizers": (*("Adadelta", "Adafactor", "Adam", "AdamW", "Adamax", "Ftrl", "Lion", "SGD"),),
    "optimizers.experimental": ("Adagrad", "Nadam", "RMSprop"),
    "optimizers.legacy": (
        *("Adadelta", "Adagrad", "Adam", "Adamax", "Ftrl", "Nadam", "RMSprop", "SGD"),
    ),
    "initializers": (
        *("Constant", "GlorotNormal", "GlorotUniform", "HeNormal", "HeUniform", "Identity"),
        *("LecunNormal", "LecunUniform", "Ones", "Orthogonal", "RandomNormal", "RandomUniform"),
        *("TruncatedNormal", "VarianceScaling", "Zeros"),
    ),
    "regularizers": ("L1", "L1L2", "L2", "OrthogonalRegularizer"),
    "constraints": ("MaxNorm", "MinMaxNorm", "NonNeg", "RadialConstraint", "UnitNorm"),
}


def made(keras, name):
    """Return an object with its default arguments, or those of its case."""
    family, _, own = name.rpartition(".")
    cls = keras
    for part in (*family.split("."), own):
        cls = getattr(cls, part)
    return cls(*(LAYERS[own] if family == "layers" else ()))


def plain(value):
    """Return a configuration as JSON: tuples become lists, numbers Python numbers, and nested
    objects lose their module."""
    if isinstance(value, dict):
        if "class_name" in value:
            return {key: plain(value[key]) for key in ("class_name", "config")}
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if hasattr(value, "item"):
        value = value.item()
    # The shortest text of float32 numbers.
    return float(f"{value:.6g}") if isinstance(value, float) else value
