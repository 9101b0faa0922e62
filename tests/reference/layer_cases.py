"""List layers whose outputs and gradients tf-keras computed (generate_layers.py): (name, arguments,
input shape)."""

IMAGE, SEQUENCE, VECTOR, VOLUME = (6, 6, 4), (6, 4), (4,), (4, 4, 4, 2)
CASES = [
    ("Dense", {"units": 3, "activation": "relu"}, VECTOR),
    ("Dense", {"units": 3, "use_bias": False}, SEQUENCE),
    ("Flatten", {"data_format": "channels_first"}, IMAGE),
    ("Reshape", {"target_shape": (-1, 2)}, SEQUENCE),
    ("Permute", {"dims": (2, 1)}, SEQUENCE),
    ("RepeatVector", {"n": 3}, VECTOR),
    ("Conv1D", {"filters": 3, "kernel_size": 3, "padding": "causal", "dilation_rate": 2}, SEQUENCE),
    ("Conv1D", {"filters": 3, "kernel_size": 3, "strides": 2}, SEQUENCE),
    ("Conv2D", {"filters": 4, "kernel_size": 3, "strides": 2, "padding": "same"}, IMAGE),
    (
        "Conv2D",
        {"filters": 4, "kernel_size": (2, 3), "dilation_rate": 2, "activation": "tanh"},
        IMAGE,
    ),
    ("Conv3D", {"filters": 2, "kernel_size": 2}, VOLUME),
    ("Conv1DTranspose", {"filters": 3, "kernel_size": 3, "strides": 2}, SEQUENCE),
    ("Conv2DTranspose", {"filters": 3, "kernel_size": 3, "strides": 2, "padding": "same"}, IMAGE),
    ("Conv2DTranspose", {"filters": 3, "kernel_size": 3, "strides": 2, "output_padding": 1}, IMAGE),
    ("Conv2DTranspose", {"filters": 3, "kernel_size": 2, "strides": 3}, IMAGE),
    ("Conv3DTranspose", {"filters": 2, "kernel_size": 2, "strides": 2}, VOLUME),
    ("DepthwiseConv2D", {"kernel_size": 3, "depth_multiplier": 2}, IMAGE),
    ("SeparableConv2D", {"filters": 3, "kernel_size": 3, "padding": "same"}, IMAGE),
    ("SeparableConv1D", {"filters": 3, "kernel_size": 3}, SEQUENCE),
    ("MaxPooling1D", {"pool_size": 3, "strides": 1, "padding": "same"}, SEQUENCE),
    ("MaxPooling2D", {"pool_size": 3, "strides": 2, "padding": "same"}, IMAGE),
    ("MaxPooling2D", {}, IMAGE),
    ("MaxPooling3D", {}, VOLUME),
    ("AveragePooling1D", {}, SEQUENCE),
    ("AveragePooling2D", {"pool_size": 3, "strides": 2, "padding": "same"}, IMAGE),
    ("AveragePooling3D", {}, VOLUME),
    ("GlobalMaxPooling1D", {}, SEQUENCE),
    ("GlobalMaxPooling2D", {"keepdims": True}, IMAGE),
    ("GlobalMaxPooling3D", {}, VOLUME),
    ("GlobalAveragePooling1D", {}, SEQUENCE),
    ("GlobalAveragePooling2D", {}, IMAGE),
    ("UpSampling1D", {}, SEQUENCE),
    ("UpSampling2D", {"size": (2, 3)}, IMAGE),
    ("UpSampling2D", {"interpolation": "bilinear"}, IMAGE),
    ("UpSampling3D", {}, VOLUME),
    ("ZeroPadding1D", {"padding": (1, 2)}, SEQUENCE),
    ("ZeroPadding2D", {"padding": ((1, 0), (2, 1))}, IMAGE),
    ("Cropping1D", {}, SEQUENCE),
    ("Cropping2D", {"cropping": (1, 2)}, IMAGE),
    ("Cropping3D", {}, VOLUME),
    ("BatchNormalization", {}, IMAGE),
    ("BatchNormalization", {"axis": 1, "center": False}, SEQUENCE),
    ("LayerNormalization", {}, SEQUENCE),
    ("LayerNormalization", {"axis": [1, 2]}, SEQUENCE),
    ("GroupNormalization", {"groups": 2}, IMAGE),
    ("UnitNormalization", {}, VECTOR),
    ("ReLU", {"max_value": 1.0, "negative_slope": 0.1, "threshold": 0.2}, VECTOR),
    ("LeakyReLU", {}, VECTOR),
    ("PReLU", {}, VECTOR),
    ("ELU", {"alpha": 0.5}, VECTOR),
    ("ThresholdedReLU", {"theta": 0.5}, VECTOR),
    ("Softmax", {"axis": 1}, SEQUENCE),
    ("Rescaling", {"scale": 0.5, "offset": 1.0}, VECTOR),
    ("Activation", {"activation": "hard_sigmoid"}, VECTOR),
    ("Activation", {"activation": "swish"}, VECTOR),
    ("Activation", {"activation": "mish"}, VECTOR),
    ("Activation", {"activation": "softsign"}, VECTOR),
    ("ConvLSTM1D", {"filters": 2, "kernel_size": 2}, (3, 5, 2)),
    ("ConvLSTM2D", {"filters": 2, "kernel_size": 3, "padding": "same"}, (2, 4, 4, 1)),
    ("ConvLSTM2D", {"filters": 2, "kernel_size": 2, "strides": 2}, (2, 5, 5, 1)),
    ("ConvLSTM3D", {"filters": 1, "kernel_size": 2, "go_backwards": True}, (2, 3, 3, 3, 1)),
    ("LocallyConnected1D", {"filters": 3, "kernel_size": 2, "strides": 2}, SEQUENCE),
    ("LocallyConnected2D", {"filters": 3, "kernel_size": (3, 2), "activation": "tanh"}, IMAGE),
    ("DepthwiseConv1D", {"kernel_size": 3, "depth_multiplier": 2, "strides": 2}, SEQUENCE),
    ("DepthwiseConv1D", {"kernel_size": 2, "padding": "same", "dilation_rate": 2}, SEQUENCE),
]
TRAINING = ("BatchNormalization",)


def run(tf, np, number):
    """Output, gradient of the input, and weights after a call, from weights drawn by the number of the case."""
    name, arguments, shape = CASES[number]
    rng = np.random.default_rng(number)
    x = tf.constant(rng.normal(size=(2, *shape)).astype("float32"))
    layer = getattr(tf.keras.layers, name)(**arguments)
    layer(x)
    layer.set_weights(
        [rng.uniform(0.5, 1.5, w.shape).astype("float32") for w in layer.get_weights()]
    )
    kwargs = {"training": True} if name in TRAINING else {}
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = layer(x, **kwargs)
        loss = tf.reduce_sum(y * y * y)
    gradients = tape.gradient(loss, [x, *layer.trainable_weights])
    return [y.numpy(), *[tf.convert_to_tensor(g).numpy() for g in gradients], *layer.get_weights()]
