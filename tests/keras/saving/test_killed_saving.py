"""Programs that are killed while they save a model or a backup leave the one before, or the new one."""

import pytest

import meshflow as tf
from killing import check_kills

pytestmark = pytest.mark.timeout(900)

MODEL = """
    import h5py

    def write(path, number):
        model = tf.keras.Sequential([tf.keras.layers.Dense(40, input_shape=(40,))])
        model.set_weights([np.full([40, 40], number), np.full([40], number)])
        begin()
        {save}
    """
BACKUP = """
    def write(path, number):
        model = tf.keras.Sequential([tf.keras.layers.Dense(40, input_shape=(40,))])
        model.compile(tf.keras.optimizers.SGD(0.0), "mse")

        class One(tf.keras.callbacks.Callback):
            def on_epoch_begin(self, epoch, logs=None):
                self.model.set_weights([np.full([40, 40], number), np.full([40], number)])

            def on_epoch_end(self, epoch, logs=None):
                begin()
                self.model.stop_training = True

        backup = tf.keras.callbacks.BackupAndRestore(path, delete_checkpoint=False)
        assert begin  # it is called by the callback
        model.fit(np.ones([2, 40]), np.ones([2, 40]), epochs=10_000, verbose=0, callbacks=[One(), backup])
    """


def same(weights):
    numbers = {float(n) for weight in weights for n in weight.reshape(-1)}
    assert len(numbers) == 1, f"of two moments: {numbers}"
    return numbers.pop()


@pytest.mark.parametrize("kind", ["keras", "h5", "tf"])
def test_models(kind, tmp_path):
    def read(path):
        return same(tf.keras.models.load_model(path).get_weights())

    program = MODEL.format(save=f"model.save(path, save_format={kind!r})")
    name = "target.keras" if kind == "keras" else "target"
    assert check_kills(program, tmp_path, read, name=name)[False]


@pytest.mark.parametrize("kind", ["h5", "tf"])
def test_weights(kind, tmp_path):
    def read(path):
        model = tf.keras.Sequential([tf.keras.layers.Dense(40, input_shape=(40,))])
        model.load_weights(path)
        return same(model.get_weights())

    program = MODEL.format(save=f"model.save_weights(path, save_format={kind!r})")
    assert check_kills(program, tmp_path, read)[False]


def test_backups(tmp_path):
    def read(path):
        stored = f"{path}/backup"
        names = [n for n, _ in tf.train.list_variables(stored) if "kernel" in n or "bias" in n]
        return same([tf.train.load_variable(stored, name) for name in names])

    assert check_kills(BACKUP, tmp_path, read)[False]
