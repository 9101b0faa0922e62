"""Test `explain` and `visualize`: collectives, and the devices of each value."""

import builtins
import sys

import numpy as np
import pytest

import meshflow as tf
from meshflow.dtensor.drawing import draw
from meshflow.experimental import dtensor
from meshflow.experimental.dtensor import UNSHARDED, Layout
from meshflow.placement.collectives import parse_collective, parse_collectives, parse_device_groups

U = UNSHARDED
LAYERS = tf.keras.layers


@pytest.fixture
def mesh():
    return dtensor.create_mesh([("batch", 2), ("model", 2)])


@pytest.mark.parametrize(
    ("text", "groups"),
    [
        ("replica_groups={{0,2},{1,3}}", [[0, 2], [1, 3]]),
        ("replica_groups={}", [[0, 1, 2, 3]]),
        ("replica_groups=[2,2]<=[4]", [[0, 1], [2, 3]]),
        ("replica_groups=[2,2]<=[2,2]T(1,0)", [[0, 2], [1, 3]]),
        ("source_target_pairs={{0,1},{1,0}}", [[0, 1], [1, 0]]),
        ("replica_groups=mesh['a'=2,'b'=2] {'a'}", [[0, 2], [1, 3]]),
        ("replica_groups=mesh['a'=2,'b'=2], device_ids=([2,2]T(1,0)) {'a'}", [[0, 1], [2, 3]]),
        ("replica_groups=mesh['a'=4] {'a':(1)2}", [[0, 2], [1, 3]]),
        ("replica_groups=mesh['a'=4] {'a':(2)2}", [[0, 1], [2, 3]]),
        ("replica_groups=mesh['a'=2,'b'=2] {'a','b'}", [[0, 1, 2, 3]]),
    ],
)
def test_replica_groups_are_parsed_in_every_notation(text, groups):
    assert parse_device_groups(text, 4).tolist() == groups


# Names and attributes as XLA prints them: none of them describes a computation.
PROGRAM = """
%sum (a: f32[], b: f32[]) -> f32[] {
  ROOT %add = f32[] add(%a, %b)
}
%region_0.1 (p: (s32[], f32[8])) -> (s32[], f32[8]) {
  %all-reduce = f32[8]{0} all-reduce(%x), replica_groups=[2,2]<=[4], to_apply=%sum, metadata={op_name="jit(f)/while/body/psum"}
}
%region_1.2 (p: (s32[], f32[8])) -> pred[] {
  ROOT %less = pred[] compare(%i, %n)
}
%little (p: f32[2]) -> f32[2] {
  %all-reduce.1 = f32[2]{0} all-reduce(%x), replica_groups={{0,1},{2,3}}, to_apply=%sum
  ROOT %all-reduce.2 = f32[2]{0} all-reduce(%x), replica_groups={{0,1},{2,3}}, to_apply=%sum
}
%much (p: f32[10]) -> f32[10] {
  ROOT %all-reduce.3 = f32[10]{0} all-reduce(%x), replica_groups={{0,1},{2,3}}, to_apply=%sum
}
%nothing (p: f32[10]) -> f32[10] {
  ROOT %copy = f32[10]{0} copy(%p)
}
ENTRY %main (p: f32[8]) -> f32[8] {
  %loop = (s32[], f32[8]) while(%t), condition=%region_1.2, body=%region_0.1, backend_config={"known_trip_count":{"n":"5"}}
  %one = f32[2] conditional(%c, %y, %y), true_computation=%nothing, false_computation=%little
  %two = f32[10] conditional(%k, %y, %y, %y), branch_computations={%nothing, %much, %little}
  %gather = (bf16[4], bf16[16]) all-gather-start(%y), replica_groups=[1,4]<=[4], dimensions={0}
  %alone = f32[4] all-reduce(%y), replica_groups={{0},{1},{2},{3}}, to_apply=%sum
  %scatter = f32[4] reduce-scatter(%y), replica_groups={{0,2},{1,3}}, to_apply=%sum
  %exchange = (s8[4], s8[4]) all-to-all(%y, %z), replica_groups={{0,1},{2,3}}
  %move = (f32[6], f32[6], u32[], u32[]) collective-permute-start(%y), source_target_pairs={{0,2},{1,1}}
}
"""


