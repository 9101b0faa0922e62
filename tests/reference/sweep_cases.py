"""Define objects and models of Keras, queries to them in tf-keras and here, and the compared form
of the answers."""

import json

# By namespace: expressions, each with one or several settings that are not the default.
OBJECTS = {
    "layers": """
        Activation('softmax',dtype='float16') ActivityRegularization(l1=0.5,l2=0.25) AdditiveAttention(dropout=0.25)
        Attention(use_scale=True,score_mode='concat') AveragePooling1D(3,2,'same') AveragePooling2D((2,3)) AveragePooling3D(2,1)
        BatchNormalization(axis=1,gamma_regularizer='l2',beta_constraint='non_neg',trainable=False)
        Bidirectional(K.layers.GRU(3,return_sequences=True),merge_mode='sum',name='b')
        Bidirectional(K.layers.LSTM(3),backward_layer=K.layers.GRU(3,go_backwards=True))
        CategoryEncoding(num_tokens=5,output_mode='count') CenterCrop(height=4,width=2) Concatenate(axis=1)
        Conv1D(3,2,strides=2,padding='causal',activation='relu') Conv2D(3,(2,3),kernel_regularizer=K.regularizers.L2(0.5))
        Conv3D(3,2) Conv1DTranspose(3,2,output_padding=0) Conv2DTranspose(3,2,strides=(2,2)) Conv3DTranspose(3,2)
        ConvLSTM2D(2,(2,2),strides=2,dropout=0.5,kernel_regularizer='l2') Cropping1D(2) Cropping2D(((1,0),(0,1))) Cropping3D(1)
        Dense(3,'relu',use_bias=False,name='d') Dense(3,input_shape=(4,)) Dense(3,batch_input_shape=(2,4),dtype='float64')
        Dense(3,K.activations.tanh,K.initializers.RandomNormal(stddev=0.5,seed=1),activity_regularizer='l1',kernel_constraint='max_norm')
        Dense(3,dtype=K.mixed_precision.Policy('mixed_float16')) Dense(3,activation=K.layers.LeakyReLU(0.5))
        DepthwiseConv1D(2,depth_multiplier=2) DepthwiseConv2D((2,2),strides=2,padding='same',activation='relu')
        Discretization(bin_boundaries=[0.,1.],output_mode='one_hot') Dot((1,1),normalize=True) Dropout(0.5,noise_shape=(1,4),seed=3)
        EinsumDense('abc,cd->abd',(None,3),bias_axes='d') ELU(0.5) Embedding(5,3,embeddings_regularizer='l2',mask_zero=True,input_length=4)
        Flatten('channels_first') GaussianDropout(0.5,seed=3) GaussianNoise(0.5) GlobalAveragePooling1D() GlobalMaxPool2D(keepdims=True)
        GroupNormalization(groups=1,center=False) GRU(3,reset_after=False,recurrent_dropout=0.25) GRUCell(3) Hashing(3,salt=[1,2])
        HashedCrossing(num_bins=5,output_mode='one_hot') Identity(name='i',dtype='float16') InputLayer(input_shape=(None,3),dtype='int32')
        Layer(name='x',trainable=False) Layer(dynamic=True) LayerNormalization(axis=[1],epsilon=1e-5) LeakyReLU(alpha=0.5)
        LocallyConnected1D(3,2) LocallyConnected2D(3,2,padding='same',implementation=3) LSTM(3,unit_forget_bias=False,bias_initializer='ones',unroll=True)
        LSTM(3,batch_input_shape=(2,5,4),stateful=True) LSTMCell(3,activation='relu') Masking(mask_value=1.0) MaxPool1D(2) MaxPool2D(3)
        MaxPool3D((2,1,2)) MultiHeadAttention(2,3,value_dim=2,output_shape=5) Normalization(axis=None) Permute((2,1))
        PReLU(shared_axes=[1]) RandomBrightness(0.5) RandomContrast(0.5,seed=1) RandomCrop(4,4) RandomFlip('horizontal') RandomHeight(0.5)
        RandomRotation((-0.5,0.25),fill_mode='constant') RandomTranslation(0.5,0.25) RandomWidth(0.5) RandomZoom(0.5) ReLU(6,0.5)
        RepeatVector(2) Rescaling(0.5,offset=-1) Reshape((2,2)) Resizing(4,4,crop_to_aspect_ratio=True)
        RNN([K.layers.LSTMCell(3),K.layers.GRUCell(2)],return_sequences=True) SeparableConv1D(3,2) SeparableConv2D(3,2,depth_multiplier=2)
        SimpleRNN(3,'relu',dropout=0.5,go_backwards=True) SimpleRNNCell(3) Softmax(axis=1) SpatialDropout1D(0.5) SpatialDropout2D(0.5)
        SpectralNormalization(K.layers.Dense(3),power_iterations=2) StackedRNNCells([K.layers.LSTMCell(3)]) ThresholdedReLU(0.5)
        StringLookup(vocabulary=['a','b'],invert=True) StringLookup(max_tokens=5,output_mode='one_hot')
        TextVectorization(vocabulary=['a','b'],output_sequence_length=3,ngrams=2) TimeDistributed(K.layers.Dense(3),name='t')
        UnitNormalization(axis=1) UpSampling1D(3) UpSampling2D(3,interpolation='bilinear') UpSampling3D(2) ZeroPadding1D((1,2))
        ZeroPadding2D(2) ZeroPadding3D((1,2,1)) experimental.RandomFourierFeatures(6,scale=2.0)""",
    "initializers": """
        Constant(0.5) GlorotNormal(seed=1) HeUniform(seed=2) Identity(gain=2.0) Initializer() Ones() Orthogonal(2.0,seed=4)
        RandomNormal(1.0,0.5,seed=4) RandomUniform(0.,1.,seed=3) TruncatedNormal(mean=1.,stddev=2.,seed=3)
        VarianceScaling(2.0,'fan_out','uniform',seed=3) Zeros()""",
    "regularizers": "L1(l1=None) L2(0.5) L1L2(0.5,0.25) OrthogonalRegularizer(0.5,'columns')",
    "constraints": "Constraint() MaxNorm(3,axis=[0,1]) MinMaxNorm(0.5,0.75) NonNeg() RadialConstraint() UnitNorm(axis=[0,1])",
    "losses": """
        BinaryCrossentropy(True,0.5,axis=1,reduction='sum',name='b') BinaryFocalCrossentropy(True,0.5,3.0) CategoricalHinge()
        CategoricalFocalCrossentropy(0.5,3.) CosineSimilarity(axis=1) Huber(0.5) KLDivergence() MeanSquaredError('none')
        SparseCategoricalCrossentropy(True,ignore_class=1)""",
    "metrics": """
        Accuracy('acc',dtype='float64') AUC(multi_label=True,num_thresholds=3) BinaryAccuracy(threshold=0.25)
        BinaryIoU([0],0.25) CategoricalHinge() CosineSimilarity(axis=1) F1Score('micro',0.5) IoU(3,[0,1])
        MeanIoU(3,name='m') OneHotIoU(3,[0]) OneHotMeanIoU(3,ignore_class=1) Precision([0.25,0.5],class_id=1)
        PrecisionAtRecall(0.5,class_id=1) R2Score() SensitivityAtSpecificity(0.5,3)
        SparseCategoricalCrossentropy(from_logits=True) SparseTopKCategoricalAccuracy(3)
        Sum(dtype='float64') TrueNegatives(thresholds=[0.5])""",
    "optimizers": """
        Adadelta() Adafactor() Adagrad(0.5) Ftrl(0.5,beta=0.25) Adam(0.5,amsgrad=True) AdamW(0.5,use_ema=True) Adamax() Lion() Nadam()
        RMSprop(K.optimizers.schedules.ExponentialDecay(0.5,10,0.5),centered=True) SGD(0.5,0.75,True)""",
    "optimizers.legacy": "Adadelta() Adagrad(0.5) Adam(0.5,decay=0.25) Ftrl(0.5) Nadam() RMSprop(clipvalue=2.0) SGD(0.5,0.75)",
    "optimizers.schedules": """
        CosineDecay(0.5,10,warmup_target=0.75,warmup_steps=5) CosineDecayRestarts(0.5,10) InverseTimeDecay(0.5,10,0.5,True)
        PiecewiseConstantDecay([1,2],[0.5,0.25,0.125]) PolynomialDecay(0.5,10,0.25,2.0,True)""",
    "mixed_precision": """
        Policy('mixed_bfloat16') LossScaleOptimizer(K.optimizers.SGD(0.5)) LossScaleOptimizer(K.optimizers.legacy.SGD(0.5),initial_scale=4.)""",
}
# Seeds, by shape: initial weights to 6 digits.
SEEDED = ("(3,4)", "(5,2)")
# Keys added by newer versions or set by the machine.
_LATER = {
    "jit_compile",
    "optional",
    "rng_type",
    "softmax_robust_masking",
    "keras_version",
    "backend",
}


