"""Test that functions of tensors of unknown sizes equal functions of each size."""

import numpy as np
import pytest

import meshflow as tf

# Functions of `x`, of shape (n, 3).
FUNCTIONS = """
tf.shape(x)
tf.size(x)
tf.rank(x)
tf.reshape(x,[-1])
tf.reshape(x,[tf.shape(x)[1],-1])
tf.reshape(x,[-1,1,3])
tf.transpose(x)
tf.expand_dims(x,0)
tf.tile(x,[2,1])
tf.tile(x,[1,tf.shape(x)[1]])
tf.concat([x,x],0)
tf.concat([x,tf.zeros_like(x)],1)
tf.stack([x,x+1],1)
tf.unstack(x,axis=1)[0]
tf.split(x,3,1)[1]
tf.zeros(tf.shape(x))
tf.ones([tf.shape(x)[0],2])
tf.fill([tf.shape(x)[0]],7.0)
tf.zeros_like(x)+tf.ones_like(x)
tf.broadcast_to(x[:1],tf.shape(x))
tf.range(tf.shape(x)[0])
tf.range(1,tf.shape(x)[0])
tf.range(tf.shape(x)[0],0,-1)
tf.one_hot(tf.range(tf.shape(x)[0]),5)
tf.eye(tf.shape(x)[0])
tf.linalg.diag(x[:,0])
tf.linalg.diag_part(tf.matmul(x,x,transpose_b=True))
tf.linalg.band_part(tf.matmul(x,x,transpose_b=True),0,-1)
tf.linalg.trace(tf.matmul(x,x,transpose_b=True))
tf.linalg.norm(x)
tf.linalg.norm(x,axis=0)
tf.matmul(x,x,transpose_a=True)
tf.einsum("ij,kj->ik",x,x)
tf.einsum("ij->j",x)
tf.tensordot(x,x,[[0],[0]])
tf.reduce_mean(x)
tf.reduce_mean(x,0)
tf.reduce_sum(x,1,keepdims=True)
tf.reduce_max(x,0)
tf.reduce_min(x)
tf.reduce_prod(x,0)
tf.reduce_any(x>0,0)
tf.reduce_logsumexp(x,0)
tf.math.reduce_std(x,0)
tf.math.reduce_variance(x)
tf.math.cumsum(x,0)
tf.math.cumsum(x,0,exclusive=True,reverse=True)
tf.math.cumprod(x,0)
tf.math.cumulative_logsumexp(x,0)
tf.argmax(x,0)
tf.argmin(x,1)
tf.sort(x,0)
tf.argsort(x,0,direction="DESCENDING")
tf.math.top_k(x,2)[0]
tf.math.top_k(tf.transpose(x),2)[1]
tf.reverse(x,[0])
tf.roll(x,1,0)
tf.gather(x,[0,2])
tf.gather(x,tf.range(tf.shape(x)[0])[::-1])
tf.gather_nd(x,[[0,1],[2,2]])
tf.scatter_nd([[0],[2]],x[:2],tf.shape(x))
tf.tensor_scatter_nd_update(x,[[1]],x[:1]*9)
tf.tensor_scatter_nd_add(x,[[0],[0]],x[:2])
tf.boolean_mask(x,[True,False,True],axis=1)
tf.where(x>0,x,-x)
tf.where(x[:,:1]>0,x,0.0)
tf.slice(x,[1,0],[2,2])
tf.slice(x,[1,0],[-1,2])
x[1:]
x[:-1]
x[::2]
x[::-1]
x[-1]
x[-2:]
x[:,None,:]
x[...,0]
x[1:,1:]
x[tf.shape(x)[0]//2:]
x[:tf.shape(x)[0]-1]
tf.strided_slice(x,[0,0],[3,2],[1,1])
tf.pad(x,[[1,2],[0,0]])
tf.pad(x,[[1,1],[0,1]],mode="REFLECT")
tf.pad(x,[[1,1],[1,1]],mode="SYMMETRIC")
tf.nn.softmax(x)
tf.nn.softmax(x,axis=0)
tf.nn.log_softmax(x,axis=0)
tf.nn.relu(x)*tf.nn.sigmoid(x)
tf.nn.moments(x,[0])[1]
tf.nn.l2_normalize(x,0)
tf.nn.conv1d(x[None],tf.ones([3,3,2]),1,"SAME")
tf.nn.conv1d(x[None],tf.ones([3,3,2]),1,"VALID")
tf.nn.conv1d(x[None],tf.ones([3,3,2]),2,"SAME")
tf.nn.conv1d(x[None],tf.ones([2,3,2]),1,"VALID",dilations=2)
tf.nn.max_pool1d(x[None],2,2,"SAME")
tf.nn.avg_pool1d(x[None],2,1,"SAME")
tf.nn.avg_pool1d(x[None],3,2,"VALID")
tf.nn.conv1d_transpose(x[None],tf.ones([2,2,3]),[1,tf.shape(x)[0]*2,2],2)
tf.nn.depthwise_conv2d(x[None,:,:,None],tf.ones([2,2,1,2]),[1,1,1,1],"SAME")
tf.image.resize(x[None,:,:,None],[7,4])
tf.image.flip_left_right(x[:,:,None])
tf.image.extract_patches(x[None,:,:,None],[1,2,2,1],[1,1,1,1],[1,1,1,1],"SAME")
tf.image.resize(x[None,:,:,None],[tf.shape(x)[0]*2,6],"nearest")
tf.sequence_mask([1,2],tf.shape(x)[0])
tf.sequence_mask(tf.range(tf.shape(x)[0]),5)
tf.searchsorted(tf.sort(x[:,0]),[0.1,0.5])
tf.math.segment_sum(x,tf.range(tf.shape(x)[0])//2)
tf.math.unsorted_segment_sum(x,tf.range(tf.shape(x)[0])%2,2)
tf.math.bincount(tf.range(tf.shape(x)[0])%3,minlength=4,maxlength=4)
tf.reverse_sequence(x[None],[2],1,0)
tf.meshgrid(x[:,0],x[0])[0]
tf.linspace(0.0,1.0,5)+x[0,0]
tf.map_fn(lambda r: r*2,x)
tf.scan(lambda a,r: a+r,x)
tf.foldl(lambda a,r: a+r,x)
tf.vectorized_map(lambda r: tf.reduce_sum(r)*r,x)
tf.while_loop(lambda i,a: i<tf.shape(x)[0],lambda i,a:(i+1,a+x[i]),(0,tf.zeros([3])))[1]
tf.cond(tf.reduce_sum(x)>0,lambda:x,lambda:-x)
tf.cast(tf.shape(x)[0],tf.float32)*x
x/tf.cast(tf.size(x),tf.float32)
tf.reduce_sum(x)/tf.cast(tf.reduce_prod(tf.shape(x)),tf.float32)
tf.cast(tf.minimum(tf.shape(x)[0],4),tf.float32)*x
x*float(x.shape[1])
tf.keras.losses.mse(x,x*2)
tf.keras.backend.mean(x)
tf.keras.ops.pad(x,((1,0),(0,0)))
tf.signal.frame(x[:,0],2,1)
tf.signal.fft(tf.cast(x,tf.complex64))
tf.histogram_fixed_width(x[:,0],[0.0,1.0],4)
tf.linalg.lstsq(tf.matmul(x,x,transpose_a=True)+tf.eye(3),tf.ones([3,1]))
tf.linalg.inv(tf.matmul(x,x,transpose_b=True)+tf.eye(tf.shape(x)[0]))
tf.linalg.cholesky(tf.matmul(x,x,transpose_b=True)+tf.eye(tf.shape(x)[0]))
tf.linalg.svd(x,compute_uv=False)
tf.math.confusion_matrix(tf.range(tf.shape(x)[0])%2,tf.range(tf.shape(x)[0])%2,2)
tf.nn.embedding_lookup(tf.ones([20,2]),tf.range(tf.shape(x)[0]))
tf.ensure_shape(x,[None,3])
tf.norm(x,axis=[0,1])
tf.constant(np.arange(60.0).reshape(20,3),tf.float32)[:tf.shape(x)[0]]
x[tf.shape(x)[0]-3:]
x[-(tf.shape(x)[0]-2):]
x[1:tf.shape(x)[0]-1:2]
x[:tf.shape(x)[0]//2]
tf.slice(tf.ones([20,3]),[0,0],[tf.shape(x)[0],-1])
tf.slice(tf.ones([20,3]),[tf.shape(x)[0],0],[2,-1])
tf.strided_slice(tf.ones([20,3]),[0,0],[tf.shape(x)[0],2])
x+tf.ones([20,3])[:tf.shape(x)[0]]
tf.linalg.band_part(tf.ones([20,20]),-1,0)[:tf.shape(x)[0],:tf.shape(x)[0]]
tf.linalg.diag(tf.ones([tf.shape(x)[0]]))
tf.linalg.set_diag(tf.matmul(x,x,transpose_b=True),x[:,0])
tf.image.extract_patches(x[None,:,:,None],[1,3,3,1],[1,1,1,1],[1,1,1,1],"SAME")
tf.signal.overlap_and_add(x,1)
tf.concat([x,tf.repeat(tf.nn.max_pool1d(x[None],2,2,"SAME")[0],2,axis=0)[:tf.shape(x)[0]]],1)
tf.reshape(x[:tf.shape(x)[0]//2*2],[2,-1])
tf.pad(x,[[0,20-tf.shape(x)[0]],[0,0]])
tf.image.resize(x[None,:,:,None],[tf.shape(x)[0]*2,6])
tf.sort(x,0)[tf.shape(x)[0]//2]
tf.sequence_mask(tf.range(4),tf.shape(x)[0])
tf.gather(x,tf.range(tf.shape(x)[0]-2))
tf.tensor_scatter_nd_update(x,[[0]],[[7.0,8.0,9.0]])
""".strip().split("\n")