def test_collectives_of_a_program():
    found = parse_collectives(PROGRAM, {"x": 2, "y": 2})
    rows = [(c.kind, c.bytes, c.sent, c.axes, c.group, c.times) for c in found]
    assert rows == [
        ("all-reduce", 32, 32, ("y",), 2, 5),
        ("all-reduce", 8, 8, ("y",), 2, 1),
        ("all-reduce", 8, 8, ("y",), 2, 1),
        ("all-reduce", 40, 40, ("y",), 2, 1),
        ("all-gather", 32, 24, ("x", "y"), 4, 1),
        ("reduce-scatter", 32, 16, ("x",), 2, 1),
        ("all-to-all", 8, 4, ("y",), 2, 1),
        ("collective-permute", 24, 24, ("x",), 2, 1),
    ]
    assert found[0].source == "while/body/psum"


def test_collectives_in_loops_and_branches_of_compiler_output(mesh):
    def inwards(x):
        """Test sums over the batch, which every device receives: 4 numbers."""
        return dtensor.relayout(tf.reduce_sum(x, 0), Layout.replicated(mesh, 1))

    @tf.function
    def loops(x):
        total = tf.zeros([4])
        for _ in tf.range(3):
            for _ in tf.range(7):
                total += inwards(x * (1.0 + total))
        return total

    @tf.function
    def branches(x, choice):
        return tf.switch_case(
            choice,
            [
                lambda: tf.zeros([4]),
                lambda: inwards(tf.sin(inwards(x) * x)),
                lambda: inwards(x),
            ],
        )

    @tf.function
    def either(x, yes):
        return tf.cond(yes, lambda: inwards(x), lambda: tf.zeros([4]))

    x = dtensor.copy_to_mesh(tf.ones([8, 4]), Layout(["batch", U], mesh))
    scalar = Layout.replicated(mesh, 0)
    found = dtensor.explain(loops, x)
    assert found.count("all-reduce", "batch") == 3 * 7
    assert found.bytes("all-reduce", "batch") == 3 * 7 * 16
    found = dtensor.explain(branches, x, dtensor.copy_to_mesh(1, scalar))
    assert (found.count(), found.bytes()) == (2, 2 * 16)
    found = dtensor.explain(either, x, dtensor.copy_to_mesh(True, scalar))
    assert (found.count(), found.bytes()) == (1, 16)


def mlp(*units):
    model = tf.keras.Sequential([tf.keras.Input((units[0],))])
    for number, unit in enumerate(units[1:]):
        model.add(LAYERS.Dense(unit, "relu", use_bias=False, name=f"layer_{number}"))
    return model


def test_data_parallel_step_sends_the_gradients_once():
    mesh = dtensor.create_mesh([("batch", 4)])
    with tf.keras.dtensor.experimental.LayoutMap(mesh=mesh).scope():
        model = mlp(16, 32, 8)
    model.compile("sgd", "mse")
    x, y = np.ones([8, 16], "float32"), np.ones([8, 8], "float32")
    found = dtensor.explain(model, x, y)
    gradients = 4 * (16 * 32 + 32 * 8)
    assert {c.kind for c in found.collectives} == {"all-reduce"}
    assert all(c.axes == ("batch",) for c in found.collectives)
    # Besides the gradients only the loss is summed.
    assert found.bytes() == gradients + 4
    # The ring's minimum: each device sends 2 (N - 1) / N of them.
    assert found.sent() == 2 * 3 / 4 * (gradients + 4)
    assert found.memory["arguments"] > gradients and "all-reduce" in str(found)
    # No training has happened.
    assert int(model.optimizer.iterations) == 0


def test_mirrored_step_sends_the_gradients_once():
    with tf.distribute.MirroredStrategy().scope():
        model = mlp(16, 32, 8)
        model.compile("sgd", "mse")
    found = dtensor.explain(model, np.ones([8, 16], "float32"), np.ones([8, 8], "float32"))
    # Besides the gradients some scalars: the loss, and how many examples it was of.
    assert 0 <= found.bytes() - 4 * (16 * 32 + 32 * 8) <= 32
    assert found.count() == 1
    assert {c.kind for c in found.collectives} == {"all-reduce"}


def test_tensor_parallel_block_sends_two_sums(mesh):
    blocks = 3
    weights = []
    for _ in range(blocks):
        weights.append(dtensor.DVariable(tf.ones([16, 32]), layout=Layout([U, "model"], mesh)))
        weights.append(dtensor.DVariable(tf.ones([32, 16]), layout=Layout(["model", U], mesh)))

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            h = x
            for inwards, outwards in zip(weights[::2], weights[1::2], strict=True):
                h = h + tf.matmul(tf.nn.relu(tf.matmul(h, inwards)), outwards)
            loss = tf.reduce_sum(h * h)
        return tape.gradient(loss, [x, *weights])

    x = dtensor.copy_to_mesh(tf.ones([8, 16]), Layout(["batch", U], mesh))
    found = dtensor.explain(step, x)
    sums = found.select("all-reduce", "model")
    assert found.select(axis="model") == sums
    # One of the activations forwards and one of their gradients backwards in each block.
    assert found.count("all-reduce", "model") == 2 * blocks
    assert {c.bytes for c in sums} == {4 * 4 * 16}
    # The gradients of weights are reduced over the batch, in the shards of each device.
    assert found.bytes(axis="batch") == blocks * 2 * 4 * 16 * 32 // 2


