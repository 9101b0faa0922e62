"""Expressions that are frequent in tutorials and notebooks."""

import numpy as np

import meshflow as tf
from meshflow import keras
from meshflow.keras import layers

(x_train, y_train), (x_test, y_test) = keras.datasets.mnist.load_data()
x_train = x_train[..., None].astype("float32") / 255
inp = layers.Input(shape=(5, 4))
out, h, c = layers.LSTM(3, return_state=True)(inp)
attn, scores = layers.MultiHeadAttention(2, 3)(inp, inp, return_attention_scores=True)
y = layers.concatenate([h, c])
y = layers.Lambda(lambda t: t * 2)(y)
width = y.shape[-1] * 2
base = keras.applications.ResNet50(include_top=False, weights=None)
for layer in base.layers[:100]:
    layer.trainable = False
m2 = keras.Model(inputs=base.input, outputs=base.layers[-1].output)


def my_loss(y_true, y_pred):
    return tf.reduce_mean(tf.square(y_true - y_pred))


class MyLayer(layers.Layer):
    def __init__(self, units=32, **kwargs):
        super().__init__(**kwargs)
        self.units = units
        self.dense = layers.Dense(units)

    def build(self, shape):
        self.w = self.add_weight(
            shape=(shape[-1], self.units), initializer="random_normal", trainable=True
        )

    def call(self, x, y=None, training=False):
        a = self.dense(x)[:, 0]
        return a, tf.matmul(x, self.w)

    def compute_output_shape(self, s):
        return s[0], self.units

    def compute_mask(self, x, mask=None):
        return mask


class Net(keras.Model):
    def __init__(self, name="net", **kw):
        super().__init__(name=name, **kw)
        self.blocks = [layers.Dense(3) for _ in range(2)]
        self.loss_tracker = keras.metrics.Mean(name="loss")
        self.drop = layers.Dropout(0.5)

    def call(self, x, training=False):
        for b in self.blocks:
            x = b(x)
        return self.drop(x, training=training)

    def train_step(self, batch):
        x, y = batch
        with tf.GradientTape() as tape:
            p = self(x, training=True)
            loss = self.compiled_loss(y, p, regularization_losses=self.losses)
        grads = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(grads, self.trainable_variables))
        self.compiled_metrics.update_state(y, p)
        self.loss_tracker.update_state(loss)
        return {m.name: m.result() for m in self.metrics}

    @property
    def metrics(self):
        return [self.loss_tracker]


class Print(keras.callbacks.Callback):
    def on_epoch_end(self, e, logs=None):
        print(e, (logs or {})["loss"], self.model.optimizer.lr)

    def on_train_batch_end(self, b, logs):
        if logs.get("loss") < 0.1:
            self.model.stop_training = True


class Init(keras.initializers.Initializer):
    def __call__(self, shape, dtype=None, **kwargs):
        return tf.random.normal(shape) / shape[0]


class Reg(keras.regularizers.Regularizer):
    def __call__(self, weights):
        return tf.reduce_sum(weights)


class F1(keras.metrics.Metric):
    def __init__(self, name="f1", **kwargs):
        super().__init__(name=name, **kwargs)
        self.p = keras.metrics.Precision()

    def update_state(self, labels, preds, sample_weight=None):
        self.p.update_state(labels, preds)

    def result(self):
        return self.p.result() * 2

    def reset_state(self):
        self.p.reset_state()


net = Net()
a, b = MyLayer(3)(inp)
net.compile(
    optimizer="adam", loss=[my_loss, "mse"], metrics={"a": "acc", "b": [F1()]}, run_eagerly=True
)
ds = (
    tf.data.Dataset.from_tensor_slices((x_train, y_train))
    .map(lambda x, y: (x, tf.one_hot(y, 10)))
    .batch(8)
)
for step, (xb, yb) in enumerate(ds):
    print(step, xb.shape[0], yb.numpy().argmax(axis=1), float(my_loss(yb, yb)))
