"""Each operator on integers is compared with the same one on floats; numbers are those of TensorFlow's debugger."""

import csv
import io

import numpy as np
import pytest

import meshflow as tf

pytest.importorskip("ai_edge_litert", reason="needs the extra lite")

lite = tf.lite.experimental
KERNEL = np.asarray([-2, -1, 1, 2], np.float32).reshape(2, 2, 1, 1)


@pytest.fixture(scope="module")
def convolved():
    @tf.function(input_signature=[tf.TensorSpec([None, 3, 3, 1])])
    def convolved(x):
        return tf.tanh(tf.nn.relu(tf.nn.conv2d(x, KERNEL, 1, "SAME"))) + 1

    return convolved.get_concrete_function()


def _images():
    return ([np.arange(9, dtype=np.float32).reshape(1, 3, 3, 1) * i] for i in range(5))


def _converter(function, samples=_images):
    converter = tf.lite.TFLiteConverter.from_concrete_functions([function])
    converter.optimizations = [tf.lite.Optimize.DEFAULT]
    converter.representative_dataset = samples
    return converter


def _lines(debugger):
    file = io.StringIO()
    debugger.layer_statistics_dump(file)
    return list(csv.DictReader(file.getvalue().splitlines()))


EXPECTED = {
    False: (0.050998904, 0.007843441, 0.105881885, 0.004357292, 0.035729896),
    True: (0.03850026, 0.01673192, 0.10039272, 0.0027558778, 0.023704167),
}


@pytest.fixture(scope="module")
def alone():
    @tf.function(input_signature=[tf.TensorSpec([1, 3, 3, 1])])
    def alone(x):
        return tf.nn.relu(tf.nn.conv2d(x, KERNEL, 1, "SAME"))

    return alone.get_concrete_function()


@pytest.mark.parametrize("whole", [False, True], ids=["floats around", "integers"])
def test_errors_are_those_of_tensorflow(alone, whole):
    def correlated(floats, integers, scale, zero):
        numbers = (integers.astype(int) - zero) * scale
        return abs(floats - numbers).max() <= abs(floats).max() / 20

    options = lite.QuantizationDebugOptions(
        layer_debug_metrics={"l1": lambda d: np.mean(np.abs(d))},
        model_debug_metrics={"far": lambda floats, others: np.std(floats[0] - others[0])},
        layer_direct_compare_metrics={"near": correlated},
        fully_quantize=whole,
    )
    debugger = lite.QuantizationDebugger(
        converter=_converter(alone), debug_dataset=_images, debug_options=options
    )
    assert _lines(debugger) == []
    debugger.run()
    ((name, found),) = debugger.layer_statistics.items()
    keys = ("stddev", "mean_error", "max_abs_error", "mean_squared_error", "l1")
    np.testing.assert_allclose([found[k] for k in keys], EXPECTED[whole], atol=1e-5)
    assert found["num_elements"] == 9 and found["near"] == 1
    np.testing.assert_allclose(debugger.model_statistics["far"], 0.050998904, atol=1e-5)
    (line,) = _lines(debugger)
    assert name == f"NumericVerify/{line['tensor_name']}:{line['tensor_idx']}"
    assert (line["op_name"], line["zero_point"]) == ("CONV_2D", "-128")
    np.testing.assert_allclose(float(line["scale"]), 0.15686275, rtol=1e-6)
    # Models created earlier return the same.
    again = lite.QuantizationDebugger(
        quant_debug_model_content=debugger.get_debug_quantized_model(),
        float_model_content=debugger.float_model,
        debug_dataset=_images,
        debug_options=options,
    )
    again.run()
    assert again.layer_statistics == debugger.layer_statistics
    assert again.model_statistics == debugger.model_statistics


def test_operators_excluded_by_kind_and_name(convolved):
    converter = _converter(convolved)
    debugger = lite.QuantizationDebugger(converter=converter, debug_dataset=_images)
    debugger.run()
    lines = _lines(debugger)
    assert [line["op_name"] for line in lines] == ["CONV_2D", "TANH", "ADD"]
    debugger.options = lite.QuantizationDebugOptions(
        denylisted_ops=["TANH"], denylisted_nodes=[lines[0]["tensor_name"]]
    )
    assert debugger.layer_statistics is None
    debugger.run()
    assert [line["op_name"] for line in _lines(debugger)] == ["ADD"]
    mixed = tf.lite.Interpreter(model_content=debugger.get_nondebug_quantized_model())
    kinds = {d["name"].rpartition("/")[2] for d in mixed.get_tensor_details()}
    assert not any("Verify" in name for name in kinds)
    x = next(iter(_images()))[0]
    run = mixed.get_signature_runner()
    np.testing.assert_allclose(run(x=x)["output_0"], convolved(x).numpy(), atol=0.02)
    # The converter is as it was.
    debugger.options = lite.QuantizationDebugOptions()
    assert debugger.get_nondebug_quantized_model() == converter.convert()
    with pytest.warns(UserWarning, match="no operator of the model produces nothing"):
        debugger.options = lite.QuantizationDebugOptions(denylisted_nodes=["nothing"])


def test_undebuggable_models_name_the_reason(alone):
    def metric(differences):
        return 0.0

    with pytest.raises(ValueError, match=r"duplicate keys: \['a'\]"):
        lite.QuantizationDebugOptions({"a": metric}, {"b": metric}, {"a": metric})
    converter = tf.lite.TFLiteConverter.from_concrete_functions([alone])
    with pytest.raises(ValueError, match="must set optimizations"):
        lite.QuantizationDebugger(converter=converter)
    content = converter.convert()
    converter.optimizations = [tf.lite.Optimize.DEFAULT]
    with pytest.raises(ValueError, match="must set representative_dataset"):
        lite.QuantizationDebugger(converter=converter)
    with pytest.raises(ValueError, match="check if the quantized model is in debug mode"):
        lite.QuantizationDebugger(quant_debug_model_content=content)
    options = lite.QuantizationDebugOptions(denylisted_ops=["CONV_2D"])
    with pytest.raises(ValueError, match="in debug mode"):
        lite.QuantizationDebugger(converter=_converter(alone), debug_options=options)
    debugger = lite.QuantizationDebugger(
        converter=_converter(alone), debug_dataset=lambda: ([x, x] for (x,) in _images())
    )
    with pytest.raises(ValueError, match=r"inputs provided \(2\).*inputs to the model \(1\)"):
        debugger.run()
    made = debugger.get_debug_quantized_model()
    debugger = lite.QuantizationDebugger(quant_debug_model_content=made)
    with pytest.raises(TypeError, match="debug_dataset must be a function"):
        debugger.run()
    with pytest.raises(ValueError, match="No converter found"):
        debugger.get_nondebug_quantized_model()