def test_explain_accepts_functions_and_names_unsupported_arguments(mesh):
    x = dtensor.copy_to_mesh(tf.ones([8, 4]), Layout(["batch", U], mesh))
    found = dtensor.explain(lambda x, axis: tf.reduce_sum(x, axis), x, axis=0)
    assert [(c.kind, c.bytes, c.axes) for c in found.collectives] == [
        ("all-reduce", 16, ("batch",))
    ]
    assert dtensor.explain(tf.reduce_sum, tf.ones([3])).count() == 0
    with pytest.raises(ValueError, match="is not compiled"):
        dtensor.explain(mlp(4, 2), tf.ones([2, 4]))
    model = mlp(4, 2)
    model.compile("sgd", "mse", run_eagerly=True)
    with pytest.raises(ValueError, match="runs eagerly"):
        dtensor.explain(model, tf.ones([2, 4]), tf.ones([2, 2]))


# ---- drawings ------------------------------------------------------------------------------


def test_drawings_of_tensors(mesh):
    x = dtensor.copy_to_mesh(tf.ones([4, 6]), Layout(["batch", "model"], mesh))
    text = draw(x).text
    assert "float32 (4, 6) layout ['batch', 'model']" in text
    rows = [[c.strip() for c in line.split("|")[1:-1]] for line in text.splitlines() if "|" in line]
    assert rows == [
        ["", "axis 1 [0:3]", "axis 1 [3:6]"],
        ["axis 0 [0:2]", "CPU:0", "CPU:1"],
        ["axis 0 [2:4]", "CPU:2", "CPU:3"],
    ]
    y = dtensor.copy_to_mesh(tf.ones([4, 6]), Layout([U, "model"], mesh))
    assert "| CPU:0, CPU:2 | CPU:1, CPU:3 |" in draw(y).text.replace("|  |", "|")
    assert "CPU:0-3" in draw(dtensor.copy_to_mesh(1.0, Layout([], mesh))).text
    assert "CPU:0" in draw(tf.ones([2])).text
    html = draw(x).html
    assert html.count("background:") == 4 and "<caption>" in html
    cube = dtensor.create_mesh([("a", 2), ("b", 2), ("c", 1)])
    z = dtensor.copy_to_mesh(tf.ones([2, 2, 3]), Layout(["a", "b", "c"], cube))
    assert len(draw(z).grids) == 1
    with pytest.raises(ValueError, match="expected a tensor, a variable or a model"):
        draw("x")


def test_drawing_of_a_model(mesh, capsys, monkeypatch):
    layouts = tf.keras.dtensor.experimental.LayoutMap(mesh=mesh)
    layouts["layer_0.kernel"] = Layout([U, "model"], mesh)
    with layouts.scope():
        model = mlp(4, 8, 2)
    for missing in (False, True):
        if missing:
            # Without rich it is plain text.
            for name in [n for n in sys.modules if n.split(".")[0] == "rich"]:
                monkeypatch.delitem(sys.modules, name)
            real = builtins.__import__

            def no_rich(name, *args, **kwargs):
                if name.split(".")[0] == "rich":
                    raise ImportError(name)
                return real(name, *args, **kwargs)

            monkeypatch.setattr(builtins, "__import__", no_rich)
        drawing = dtensor.visualize(model)
        shown = capsys.readouterr().out
        assert "2 weights on 4 CPU" in shown and "layer_0" in shown
        assert (drawing.text in shown) == missing
    assert repr(drawing) == "<Drawing of 1 tables; see .text and .html>"
    assert "(4, 4)" in drawing.text and "128 of 192" in drawing.text
    monkeypatch.undo()
    with pytest.raises(ValueError, match="not yet been created"):
        dtensor.visualize(tf.keras.Sequential())


def test_collectives_of_another_mesh_have_no_axes():
    line = "%a = f32[8]{0} all-reduce(f32[8]{0} %x), replica_groups={{0,1,2,3}}, to_apply=%sum"
    assert parse_collective(line, {"x": 4}).axes == ("x",)
    assert parse_collective(line, {"x": 2}).axes == ()