def _two(keras):
    return keras.Input((4,), name="a"), keras.Input((4,), name="b")


def _by_name(keras):
    a, b = _two(keras)
    outputs = {"y": keras.layers.Dense(2, name="p")(a), "x": keras.layers.Dense(1, name="q")(b)}
    return keras.Model({"a": a, "b": b}, outputs)


def _operators(keras):
    a, b = _two(keras)
    return keras.Model([a, b], [a + b, 1 - a, -a * 2.5, (a / b) ** 2, a % 2, (a > 0) & (b > 0)])


def _slices(keras):
    a = keras.Input((4, 5), name="a")
    return keras.Model(a, [a[:, 0], a[0], a[:, None, ::2], a[:, -1, :]])


def _functions(keras):
    a, ops = keras.Input((4,), name="a"), keras.backend
    named = [ops.square(a), ops.maximum(a, a), ops.log(a), ops.tile(a, [1, 2]), ops.tanh(a)]
    return keras.Model(a, [*named, ops.abs(a), ops.exp(a), ops.round(a), keras.activations.relu(a)])


def _stacks(keras):
    inner = keras.Sequential([keras.layers.Dense(3), keras.layers.Dense(2)], name="inner")
    a = keras.Input((4,), name="a")
    return keras.Model(a, keras.layers.Dense(1)(inner(a)))