hist = net.fit(
    ds,
    validation_data=(x_test, y_test),
    class_weight={0: 1.0, 1: 2.0},
    callbacks=[Print(), keras.callbacks.CSVLogger("a.csv")],
)
print(hist.history["val_loss"][-1] * 2, max(hist.history["loss"]))
loss, acc = net.evaluate(ds)
pred = net.predict(x_test)[0].argmax()
opt = keras.optimizers.Adam()
opt.learning_rate = 0.1
opt.learning_rate.assign(0.2)
keras.backend.set_value(opt.lr, 0.1)
print(opt.beta_1, opt.get_config()["beta_2"])
losses = []
total = 0.0
for i in tf.range(10):
    total += my_loss(i, i)
    losses.append(total)
    if tf.reduce_any(i > 3):
        continue
print(
    np.mean(losses),
    tf.constant("a").numpy().decode(),
    round(tf.constant(1.5).numpy(), 2),
    f"{tf.constant(1.0).numpy():.3f}",
)
with tf.GradientTape(persistent=True) as t:
    v = tf.Variable(3.0)
    z = v * v
dz = t.gradient(z, [v])[0]
d = t.gradient(z, {"v": v})["v"]
print(dz.numpy() + d)


@tf.function(input_signature=[tf.TensorSpec([None], tf.float32)])
def f(x):
    return x + 1


print(f.get_concrete_function(tf.TensorSpec([3])).graph, f(tf.ones(3)).shape)
gen = tf.data.Dataset.from_generator(
    lambda: iter([(1.0, 2)]), output_types=(tf.float32, tf.int32), output_shapes=((), ())
)
for p, q in gen.prefetch(tf.data.AUTOTUNE):
    print(p.numpy(), q + 1)
images = keras.utils.image_dataset_from_directory("x", image_size=(3, 3), batch_size=2)
print(images.class_names)
seq = keras.Sequential()
seq.add(layers.Dense(3, input_shape=(4,)))
seq.add(keras.layers.Activation("relu"))
w, bias = seq.layers[0].get_weights()
seq.layers[0].set_weights([w, bias])
keras.models.load_model("m", custom_objects={"MyLayer": MyLayer}, compile=False)
tf.keras.utils.plot_model(seq, show_shapes=True)
cfg = seq.get_config()
new = keras.Sequential.from_config(cfg)
new.summary()
ckpt = tf.train.Checkpoint(step=tf.Variable(1), optimizer=opt, net=net)
ckpt.step.assign_add(1)
int(ckpt.step)
image = tf.image.decode_jpeg(tf.io.read_file("a"), channels=3)
image = tf.image.resize(image, [224, 224]) / 255.0
image = image[tf.newaxis, ...]
vals, idx = tf.nn.top_k(image, k=3)
rng = tf.random.Generator.from_seed(1)
arr = tf.TensorArray(tf.float32, size=0, dynamic_size=True)
arr = arr.write(0, 1.0)
i, s = tf.while_loop(
    lambda i, s: i < 10, lambda i, s: (i + 1, s + i), (tf.constant(0), tf.constant(0))
)
emb = layers.Embedding(10, 4, mask_zero=True)
print(emb.compute_mask(tf.ones((1, 2))).shape, emb.embeddings[0])
model3 = keras.models.Model([inp], [y, a])
o1, o2 = model3(tf.ones((1, 5, 4)))
bn = layers.BatchNormalization()
xx = bn(inp, training=True)
stats = tf.keras.metrics.MeanSquaredError()(x_test, x_test).numpy()
tf.debugging.assert_equal(1, 1)
logits = seq(tf.ones((1, 4)))
prob = tf.nn.softmax(logits).numpy()[0, 1]
print(f"{prob:.2f} {stats:.1f}")
with tf.device("CPU:0"):
    q = tf.one_hot([1, 2], depth=3) @ tf.ones((3, 2))
strategy = tf.distribute.MirroredStrategy()
with strategy.scope():
    seq.compile(
        tf.keras.optimizers.SGD(learning_rate=lambda: 0.1), loss=tf.keras.losses.MeanSquaredError()
    )
r = strategy.run(lambda x: x * 2, args=(tf.constant(1.0),))
print(strategy.reduce(tf.distribute.ReduceOp.SUM, r, axis=None).numpy())
