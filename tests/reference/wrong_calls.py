"""Calls with wrong arguments, and the classes of their errors.

`tf` and the names of `SHORT` are defined while a call runs.
"""

# Exception classes that programs catch; an error is described by those that it is an instance of.
CAUGHT = (
    *("ValueError", "TypeError", "KeyError", "IndexError", "AttributeError"),
    *("NotImplementedError", "OverflowError", "ZeroDivisionError"),
    *("InvalidArgumentError", "UnimplementedError", "FailedPreconditionError", "NotFoundError"),
    *("OutOfRangeError",),
)
_LAYERS = [
    *(
        "L.Add()([O(2, 3), O(2, 4)])",
        "L.Add()([O(2, 3)])",
        "L.Add()(O(2, 3))",
        "L.Add()([O(2, 3), O(3, 3)])",
    ),
    *(
        "L.Subtract()([O(2, 3), O(2, 4)])",
        "L.Subtract()([O(2, 3)])",
        "L.Subtract()([O(2), O(2), O(2)])",
    ),
    *(
        "L.Multiply()([O(2, 3), O(2, 4)])",
        "L.Average()([O(2, 3), O(2, 4)])",
        "L.Maximum()([O(2, 3), O(2, 4)])",
    ),
    *("L.Minimum()([O(2, 3), O(2, 4)])", "L.Minimum()([O(2, 3), O(2, 3, 4)])"),
    *(
        "L.Concatenate()([O(2, 3), O(3, 3)])",
        "L.Concatenate()([O(2, 3)])",
        "L.Concatenate()(O(2, 3))",
    ),
    *("L.Concatenate(axis=3)([O(2, 3), O(2, 3)])", "L.Concatenate()([O(2, 3), O(2, 3, 4)])"),
    *(
        "L.Dot(1)([O(2, 3), O(2, 4)])",
        "L.Dot(3)([O(2, 3), O(2, 3)])",
        "L.Dot(1)([O(2, 3)])",
        "L.Dot('x')",
        "L.Dot((1, 2, 3))",
    ),
    *(
        "L.Dense(4)(O(3))",
        "L.Dense(4)(tf.constant('x'))",
        "L.Dense(-1)",
        "L.Dense('x')",
        "L.Dense(4, activation='x')",
    ),
    *(
        "L.Dense(4, kernel_initializer='x')",
        "L.Dense(4, kernel_regularizer='x')",
        "L.Dense(4, kernel_constraint='x')",
    ),
    *(
        "L.Dense(4, nothing=1)",
        "L.Dense()",
        "L.Dense(0)(O(2, 3))",
        "L.Dense(2.5)(O(2, 3))",
        "L.Dense(2)(O(2, 0))",
    ),
    *(
        "called(L.Dense(4), O(2, 3))(O(2, 5))",
        "called(L.Dense(4), O(2, 3))(O(5))",
        "called(L.Dense(4), O(2, 3))('x')",
    ),
    *(
        "called(L.Dense(4), O(2, 3)).set_weights([])",
        "called(L.Dense(4), O(2, 3)).set_weights([O(2, 2), O(4)])",
    ),
    *(
        "L.Conv2D(4, 3)(O(2, 8, 8))",
        "L.Conv2D(4, 3)(O(2, 2, 2, 3))",
        "L.Conv2D(4, 3, padding='x')",
        "L.Conv2D(4, 3, strides=0)",
    ),
    *(
        "L.Conv2D(4, 3, strides=2, dilation_rate=2)(O(2, 8, 8, 3))",
        "L.Conv2D(4, (3, 3, 3))",
        "L.Conv2D(3, 3, groups=2)",
    ),
    *(
        "L.Conv2D(4, 3, groups=2)(O(2, 8, 8, 3))",
        "L.Conv2D(4, 3, padding='causal')",
        "L.Conv2D(4, 0)",
        "L.Conv2D(-4, 3)",
    ),
    *(
        "L.Conv2D(4, 3, data_format='x')",
        "called(L.Conv2D(4, 3), O(2, 8, 8, 3))(O(2, 8, 8, 4))",
        "L.Conv1D(4, 3)(O(2, 3))",
    ),
    *(
        "L.Conv1D(4, 9)(O(2, 3, 2))",
        "L.Conv3D(4, 3)(O(2, 3, 4, 5))",
        "L.DepthwiseConv2D(3)(O(2, 8, 8))",
        "L.SeparableConv2D(4, 3)(O(2, 8))",
    ),
    *(
        "L.Conv2DTranspose(4, 3)(O(2, 8, 8))",
        "L.Conv2DTranspose(4, 3, output_padding=3)(O(2, 8, 8, 3))",
    ),
    *(
        "L.MaxPooling2D()(O(2, 8, 8))",
        "L.MaxPooling2D(9)(O(2, 3, 3, 1))",
        "L.MaxPooling2D(0)(O(2, 3, 3, 1))",
        "L.MaxPooling2D(padding='x')",
    ),
    *(
        "L.AveragePooling1D()(O(2, 8))",
        "L.GlobalAveragePooling2D()(O(2, 8))",
        "L.MaxPooling1D(strides=0)(O(2, 8, 1))",
    ),
    *(
        "L.BatchNormalization()(tf.constant([1, 2]))",
        "L.BatchNormalization(axis=4)(O(2, 3))",
        "L.BatchNormalization(axis='x')",
    ),
    *(
        "called(L.BatchNormalization(), O(2, 3))(O(2, 4))",
        "L.LayerNormalization(axis=4)(O(2, 3))",
        "L.GroupNormalization(2)(O(2, 3))",
    ),
    *(
        "L.UnitNormalization(axis='x')",
        "L.Embedding(4, 2)(tf.constant([5]))",
        "L.Embedding(4, 2)(tf.constant([-1]))",
        "L.Embedding(0, 2)",
    ),
    *(
        "L.Embedding(4, -2)",
        "L.Embedding(4, 2)(tf.constant('x'))",
        "L.LSTM(4)(O(2, 3))",
        "L.LSTM(-4)",
        "L.LSTM(4, unroll=True)(O(2, 3))",
    ),
    *(
        "L.GRU(4)(O(2, 3, 4, 5))",
        "L.GRU(4)(O(2, 3, 2), initial_state=O(2, 3))",
        "L.LSTM(4)(O(2, 3, 2), initial_state=[O(2, 4)])",
    ),
    *(
        "called(L.LSTM(4), O(2, 3, 2))(O(2, 3, 5))",
        "L.SimpleRNN(4)(O(3))",
        "L.RNN(3)",
        "L.Bidirectional(3)",
        "L.Bidirectional(L.Dense(2))",
    ),
    *(
        "L.Bidirectional(L.LSTM(2), merge_mode='x')",
        "L.TimeDistributed(3)",
        "L.TimeDistributed(L.Dense(2))(O(2))",
        "L.StackedRNNCells([3])",
    ),
    *(
        "L.ConvLSTM2D(2, 3)(O(2, 3, 4, 5))",
        "L.Dropout(2)",
        "L.Dropout(-0.1)",
        "L.Dropout('x')",
        "L.Dropout(0.5, noise_shape=(3, 3))(O(2, 2), training=True)",
    ),
    *(
        "L.SpatialDropout1D(0.5)(O(2, 3))",
        "L.GaussianNoise('x')",
        "L.GaussianDropout(-1)",
        "L.Reshape((4,))(O(2, 3))",
        "L.Reshape((-1, -1))(O(2, 4))",
    ),
    *(
        "L.Reshape((-1, 4))(O(2, 3))",
        "L.Permute((1, 3))",
        "L.Permute((2, 1))(O(2, 3))",
        "L.RepeatVector(2)(O(2, 3, 4))",
        "L.RepeatVector('x')",
    ),
    *(
        "L.Flatten(data_format='x')",
        "L.Cropping1D(2)(O(2, 3, 1))",
        "L.Cropping2D(5)(O(2, 3, 3, 1))",
        "L.Cropping2D((1, 2, 3))",
        "L.ZeroPadding2D((1, 2, 3))",
    ),
    *(
        "L.ZeroPadding2D()(O(2, 3, 3))",
        "L.UpSampling2D()(O(2, 3, 3))",
        "L.UpSampling2D(interpolation='x')",
        "L.UpSampling1D('x')",
    ),
    *(
        "L.Attention()(O(2, 3))",
        "L.Attention()([O(2, 3, 4), O(2, 3, 5)])",
        "L.Attention()([O(2, 3, 4)])",
        "L.AdditiveAttention()([O(2, 3, 4), O(2, 3, 5)])",
    ),
    *(
        "L.MultiHeadAttention(2, 2)(O(2, 3, 4))",
        "L.MultiHeadAttention(2, 2)(O(3), O(3))",
        "L.MultiHeadAttention(0, 2)",
        "L.MultiHeadAttention(2, 'x')",
    ),
    *(
        "L.Activation('x')",
        "L.LeakyReLU(None)",
        "L.ReLU(-1)",
        "L.ReLU(negative_slope=-1)",
        "L.Softmax(axis=5)(O(2, 3))",
        "L.PReLU(shared_axes=[5])(O(2, 3))",
    ),
    *(
        "L.ThresholdedReLU(-1)",
        "L.ELU(None)",
        "L.Masking()(O(2))",
        "L.Lambda(3)(O(2))",
        "L.Lambda(lambda x: x + O(5))(O(2, 3))",
    ),
    *(
        "L.Input(shape=3)",
        "L.Input(batch_size='x', shape=(2,))",
        "L.Input((2,), dtype='x')",
        "L.InputLayer(input_shape=(2,), input_tensor=3)",
    ),
    *(
        "L.InputSpec(shape='x')",
        "L.Normalization(axis=5)(O(2, 3))",
        "L.Normalization(mean=1.0)",
        "L.Discretization()",
        "L.CategoryEncoding(-1)",
    ),
    *(
        "L.CategoryEncoding(3)(tf.constant([5]))",
        "L.CategoryEncoding(3, output_mode='x')",
        "L.Hashing(0)",
        "L.Hashing(-3)",
        "L.StringLookup(vocabulary=['a', 'a'])",
    ),
    *(
        "L.StringLookup(max_tokens=1)",
        "L.StringLookup(output_mode='x')",
        "L.StringLookup(vocabulary={'a': 1})",
        "L.StringLookup(vocabulary=3)",
    ),
    *(
        "L.IntegerLookup(vocabulary={1: 1})",
        "L.IntegerLookup(vocabulary=['a'])",
        "L.IntegerLookup(vocabulary=[1, 1])",
        "L.StringLookup(num_oov_indices=-1)",
    ),
    *(
        "L.StringLookup(vocabulary=[])",
        "L.StringLookup()(tf.constant(['a']))",
        "L.StringLookup(vocabulary='/nowhere.txt')",
        "L.TextVectorization(vocabulary={'a': 1})",
    ),
    *(
        "L.TextVectorization(standardize='x')",
        "L.TextVectorization(split='x')",
        "L.TextVectorization(output_mode='x')",
        "L.TextVectorization(ngrams='x')",
    ),
    *(
        "L.TextVectorization(vocabulary=['a'])(tf.constant([1]))",
        "L.Resizing(-1, 2)(O(1, 2, 2, 1))",
        "L.Rescaling('x')(O(2))",
        "L.CenterCrop(5, 5)(O(2))",
    ),
    *(
        "L.RandomFlip('x')",
        "L.RandomRotation('x')",
        "L.RandomZoom(-2)",
        "L.RandomCrop(9, 9)(O(2, 2))",
        "L.RandomContrast(2)",
        "L.RandomContrast(-1)",
    ),
    *(
        "L.HashedCrossing(0)",
        "L.HashedCrossing(2)(O(2))",
        "L.Layer()(3, 4)",
        "L.Layer(3)",
        "L.Layer(nothing=3)",
        "L.deserialize('x')",
        "L.deserialize({})",
    ),
    "L.deserialize({'class_name': 'Nothing', 'config': {}})",
]
_MODELS = [
    *(
        "K.Sequential([3])",
        "K.Sequential(L.Dense(2)).pop().pop()",
        "K.Sequential().pop()",
        "K.Sequential([L.Dense(2)]).summary()",
    ),
    *(
        "K.Sequential([L.Dense(2, name='a'), L.Dense(2, name='a')])",
        "K.Sequential([L.Dense(2)]).add(3)",
        "K.Model(3, 4)",
        "K.Model(I(2), I(2))",
    ),
    *(
        "K.Model(I(2), O(2))",
        "model().predict(O(4, 5))",
        "model().fit(O(4, 3))",
        "model().fit(O(4, 3), O(5, 1))",
        "model().fit(O(4, 3), O(4, 1), batch_size=0)",
    ),
    *(
        "model().fit(O(4, 3), O(4, 1), validation_split=2)",
        "model().fit(O(4, 3), O(4, 1), epochs='x')",
        "model().evaluate(O(4, 5), O(4, 1))",
    ),
    *(
        "model().get_layer('x')",
        "model().get_layer(index=7)",
        "model().get_layer()",
        "model().load_weights('/nowhere.h5')",
        "model()(O(4, 5))",
        "model()(O(3, 4, 5))",
    ),
    *(
        "model().compile(loss='x')",
        "model().compile('x')",
        "model().compile(metrics=['x'], loss='mse') or model().fit(O(4, 3), O(4, 2))",
    ),
    *(
        "K.models.load_model('/nowhere')",
        "K.models.model_from_json('x')",
        "K.models.model_from_json('{}')",
        "K.models.clone_model(3)",
        "K.optimizers.get('x')",
    ),
    *(
        "K.optimizers.SGD(momentum=2)",
        "K.optimizers.Adam('x')",
        "K.optimizers.Adam(nothing=1)",
        "K.optimizers.SGD(clipnorm=1, clipvalue=1)",
    ),
    *(
        "K.optimizers.SGD().apply_gradients([])",
        "K.optimizers.SGD().apply_gradients([(None, tf.Variable(1.0))])",
        "K.losses.get('x')",
        "K.metrics.get('x')",
    ),
    *(
        "K.activations.get('x')",
        "K.initializers.get('x')",
        "K.regularizers.get('x')",
        "K.constraints.get('x')",
        "K.initializers.Constant('x')((2,))",
    ),
    *(
        "K.initializers.VarianceScaling(-1)",
        "K.initializers.VarianceScaling(mode='x')",
        "K.initializers.Identity()((2, 2, 2))",
        "K.initializers.Orthogonal()((2,))",
    ),
    *(
        "K.utils.to_categorical([5], 3)",
        "K.utils.to_categorical([-1])",
        "K.utils.get_custom_objects(3)",
        "K.backend.set_floatx('x')",
    ),
    *(
        "K.mixed_precision.Policy('x')",
        "K.optimizers.schedules.PiecewiseConstantDecay([1], [1.0])",
        "K.callbacks.EarlyStopping(mode=3, monitor='x').on_epoch_end(0)",
    ),
]
_LOSSES = [
    *(
        "K.losses.mse(O(2, 3), O(2, 4))",
        "K.losses.mae(O(2, 3), O(2, 4))",
        "K.losses.mape(O(2, 3), O(2, 4))",
        "K.losses.msle(O(2, 3), O(2, 4))",
    ),
    *(
        "K.losses.binary_crossentropy(O(2, 3), O(2, 4))",
        "K.losses.categorical_crossentropy(O(2, 3), O(2, 4))",
        "K.losses.huber(O(2, 3), O(2, 4))",
    ),
    *(
        "K.losses.log_cosh(O(2, 3), O(2, 4))",
        "K.losses.kld(O(2, 3), O(2, 4))",
        "K.losses.hinge(O(2, 3), O(2, 4))",
        "K.losses.squared_hinge(O(2, 3), O(2, 4))",
    ),
    *(
        "K.losses.categorical_hinge(O(2, 3), O(2, 4))",
        "K.losses.poisson(O(2, 3), O(2, 4))",
        "K.losses.cosine_similarity(O(2, 3), O(2, 4))",
    ),
    *(
        "K.losses.binary_focal_crossentropy(O(2, 3), O(2, 4))",
        "K.losses.sparse_categorical_crossentropy(O(3), O(2, 4))",
    ),
    *(
        "K.losses.sparse_categorical_crossentropy(tf.constant([9, 0]), O(2, 4))",
        "K.losses.sparse_categorical_crossentropy(O(2, 3), O(2, 4))",
    ),
    *(
        "K.losses.mse('x', O(2))",
        "K.losses.mse(O(2), None)",
        "K.losses.mse()",
        "K.losses.mse(O(4), O(2, 3))",
    ),
    *(
        "K.losses.MeanSquaredError()(O(2, 3), O(2, 4))",
        "K.losses.MeanSquaredError(reduction='x')",
        "K.losses.MeanSquaredError()(O(2, 3), O(2, 3), O(5))",
    ),
    *(
        "K.losses.BinaryCrossentropy()(O(2, 3), O(2, 4))",
        "K.losses.CategoricalCrossentropy()(O(2, 3), O(2, 4))",
        "K.losses.Huber()(O(2, 3), O(3, 4))",
    ),
    *(
        "K.losses.BinaryCrossentropy(label_smoothing='x')(O(2, 3), O(2, 3))",
        "K.losses.SparseCategoricalCrossentropy()(O(3), O(2, 4))",
        "K.losses.deserialize('x')",
    ),
    *(
        "K.metrics.mse(O(2, 3), O(2, 4))",
        "K.metrics.binary_accuracy(O(2, 3), O(2, 4))",
        "K.metrics.categorical_accuracy(O(2, 3), O(3, 4))",
    ),
    *(
        "K.metrics.MeanSquaredError()(O(2, 3), O(2, 4))",
        "K.metrics.Accuracy()(O(2, 3), O(2, 4))",
        "K.metrics.BinaryAccuracy()(O(2, 3), O(2, 4))",
    ),
    *(
        "K.metrics.AUC()(O(2, 3), O(2, 4))",
        "K.metrics.AUC(num_thresholds=1)",
        "K.metrics.AUC(curve='x')",
        "K.metrics.AUC()(O(2), tf.constant([2.0, 3.0]))",
    ),
    *(
        "K.metrics.Precision()(O(2, 3), O(2, 4))",
        "K.metrics.Precision(thresholds=2)",
        "K.metrics.Precision(top_k=5)(O(2), O(2))",
        "K.metrics.Recall(thresholds=-1)",
    ),
    *(
        "K.metrics.MeanIoU(2)(tf.constant([5]), tf.constant([0]))",
        "K.metrics.MeanIoU()",
        "K.metrics.Mean()('x')",
        "K.metrics.Mean()(O(2, 3), O(4))",
    ),
    *(
        "K.metrics.CosineSimilarity()(O(2, 3), O(2, 4))",
        "K.metrics.TopKCategoricalAccuracy(9)(O(2, 3), O(2, 3))",
        "K.metrics.MeanRelativeError(O(3))(O(2), O(2))",
    ),
    *(
        "K.metrics.F1Score(average='x')",
        "K.metrics.F1Score(threshold=2)",
        "K.metrics.SensitivityAtSpecificity(2)",
        "K.metrics.R2Score()(O(2), O(2))",
    ),
    *(
        "K.metrics.SparseCategoricalAccuracy()(O(3), O(2, 4))",
        "K.metrics.KLDivergence()(O(2, 3), O(2, 4))",
    ),
]
_OPS = [
    *(
        "tf.einsum('ij,jk->ik', O(2, 3), O(4, 5))",
        "tf.einsum('ij,jk', O(2, 3))",
        "tf.einsum('ijk->i', O(2, 3))",
        "tf.einsum('i->j', O(2))",
        "tf.einsum('', O(2))",
    ),
    *(
        "tf.einsum('i,i->i->i', O(2), O(2))",
        "tf.einsum('i!->i', O(2))",
        "tf.einsum('ii->i', O(2, 3))",
        "tf.einsum(3, O(2))",
        "tf.einsum('ij->ii', O(2, 2))",
    ),
    *(
        "tf.einsum('i->ij', O(2))",
        "tf.einsum('...i->i', O(2, 3))",
        "tf.einsum('i,i->', O(2), tf.constant([1, 2]))",
        "tf.einsum('ij->ji')",
    ),
    *(
        "O(2, 3) + O(2, 4)",
        "O(2) + 'x'",
        "O(2) + tf.constant([1, 2])",
        "tf.add_n([])",
        "tf.add_n([O(2), O(3)])",
        "tf.add_n(3)",
        "O(2, 3) @ O(2, 3)",
        "tf.matmul(O(2), O(2))",
    ),
    *(
        "tf.matmul(O(2, 3), O(2, 3))",
        "tf.matmul(O(2, 3), O(3, 2), transpose_a=True, adjoint_a=True)",
        "tf.tensordot(O(2, 3), O(4, 5), 1)",
        "tf.tensordot(O(2), O(2), 3)",
    ),
    *(
        "tf.tensordot(O(2, 3), O(2, 3), [[0], [0, 1]])",
        "tf.reshape(O(2, 3), [4])",
        "tf.reshape(O(2, 3), [-1, -1])",
        "tf.reshape(O(2), 'x')",
        "tf.reshape(O(2), [2.5])",
    ),
    *(
        "tf.concat([O(2, 3), O(3, 4)], 0)",
        "tf.concat([O(2)], 3)",
        "tf.concat([], 0)",
        "tf.concat([O(2), tf.constant([1])], 0)",
        "tf.stack([O(2), O(3)])",
        "tf.stack([])",
    ),
    *(
        "tf.stack([O(2)], 5)",
        "tf.unstack(O(2), axis=3)",
        "tf.unstack(O(2), num=3)",
        "tf.unstack(tf.constant(1))",
        "tf.split(O(4), 3)",
        "tf.split(O(4), [1, 2])",
        "tf.split(O(4), 2, 3)",
    ),
    *(
        "tf.transpose(O(2, 3), [0])",
        "tf.transpose(O(2, 3), [0, 0])",
        "tf.transpose(O(2, 3), [0, 5])",
        "tf.squeeze(O(2, 3), 0)",
        "tf.squeeze(O(2, 1), 5)",
        "tf.expand_dims(O(2), 5)",
    ),
    *(
        "tf.expand_dims(O(2), [0, 1])",
        "tf.gather(O(3), [5])",
        "tf.gather(O(3), 0, axis=4)",
        "tf.gather(O(3), 'x')",
        "tf.gather(O(3), [0.5])",
        "tf.gather(O(2, 3), [[0]], batch_dims=2)",
    ),
    *(
        "tf.gather_nd(O(3), [[5]])",
        "tf.gather_nd(O(3), [[0, 1]])",
        "tf.scatter_nd([[5]], [1.0], [3])",
        "tf.scatter_nd([[0]], [1.0, 2.0], [3])",
        "tf.tensor_scatter_nd_update(O(3), [[5]], [1.0])",
    ),
    *(
        "tf.slice(O(3), [5], [1])",
        "tf.slice(O(3), [0], [9])",
        "tf.slice(O(3), [0, 1], [1, 1])",
        "tf.strided_slice(O(3), [0], [1], [0])",
        "O(3)[5]",
        "O(3)[0, 1]",
        "O(3)['x']",
        "O(3)[0.5]",
    ),
    *(
        "O(3)[::0]",
        "tf.pad(O(3), [[1, 1], [1, 1]])",
        "tf.pad(O(3), [[-1, 0]])",
        "tf.pad(O(3), [[9, 9]], 'REFLECT')",
        "tf.pad(O(3), [[1, 1]], 'x')",
        "tf.tile(O(3), [1, 2])",
    ),
    *(
        "tf.tile(O(3), [-1])",
        "tf.broadcast_to(O(3), [2])",
        "tf.broadcast_to(O(3), [4])",
        "tf.fill([-1], 1.0)",
        "tf.fill([2], [1.0])",
        "tf.fill('x', 1.0)",
        "tf.zeros([-1])",
        "tf.zeros('x')",
    ),
    *(
        "tf.range(0, 5, 0)",
        "tf.range(0, 5, -1) + 'x'",
        "tf.linspace(0.0, 1.0, 0)",
        "tf.eye(-1)",
        "tf.one_hot([1], -1)",
        "tf.one_hot([0.5], 3)",
        "tf.one_hot('x', 3)",
        "tf.reverse(O(3), [3])",
    ),
    *(
        "tf.roll(O(3), [1, 2], 0)",
        "tf.cast('x', tf.float32)",
        "tf.cast(O(2), 'x')",
        "tf.constant([[1], [1, 2]])",
        "tf.constant([1, 'x'])",
        "tf.constant(1, shape=[2, -1])",
        "tf.constant([1, 2], shape=[3])",
    ),
    *(
        "tf.constant('x', tf.float32)",
        "tf.constant(300, tf.uint8)",
        "tf.constant(None)",
        "tf.convert_to_tensor(object())",
        "tf.Variable(None)",
        "tf.Variable(O(2)).assign(O(3))",
    ),
    *(
        "tf.Variable(O(2)).assign(tf.constant([1, 2]))",
        "tf.Variable(O(2)).assign_add('x')",
        "tf.reduce_sum(O(2), 3)",
        "tf.reduce_sum('x')",
        "tf.reduce_mean(O(2), 'x')",
        "tf.reduce_sum(O(2, 3), [0, 0])",
    ),
    *(
        "tf.argmax(O(2), 3)",
        "tf.argmax('x')",
        "tf.sort(O(2), axis=3)",
        "tf.sort(O(2), direction='x')",
        "tf.argsort(O(2), direction='x')",
        "tf.cumsum(O(2), 3)",
        "tf.math.top_k(O(3), 5)",
        "tf.math.top_k(O(3), -1)",
    ),
    *(
        "tf.math.in_top_k([0], O(2, 3), 1)",
        "tf.math.segment_sum(O(3), [0, 1])",
        "tf.math.segment_sum(O(3), [2, 1, 0])",
        "tf.math.unsorted_segment_sum(O(3), [0, 1], 2)",
        "tf.math.bincount([-1])",
    ),
    *(
        "tf.where([True, False], O(3), O(2))",
        "tf.where(O(2), O(2), O(2))",
        "tf.where([True], O(2))",
        "tf.boolean_mask(O(3), [True, False])",
        "tf.boolean_mask(O(3), True)",
        "tf.boolean_mask(O(3), [1, 0, 1])",
    ),
    *(
        "tf.clip_by_value(O(2), O(3), 1.0)",
        "tf.clip_by_norm(O(2), 'x')",
        "tf.maximum(O(2), O(3))",
        "tf.equal(O(2), 'x')",
        "tf.less(O(2), O(3))",
        "tf.logical_and(O(2), True)",
        "tf.bitwise.bitwise_and(O(2), O(2))",
    ),
    *(
        "tf.math.floordiv(tf.constant(1), 0)",
        "tf.constant(1) % 0",
        "tf.pow('x', 2)",
        "tf.sqrt(tf.constant(1))",
        "tf.exp('x')",
        "tf.linalg.inv(O(2, 3))",
        "tf.linalg.inv(tf.zeros([2, 2]))",
    ),
    *(
        "tf.linalg.cholesky(-O(2, 2))",
        "tf.linalg.cholesky(O(2, 3))",
        "tf.linalg.solve(O(2, 2), O(3, 1))",
        "tf.linalg.det(O(2, 3))",
        "tf.linalg.qr(O(2))",
        "tf.linalg.band_part(O(2), 0, 0)",
    ),
    *(
        "tf.linalg.diag_part(O(2))",
        "tf.linalg.trace(O(2))",
        "tf.linalg.matvec(O(2, 3), O(2))",
        "tf.linalg.norm(O(2), ord='x')",
        "tf.linalg.cross(O(2), O(2))",
        "tf.norm(O(2), axis=5)",
    ),
    *(
        "tf.nn.softmax(O(2), axis=3)",
        "tf.nn.softmax(tf.constant([1]))",
        "tf.nn.relu('x')",
        "tf.nn.dropout(O(2), 2)",
        "tf.nn.dropout(O(2), -1)",
        "tf.nn.dropout(tf.constant([1]), 0.5)",
    ),
    *(
        "tf.nn.softmax_cross_entropy_with_logits(O(2, 3), O(2, 4))",
        "tf.nn.sparse_softmax_cross_entropy_with_logits([0], O(2, 3))",
        "tf.nn.sparse_softmax_cross_entropy_with_logits([5, 0], O(2, 3))",
    ),
    *(
        "tf.nn.sigmoid_cross_entropy_with_logits(O(2, 3), O(2, 4))",
        "tf.nn.weighted_cross_entropy_with_logits(O(2), O(3), 1.0)",
        "tf.nn.conv2d(O(1, 3, 3, 1), O(2, 2, 2, 1), 1, 'SAME')",
    ),
    *(
        "tf.nn.conv2d(O(3, 3, 1), O(2, 2, 1, 1), 1, 'x')",
        "tf.nn.conv2d(O(1, 3, 3, 1), O(2, 2, 1, 1), 0, 'SAME')",
        "tf.nn.conv2d(O(1, 3, 3, 1), O(5, 5, 1, 1), 1, 'VALID')",
    ),
    *(
        "tf.nn.conv2d(O(1, 3, 3, 1), O(2, 2, 1), 1, 'SAME')",
        "tf.nn.conv2d(O(1, 3, 3, 1), O(2, 2, 1, 1), [1, 2], 'SAME')",
        "tf.nn.max_pool2d(O(1, 3, 3, 1), 5, 1, 'VALID')",
    ),
    *(
        "tf.nn.max_pool2d(O(3, 3, 1), 2, 1, 'VALID')",
        "tf.nn.avg_pool2d(O(1, 3, 3, 1), 0, 1, 'SAME')",
        "tf.nn.bias_add(O(2, 3), O(4))",
        "tf.nn.bias_add(O(2, 3), O(1, 3))",
        "tf.nn.batch_normalization(O(2, 3), O(4), O(3), None, None, 0.1)",
    ),
    *(
        "tf.nn.moments(O(2), [3])",
        "tf.nn.l2_normalize(O(2), 3)",
        "tf.nn.embedding_lookup(O(2, 3), [5])",
        "tf.nn.ctc_loss(tf.constant([[1]]), O(2, 1, 3), [1], [5])",
        "tf.nn.depth_to_space(O(1, 2, 2, 3), 2)",
    ),
    *(
        "tf.nn.space_to_depth(O(1, 3, 3, 1), 2)",
        "tf.nn.local_response_normalization(O(2, 3))",
        "tf.nn.convolution(O(1, 3, 1), O(2, 2, 1))",
        "tf.nn.lrn(O(1, 2, 2, 2), depth_radius='x')",
    ),
    *(
        "tf.image.resize(O(2), [2, 2])",
        "tf.image.resize(O(1, 2, 2, 1), [2])",
        "tf.image.resize(O(1, 2, 2, 1), [2, 2], 'x')",
        "tf.image.resize(O(1, 2, 2, 1), [-2, 2])",
        "tf.image.crop_to_bounding_box(O(2, 2, 1), 0, 0, 5, 5)",
    ),
    *(
        "tf.image.pad_to_bounding_box(O(2, 2, 1), 0, 0, 1, 1)",
        "tf.image.central_crop(O(2, 2, 1), 2)",
        "tf.image.rgb_to_grayscale(O(2, 2, 2))",
        "tf.image.decode_png(b'x')",
        "tf.image.decode_jpeg(b'x')",
    ),
    *(
        "tf.image.flip_left_right(O(2))",
        "tf.image.adjust_contrast(O(2), 1.0)",
        "tf.image.random_crop(O(2), [3])",
        "tf.image.per_image_standardization(O(2))",
        "tf.image.ssim(O(4, 4, 1), O(5, 5, 1), 1.0)",
    ),
    *(
        "tf.image.non_max_suppression(O(2, 3), O(2), 1)",
        "tf.image.extract_patches(O(1, 2, 2, 1), [2, 2], [1, 1], [1, 1], 'x')",
        "tf.image.rot90(O(2))",
        "tf.image.adjust_hue(O(2, 2, 3), 2.0)",
    ),
    *(
        "tf.strings.to_number('x')",
        "tf.strings.to_number(3)",
        "tf.strings.substr('ab', 5, 1)",
        "tf.strings.split(3)",
        "tf.strings.join(['a', 3])",
        "tf.strings.join([['a'], ['b', 'c']])",
        "tf.strings.format('{}', [1, 2])",
    ),
    *(
        "tf.strings.regex_replace('a', '(', 'b')",
        "tf.strings.length(3)",
        "tf.strings.unicode_decode('a', 'x')",
        "tf.strings.as_string('x')",
        "tf.strings.reduce_join(3)",
        "tf.strings.to_hash_bucket('a', 0)",
    ),
    *(
        "tf.io.decode_raw('abc', tf.int16)",
        "tf.io.decode_base64('!')",
        "tf.io.parse_tensor(b'x', tf.int32)",
        "tf.io.decode_csv('a,b', [[1]])",
        "tf.io.decode_csv('a', [[1]])",
        "tf.io.read_file('/nowhere')",
    ),
    *(
        "tf.io.parse_single_example(b'x', {'a': tf.io.FixedLenFeature([], tf.int64)})",
        "tf.io.parse_single_example(b'', {'a': tf.io.FixedLenFeature([], tf.int64)})",
        "tf.io.parse_single_example(b'', {})",
    ),
    *(
        "tf.io.decode_compressed(b'x', 'GZIP')",
        "tf.io.decode_compressed(b'x', 'x')",
        "tf.random.uniform([2], 1, 0, tf.int32)",
        "tf.random.uniform([-1])",
        "tf.random.uniform([2], dtype=tf.string)",
    ),
    *(
        "tf.random.normal('x')",
        "tf.random.categorical(O(3), 1)",
        "tf.random.shuffle(3) + 'x'",
        "tf.random.stateless_uniform([2], 3)",
        "tf.random.Generator.from_seed('x')",
        "tf.random.gamma([2], -1.0) + 'x'",
    ),
    *(
        "tf.ragged.constant([[1], 2])",
        "tf.ragged.constant([['a'], [1]])",
        "tf.RaggedTensor.from_row_splits(O(3), [0, 5])",
        "tf.RaggedTensor.from_row_splits(O(3), [1, 3])",
        "tf.RaggedTensor.from_row_lengths(O(3), [1])",
    ),
    *(
        "tf.RaggedTensor.from_value_rowids(O(3), [1, 0, 2])",
        "tf.RaggedTensor.from_tensor(O(3))",
        "tf.sparse.to_dense(tf.SparseTensor([[5]], [1.0], [3]))",
        "tf.SparseTensor([[0]], [1.0, 2.0], [3])",
        "tf.SparseTensor([0], [1.0], [3])",
    ),
    *(
        "tf.sparse.to_dense(tf.SparseTensor([[1], [0]], [1.0, 2.0], [3]))",
        "tf.sparse.sparse_dense_matmul(tf.SparseTensor([[0, 0]], [1.0], [2, 2]), O(3, 1))",
        "tf.sparse.reshape(tf.SparseTensor([[0]], [1.0], [3]), [2])",
    ),
    *(
        "tf.sparse.concat(5, [tf.SparseTensor([[0]], [1.0], [3])])",
        "tf.debugging.assert_equal(O(2), O(3))",
        "tf.debugging.assert_equal(O(2), 2.0)",
        "tf.debugging.assert_rank(O(2), 2)",
        "tf.debugging.assert_shapes([(O(2), (3,))])",
    ),
    *(
        "tf.debugging.assert_type(O(2), tf.int32)",
        "tf.debugging.Assert(False, ['x'])",
        "tf.debugging.check_numerics(O(2) / 0.0, 'x')",
        "tf.debugging.assert_positive([-1])",
        "tf.ensure_shape(O(2), [3])",
    ),
    *(
        "tf.cond(O(2), lambda: 1, lambda: 2)",
        "tf.cond(True, 1, 2)",
        "tf.while_loop(lambda i: i < 3, lambda i: (i, i), [tf.constant(0)])",
        "tf.while_loop(lambda i: i < 3, lambda i: O(2), [tf.constant(0)])",
        "tf.case([])",
        "tf.switch_case(0, [])",
    ),
    *(
        "tf.map_fn(lambda x: x, 3)",
        "tf.map_fn(3, O(2))",
        "tf.scan(3, O(2))",
        "tf.foldl(lambda a, x: a, 3)",
        "tf.vectorized_map(lambda x: x, [O(2), O(3)])",
        "tf.custom_gradient(3)(O(2))",
        "tf.nest.map_structure(lambda a, b: a, [1], [1, 2])",
    ),
    *(
        "tf.nest.pack_sequence_as([1, 2], [1])",
        "tf.nest.assert_same_structure([1], (1,))",
        "tf.function(lambda x: x, input_signature=[tf.TensorSpec([2])])(O(3))",
        "tf.function(3)",
        "tf.TensorShape('x')",
        "tf.TensorShape([2]).assert_is_compatible_with([3])",
    ),
    *(
        "tf.TensorShape([2]).merge_with([3])",
        "tf.TensorSpec(3.5)",
        "tf.as_dtype('x')",
        "tf.data.Dataset.from_tensor_slices((O(2), O(3)))",
        "tf.data.Dataset.from_tensor_slices(3)",
        "tf.data.Dataset.range(3).batch(0)",
        "tf.data.Dataset.range(3).batch('x')",
    ),
    *(
        "list(tf.data.Dataset.range(3).map(lambda x: x, num_parallel_calls=0))",
        "tf.data.Dataset.range(3).shuffle(0)",
        "tf.data.Dataset.range('x')",
        "tf.data.Dataset.range(3).zip()",
        "tf.data.Dataset.range(3).concatenate(3)",
        "tf.data.Dataset.range(3).window(0)",
    ),
    *(
        "tf.data.Dataset.range(3).filter(lambda x: x)",
        "tf.data.Dataset.range(3).interleave(lambda x: x)",
        "tf.data.Dataset.range(3).shard(2, 5)",
        "tf.data.Dataset.range(3).padded_batch(2, [[3]])",
        "tf.data.Dataset.range(3).reduce(0, lambda a, x: 'x')",
        "next(iter(tf.data.Dataset.range(3).skip(3)))",
    ),
    *(
        "tf.lookup.StaticHashTable(3, 0)",
        "tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(['a', 'a'], [1, 2]), 0)",
        "tf.lookup.KeyValueTensorInitializer(['a'], [1, 2])",
        "tf.signal.fft(O(2))",
        "tf.signal.stft(O(2), 'x', 1)",
        "tf.signal.frame(O(2), 2, 0)",
    ),
    *(
        "tf.GradientTape().gradient(O(2), O(2))",
        "tf.math.confusion_matrix([5], [0], 3)",
        "tf.math.confusion_matrix([0], [0, 1])",
        "tf.histogram_fixed_width(O(2), [1.0, 0.0])",
        "tf.quantization.fake_quant_with_min_max_args(O(2), 1, 0)",
        "tf.searchsorted(O(2, 2), O(3, 1))",
    ),
    *(
        "tf.meshgrid(3, indexing='x')",
        "tf.repeat(O(2), [1, 2, 3])",
        "tf.unique(O(2, 2))",
        "tf.dynamic_partition(O(3), [0, 1], 2)",
        "tf.dynamic_stitch([[0]], [O(2, 2)])",
        "tf.sequence_mask(-1, 'x')",
        "tf.edit_distance(O(2), O(2))",
        "tf.space_to_batch(O(1, 3, 1, 1), [2], [[0, 0]])",
    ),
]
CALLS = [*dict.fromkeys([*_LAYERS, *_MODELS, *_LOSSES, *_OPS])]