# Layers, and their arguments.
LAYERS = [
    ('tf.keras.layers.Dense(2,kernel_initializer="ones")', "x"),
    ('tf.keras.layers.LSTM(2,kernel_initializer="ones",recurrent_initializer="zeros")', "x[None]"),
    (
        'tf.keras.layers.GRU(2,kernel_initializer="ones",recurrent_initializer="zeros",return_sequences=True,go_backwards=True)',
        "x[None]",
    ),
    (
        'tf.keras.layers.Bidirectional(tf.keras.layers.SimpleRNN(2,kernel_initializer="ones",recurrent_initializer="zeros"))',
        "x[None]",
    ),
    ("tf.keras.layers.LayerNormalization()", "x"),
    ("tf.keras.layers.BatchNormalization()", "x,training=True"),
    ("tf.keras.layers.Softmax()", "x,mask=x>0"),
    ("tf.keras.layers.ZeroPadding1D(2)", "x[None]"),
    ("tf.keras.layers.UpSampling1D(2)", "x[None]"),
    ("tf.keras.layers.Cropping1D(1)", "x[None]"),
    ('tf.keras.layers.AveragePooling1D(2,padding="same")', "x[None]"),
    ("tf.keras.layers.GlobalAveragePooling1D()", "x[None],mask=x[None,:,0]>0"),
    ("tf.keras.layers.Reshape((-1,1))", "x[None]"),
    ("tf.keras.layers.Flatten()", "x[:,:,None]"),
    ("tf.keras.layers.Permute((2,1))", "x[None]"),
    ("tf.keras.layers.RepeatVector(3)", "x"),
    ('tf.keras.layers.Embedding(9,2,embeddings_initializer="ones")', "tf.range(tf.shape(x)[0])%9"),
    ("tf.keras.layers.Dot(1)", "[x,x]"),
    ("tf.keras.layers.Attention()", "[x[None],x[None]]"),
    ("tf.keras.layers.AdditiveAttention(use_scale=False)", "[x[None],x[None]]"),
    (
        'tf.keras.layers.MultiHeadAttention(1,2,kernel_initializer="ones")',
        "x[None],x[None],use_causal_mask=True",
    ),
    ('tf.keras.layers.Conv1D(2,3,padding="causal",kernel_initializer="ones")', "x[None]"),
    (
        'tf.keras.layers.SeparableConv1D(2,3,padding="same",depthwise_initializer="ones",pointwise_initializer="ones")',
        "x[None]",
    ),
    (
        'tf.keras.layers.Conv1DTranspose(2,3,strides=2,padding="same",kernel_initializer="ones")',
        "x[None]",
    ),
    ("tf.keras.layers.Discretization([0.0,0.5])", "x"),
    ('tf.keras.layers.CategoryEncoding(4,output_mode="one_hot")', "tf.range(tf.shape(x)[0])%4"),
    (
        'tf.keras.layers.TimeDistributed(tf.keras.layers.Dense(2,kernel_initializer="ones"))',
        "x[None]",
    ),
]