def _states(keras):
    x, y = keras.Input((5, 4), name="x"), keras.Input((3,), name="y")
    return keras.Model([x, y], keras.layers.LSTM(3)(x, initial_state=[y, y]))


def _calls(keras):
    x, layers = keras.Input((4,), name="x"), keras.layers
    shared = layers.Dense(4)
    return keras.Model(
        x, layers.Dropout(0.5)(layers.Add()([shared(x), shared(shared(x))]), training=True)
    )


def _image(keras):
    layers = keras.layers
    x = keras.Input((8, 8, 3), name="x")
    y = layers.ReLU()(layers.BatchNormalization()(layers.Conv2D(4, 3, padding="same")(x)))
    y = layers.GlobalAveragePooling2D()(layers.MaxPooling2D()(layers.SeparableConv2D(4, 3)(y)))
    return keras.Model(x, layers.Dense(2, "softmax")(y), name="image")


def _build_wrapped(keras):
    layers = keras.layers
    inside = [
        layers.TimeDistributed(layers.Dense(2)),
        layers.Bidirectional(layers.LSTM(2, return_sequences=True)),
    ]
    return keras.Sequential(
        [keras.Input((3, 6, 2)), layers.ConvLSTM1D(2, 2), *inside, layers.GRU(2)]
    )


def _build_compiled(keras):
    model = keras.Sequential([keras.layers.Dense(2, input_shape=(4,))])
    optimizer = keras.mixed_precision.LossScaleOptimizer(keras.optimizers.Adam(0.5))
    model.compile(optimizer, keras.losses.Huber(0.5), ["mae", keras.metrics.AUC(num_thresholds=3)])
    return model


MODELS = {
    **{
        "by_name": _by_name,
        "operators": _operators,
        "slices": _slices,
        "functions": _functions,
        "stacks": _stacks,
        "states": _states,
    },
    **{"calls": _calls, "image": _image, "wrapped": _build_wrapped, "compiled": _build_compiled},
}


def objects():
    """Names of all objects: the namespace and the expression."""
    return [f"{space}.{one}" for space, text in OBJECTS.items() for one in text.split()]


def made(keras, name):
    """The object with a name; names of layers count from the first again."""
    keras.backend.reset_uids()
    return eval(f"K.{name}", {"K": keras})


def text_of(value):
    """Return JSON of the keys of both, in order."""
    text = json.dumps(_common(json.loads(json.dumps(value, default=_convert_to_list))))
    return text.replace("tf_keras.src", "keras.src")


def _convert_to_list(value):
    return value.tolist() if hasattr(value, "tolist") else value.as_list()


def _common(value):
    if isinstance(value, dict):
        return {key: _common(item) for key, item in value.items() if key not in _LATER}
    return [_common(item) for item in value] if isinstance(value, list) else value


def said_of_model(keras, name):
    """Return a model's JSON, compile arguments, names, calls of its layers, and summary."""
    keras.backend.reset_uids()
    model, lines = MODELS[name](keras), []
    model.summary(print_fn=lambda line, **_: lines.append(line))
    return {
        "json": text_of(json.loads(model.to_json())),
        "compiled": text_of(model.get_compile_config()),
        "names": [model.input_names, model.output_names, [w.name for w in model.weights]],
        "calls": [[len(layer.inbound_nodes), len(layer.outbound_nodes)] for layer in model.layers],
        "input": str(model.input_spec),
        "summary": lines,
    }