MODES = ("eager", "function", "symbolic")


def list_modes(text):
    """Return the modes of a call: with Keras inputs, only if it has tensors."""
    return MODES if "O(" in text else MODES[:2]


def call(tf, text, mode):
    """Run a call eagerly, in a function, or with Keras inputs instead of tensors.

    Returns:
      The names of `CAUGHT` that the error is an instance of, or None if the call returned a value.
    """
    keras = tf.keras
    symbolic = mode == "symbolic"

    def called(layer, inputs):
        layer(inputs)
        return layer

    def model():
        result = keras.Sequential([keras.layers.Dense(2, name="a")])
        result.build((None, 3))
        result.compile("sgd", "mse")
        return result

    names = {
        "tf": tf,
        "K": keras,
        "L": keras.layers,
        "O": lambda *sizes: (
            keras.Input(sizes[1:], batch_size=sizes[0]) if symbolic else tf.ones(sizes)
        ),
        "I": lambda *sizes: keras.Input(sizes),
        "called": called,
        "model": model,
    }
    try:
        function = eval(f"lambda: {text}", names)

        def run():
            result = function()
            return result if tf.is_tensor(result) else None

        (tf.function(run, autograph=False) if mode == "function" else run)()
    except Exception as error:
        classes = {c.__name__ for c in type(error).__mro__}
        return [name for name in CAUGHT if name in classes] or [type(error).__name__]
    return None