def differentiate(function, x):
    """Return the value of a function, and the gradient of the sum of its squares."""
    with tf.GradientTape() as tape:
        tape.watch(x)
        value = function(x)
        loss = tf.reduce_sum(tf.cast(value, tf.float32) ** 2)
    gradient = tape.gradient(loss, x)
    return value, tf.zeros([]) if gradient is None else tf.convert_to_tensor(gradient)


# XLA or JAX needs the size: tf.function traces each size.
TRACED_BY_SIZE = """
tf.reduce_prod(x,0)
tf.math.cumprod(x,0)
tf.math.cumulative_logsumexp(x,0)
tf.nn.conv1d(x[None],tf.ones([3,3,2]),2,"SAME")
tf.searchsorted(tf.sort(x[:,0]),[0.1,0.5])
tf.math.segment_sum(x,tf.range(tf.shape(x)[0])//2)
""".strip().split("\n")


def check(function, max_traces=3):
    traces = []

    def trace(x):
        traces.append(x.shape)
        return differentiate(function, x)

    run = tf.function(trace, reduce_retracing=True)
    for size in (5, 7, 8, 11):
        x = tf.constant(np.random.RandomState(size).rand(size, 3).astype("float32") - 0.3)
        for result, expected in zip(run(x), differentiate(function, x), strict=True):
            assert result.dtype == expected.dtype and result.shape == expected.shape
            np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5)
    # One trace for the first size, and one or two for all sizes.
    assert len(traces) <= max_traces


@pytest.mark.nan_expected
@pytest.mark.parametrize("expression", FUNCTIONS)
def test_functions(expression):
    max_traces = 6 if expression in TRACED_BY_SIZE else 3
    check(eval(f"lambda x: {expression}", {"tf": tf, "np": np}), max_traces)


@pytest.mark.parametrize(("layer", "arguments"), LAYERS)
def test_layers(layer, arguments):
    layer = eval(layer)
    check(eval(f"lambda x: layer({arguments})", {"tf": tf, "layer": layer}))
