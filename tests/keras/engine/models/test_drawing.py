"""Test `model_to_dot` and `plot_model`: boxes, arrows, labels, and errors for missing packages."""

import pytest

import meshflow as tf

layers = tf.keras.layers
pytest.importorskip("pydot")


@pytest.fixture
def model():
    first, second = tf.keras.Input([4], name="first"), tf.keras.Input([4], name="second")
    shared = layers.Dense(3, activation="relu", name="shared", trainable=False)
    joined = layers.Concatenate(name="joined")([shared(first), shared(second)])
    inner = tf.keras.Sequential([layers.Dense(2, input_shape=[6], name="deep")], name="inner")
    return tf.keras.Model([first, second], inner(joined))


def drawn(model, **options):
    """Labels of the boxes, and arrows between them, also inside frames."""
    dot = tf.keras.utils.model_to_dot(model, **options)
    graphs = [dot, *dot.get_subgraphs()]
    labels = {
        n.get_name(): n.get_label().strip('"')
        for g in graphs
        for n in g.get_nodes()
        if n.get_name() != "node"
    }
    edges = [e for g in graphs for e in g.get_edges()]
    return labels, {(labels[e.get_source()], labels[e.get_destination()]) for e in edges}


def test_graphs(model):
    labels, arrows = drawn(model)
    assert set(labels.values()) == {
        *("first|InputLayer", "second|InputLayer", "shared|Dense"),
        *("joined|Concatenate", "inner|Sequential"),
    }
    assert arrows == {
        ("first|InputLayer", "shared|Dense"),
        ("second|InputLayer", "shared|Dense"),
        ("shared|Dense", "joined|Concatenate"),
        ("joined|Concatenate", "inner|Sequential"),
    }
    labels, arrows = drawn(model, layer_range=["joined", "inner"], show_layer_names=False)
    assert arrows == {("Concatenate", "Sequential")} and len(labels) == 2


def test_nested_models(model):
    labels, arrows = drawn(model, expand_nested=True)
    assert "inner|Sequential" not in labels.values()
    assert ("joined|Concatenate", "deep_input|InputLayer") in arrows
    assert ("deep_input|InputLayer", "deep|Dense") in arrows
    cluster = tf.keras.utils.model_to_dot(model.layers[-1], subgraph=True)
    assert cluster.get_name() == "cluster_inner"


def test_labels(model):
    labels, _ = drawn(model, show_shapes=True, show_dtype=True)
    shapes = "{input:|output:}|{{[(None, 3), (None, 3)]}|{(None, 6)}}"
    assert "{joined|Concatenate|float32}|" + shapes in labels.values()
    labels, _ = drawn(model, show_layer_activations=True, show_trainable=True)
    assert {"NT|shared|{Dense|relu}", "T|joined|Concatenate"} <= set(labels.values())
    wrapped = tf.keras.Sequential([layers.TimeDistributed(layers.Dense(1, name="d"), name="t")])
    wrapped.build([None, 2, 3])
    assert "t(d)|TimeDistributed(Dense)" in drawn(wrapped)[0].values()


def test_undrawable_models(model, monkeypatch):
    class Subclass(tf.keras.Model):
        def call(self, x):
            return x

    subclass = Subclass(name="secret")
    for draw in (tf.keras.utils.model_to_dot, tf.keras.utils.plot_model):
        with pytest.raises(ValueError, match="not yet been built"):
            draw(subclass)
    subclass(tf.ones([1, 2]))
    assert list(drawn(subclass)[0].values()) == ["secret"]
    with pytest.raises(ValueError, match="do not match"):
        tf.keras.utils.model_to_dot(model, layer_range=["a", "b"])
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ImportError, match="graphviz"):
        tf.keras.utils.plot_model(model, "never.png")
