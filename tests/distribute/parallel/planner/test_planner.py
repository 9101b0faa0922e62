"""Test plans: theoretical numbers, proposals, and reasons for rejected ones."""

import dataclasses

import numpy as np
import pytest

import meshflow as tf
from distribute.parallel.planner.models import LAYERS, gpt, tokens
from distribute.parallel.training import mesh
from meshflow.core.runtime.errors import OutOfMemoryError
from meshflow.core.variables.variable_creation import shapes_only
from meshflow.distribute.parallel.planner.auto_plan import _estimate_present_memory
from meshflow.distribute.parallel.planner.choices import PlanChoice, enumerate_choices, find_refusal
from meshflow.distribute.parallel.planner.costs import CostModel, StepCosts
from meshflow.distribute.parallel.planner.hardware import (
    Hardware,
    format_bytes,
    measure_hardware,
    parse_bytes,
)
from meshflow.distribute.parallel.planner.model_profile import profile_model
from meshflow.distribute.parallel.planner.plans import (
    Candidate,
    Plan,
    _rank_candidates,
    create_strategy,
    estimate_plan,
)
from meshflow.distribute.parallel.planner.trial import compile_trial

WIDTH, BATCH = 32, 64
# Four equal layers, and pairs with a wide first layer.
KERNEL, BIAS = 4 * WIDTH * WIDTH, 4 * WIDTH
ALL = 4 * (KERNEL + BIAS)


def dense(units):
    layers = [LAYERS.Dense(n, "tanh") for n in units]
    model = tf.keras.Sequential([tf.keras.Input([WIDTH]), *layers])
    model.compile("adam", "mse")
    return model


def profile_of(model, *batch):
    rows = (*batch, *[None] * (3 - len(batch)))
    return profile_model(model._make_loss_program(), rows, model.optimizer)


@pytest.fixture(scope="module")
def equal():
    rows = tf.TensorSpec([BATCH, WIDTH])
    return profile_of(dense([WIDTH] * 4), rows, rows)


@pytest.fixture(scope="module")
def words():
    model, batch = gpt(2, 64, 4, 16, 128), tokens(64, 16)
    with shapes_only():
        return model, batch, profile_of(model, *batch)


def costs(profile, devices=4):
    return CostModel(profile, Hardware(devices, "1TB"))


def part(n, devices=4):
    return n * (devices - 1) // devices


def test_model_statistics(equal):
    assert equal.parameters == ALL // 4 and equal.bytes == ALL
    assert sum(w.slots for w in equal.weights) == 2 * ALL
    assert equal.example == 2 * 4 * WIDTH and equal.batch == BATCH
    products = 2 * WIDTH * WIDTH
    assert 4 * products <= equal.work < 4.5 * products
    assert equal.uses == ((0, 1), (2, 3), (4, 5), (6, 7))
    # Tanh stores its result, the input of the next layer; edges are the outputs of layers.
    assert equal.split_weights((), 1).edges[:3] == (4 * WIDTH,) * 3
    assert all(4 * WIDTH <= kept <= 12 * WIDTH for kept in equal.split_weights((), 1).kept)


KEEP = {"keeps_weights": True}


@pytest.mark.parametrize(
    ("options", "sent", "weights", "slots"),
    [
        ({}, 2 * part(ALL), ALL, 2 * ALL),
        ({"micro_batches": 4}, 2 * part(ALL), ALL, 2 * ALL),
        ({"zero": 1, "micro_batches": 4}, 2 * part(ALL), ALL, ALL // 2),
        ({"zero": 2, "micro_batches": 4}, 5 * part(ALL), ALL, ALL // 2),
        ({"zero": 3, **KEEP}, 2 * part(ALL), ALL // 4, ALL // 2),
        ({"zero": 3, "micro_batches": 4, **KEEP}, 5 * part(ALL), ALL // 4, ALL // 2),
        # Biases stay, and the first kernel is not needed for gradients.
        ({"zero": 3}, part(2 * ALL + 3 * KERNEL), ALL // 4, ALL // 2),
        ({"zero": 3, "recompute": "layer"}, part(2 * ALL + 4 * KERNEL), ALL // 4, ALL // 2),
        (
            {"zero": 3, "recompute": "layer", "micro_batches": 4},
            part(5 * ALL + 7 * 4 * KERNEL),
            ALL // 4,
            ALL // 2,
        ),
    ],
    ids=str,
)
def test_formulas_of_states_in_parts(equal, options, sent, weights, slots):
    found = costs(equal).estimate(PlanChoice(4, **options))
    assert found.bytes == sent
    assert (found.held["weights"], found.held["slots"]) == (weights, slots)
    assert found.held["batch"] == 2 * 4 * BATCH * WIDTH // 4


@pytest.mark.parametrize(
    ("rows", "micro_batches", "compiled"),
    [(64, 4, 989892), (64, 2, 1024324), (64, 1, 1578140), (16, 1, 927132), (8, 1, 770972)],
)
def test_values_for_late_gradients_of_kernels_are_counted(rows, micro_batches, compiled):
    # With few rows, ZeRO 3 computes the gradients of a layer's kernels after those of the next layer's inputs.
    model, batch = gpt(2, 64, 4, 16, 128), tokens(rows, 16)
    with shapes_only():
        profile = profile_of(model, *batch)
    choice = PlanChoice(8, zero=3, recompute="layer", micro_batches=micro_batches)
    # The sizes are those of compiled steps.
    assert costs(profile, 8).estimate(choice).memory == pytest.approx(compiled, rel=0.09)


def test_formulas_of_a_pipeline(equal):
    found = costs(equal).estimate(PlanChoice(1, stage=4, micro_batches=8))
    edge = 4 * WIDTH * BATCH // 8
    assert found.sent["neighbours"] == (8 + 4 - 2) * 2 * edge
    assert found.bubble == 3 / 11
    assert found.held["weights"] == ALL // 4
    assert found.sent["weights"] == found.sent["gradients"] == 0
    # ZeRO exchanges the weights of a stage among its devices.
    halves = costs(equal).estimate(PlanChoice(2, stage=4, zero=3, micro_batches=4))
    assert halves.held["weights"] == ALL // 8
    assert halves.sent["weights"] == halves.sent["gradients"] == ALL // 8
    # Slots in the memory of the host, and their weights, have no place on a stage.
    moved = costs(equal).estimate(PlanChoice(1, stage=4, micro_batches=8, offload=("optimizer",)))
    assert moved.held["weights"] == ALL // 4
    assert moved.sent["weights"] == moved.sent["gradients"] == part(KERNEL + BIAS)


def test_frozen_weights_are_on_their_stages():
    model, rows = dense([WIDTH] * 4), tf.TensorSpec([BATCH, WIDTH])
    for layer in model.layers[:3]:
        layer.trainable = False
    model.compile("adam", "mse")
    whole, stages = (
        costs(profile_of(model, rows, rows)).estimate(choice).held["other"]
        for choice in (PlanChoice(4), PlanChoice(1, stage=4, micro_batches=8))
    )
    assert whole - stages == 2 * (KERNEL + BIAS)


def test_formulas_of_divided_products():
    rows = tf.TensorSpec([BATCH, WIDTH])
    profile = profile_of(dense([2 * WIDTH, WIDTH] * 2), rows, rows)
    names = ("hidden",)
    found = costs(profile).estimate(PlanChoice(2, model=2, names=names))
    # A sum of the outputs of each pair, and one of the gradient of the second pair's inputs.
    assert found.sent["products"] == 2 * part(3 * 4 * WIDTH * BATCH // 2, 2)
    split = profile.split_weights(names, 2)
    assert sum(split.work) < 0.6 * sum(profile.split_weights((), 1).work)
    assert found.held["weights"] == 4 * KERNEL + 2 * BIAS + 2 * BIAS


@pytest.mark.parametrize(
    ("span", "inner", "link"),
    [(8, 1, 450), (16, 1, 400), (16, 2, 200), (64, 8, 50), (16, None, 50)],
)
def test_links_of_nodes(span, inner, link):
    """Test that rings leave a node by the links of all participating devices."""
    assert Hardware.from_kind("h100", 64).get_link(span, inner) == link * 1e9
    assert Hardware.from_kind("v5p", 64).get_link(span, inner) == 180e9


def test_half_a_description_of_nodes_is_refused():
    with pytest.raises(ValueError, match="node and node_link together"):
        Hardware(8, "1GB", node=4)


def test_experts_over_some_of_the_devices_of_a_batch():
    model, batch = gpt(2, 64, 4, 16, 128, 8), tokens(64, 16)
    with shapes_only():
        profile = profile_of(model, *batch)
    found = {c.experts for c in enumerate_choices(profile, 32) if c.data == 32 and c.model == 1}
    assert found == {0, 8}
    choice = PlanChoice(32, experts=8)
    assert choice.mesh == {"data": 4, "expert": 8}
    assert choice.rules == "batch:data+expert, experts:expert"
    sizes = [w.bytes for w in profile.weights if w.find_named_axis(("experts",)) is not None]
    one, copies = (costs(profile, n).estimate(PlanChoice(n, experts=8)) for n in (8, 32))
    assert one.held["weights"] == copies.held["weights"]
    rest = profile.bytes - sum(sizes)
    assert one.sent["gradients"] == 2 * part(rest, 8)
    assert copies.sent["gradients"] == pytest.approx(2 * part(rest, 32) + 2 * part(sum(sizes) // 8))


def test_experts_are_split_together_with_their_hidden_units_and_over_stages():
    model, batch = gpt(2, 64, 4, 16, 128, 8), tokens(64, 16)
    with shapes_only():
        profile = profile_of(model, *batch)
    found = {(c.data, c.model, c.stage, c.experts) for c in enumerate_choices(profile, 8)}
    assert {(4, 2, 1, 4), (4, 1, 2, 4), (2, 2, 2, 2), (8, 1, 1, 8)} <= found
    choice = PlanChoice(4, 2, names=("heads", "hidden", "vocab"), experts=4)
    assert choice.rules == "batch:data, heads:model, hidden:model, vocab:model, experts:data"
    experts = [w for w in profile.weights if w.find_named_axis(["experts"]) is not None]
    apart, both = (costs(profile, 8).get_sizes(c).own for c in (PlanChoice(4, experts=4), choice))
    last = sum(w.bytes for w in experts if "hidden" not in w.dims[-1] and len(w.shape) == 2)
    assert apart == sum(w.bytes for w in experts) // 4
    assert both == (sum(w.bytes for w in experts) - last) // 8 + last // 4
    # A group of 16 examples of 16 tokens, with k = 2 and a capacity of 1.25; traced groups have two examples.
    (layer,) = profile.experts
    assert layer.count_slot_bytes(64, 4, 1) == 8 * 80 * 4 * 64
    # All devices have slots of the same number of tokens, wherever their experts are.
    sums = (
        costs(profile, 8).estimate(dataclasses.replace(choice, experts=n)).sent["products"]
        for n in (0, 4)
    )
    assert len({*sums}) == 1


def test_shared_weights_have_a_term_for_each_use():
    inputs = [tf.keras.Input([WIDTH]) for _ in range(2)]
    tower = LAYERS.Dense(WIDTH, "tanh", kernel_regularizer="l2")
    model = tf.keras.Model(inputs, LAYERS.Dense(1)(tower(inputs[0]) - tower(inputs[1])))
    model.compile("adam", "mse")
    rows = tf.TensorSpec([BATCH, WIDTH])
    profile = profile_of(model, [rows, rows], tf.TensorSpec([BATCH, 1]))
    assert [reads.terms for reads in profile.reads] == [2, 2, 1, 1]
    once = 4 * (WIDTH + 1)
    plain, zero, released = (costs(profile).estimate(PlanChoice(4, zero=n)).sent for n in (0, 1, 3))
    assert plain["gradients"] == 2 * part(2 * (KERNEL + BIAS) + once)
    # Devices add both terms before a reduce-scatter; the last bias has one element.
    assert zero["gradients"] == part(KERNEL + BIAS + 4 * WIDTH) + 2 * part(4)
    # Each use of the layer gathers the kernel for its forward and its backward pass, and scatters its gradient.
    assert released["gradients"] == zero["gradients"] + part(KERNEL)


def test_the_gradient_of_an_unsplit_input_is_gathered():
    inputs = tf.keras.Input([WIDTH])
    x = LAYERS.Dense(WIDTH, "tanh")(inputs)
    model = tf.keras.Model(inputs, LAYERS.Dense(8)(x))
    model.compile("adam", "mse")
    profile = profile_of(model, tf.TensorSpec([BATCH, WIDTH]), tf.TensorSpec([BATCH, 8]))
    sums = profile.split_weights(("hidden",), 2).total
    # The kernel of 32 x 8 is split along the inputs. A gather sends half of the bytes of a sum.
    assert (sums.forward, sums.backward) == (4 * 8, 4 * WIDTH // 2)


def test_recomputation_repeats_a_sum_that_its_layer_normalizes():
    class Block(LAYERS.Layer):
        def __init__(self, is_normalized_last):
            super().__init__()
            self.up, self.down = LAYERS.Dense(4 * WIDTH, "relu"), LAYERS.Dense(WIDTH)
            self.norm, self.is_last = LAYERS.LayerNormalization(), is_normalized_last

        def call(self, x):
            if self.is_last:
                return self.norm(x + self.down(self.up(x)))
            return x + self.down(self.up(self.norm(x)))

    for is_last in (False, True):
        model = tf.keras.Sequential([tf.keras.Input([WIDTH]), Block(is_last), Block(is_last)])
        model.compile("adam", "mse")
        rows = tf.TensorSpec([BATCH, WIDTH])
        sums = profile_of(model, rows, rows).split_weights(("hidden",), 2).total
        assert sums.recomputed == 2 * 4 * WIDTH * is_last


def test_two_products_of_one_input_reduce_its_gradient_twice():
    inputs = tf.keras.Input([WIDTH])
    y = LAYERS.Dense(WIDTH)(inputs)
    gate = LAYERS.Dense(4 * WIDTH, "silu")(y) * LAYERS.Dense(4 * WIDTH)(y)
    model = tf.keras.Model(inputs, LAYERS.Dense(WIDTH)(gate))
    model.compile("adam", "mse")
    rows = tf.TensorSpec([BATCH, WIDTH])
    sums = profile_of(model, rows, rows).split_weights(("hidden",), 2).total
    assert (sums.forward, sums.backward) == (4 * WIDTH, 2 * 4 * WIDTH)


def test_a_language_model_in_parts(words):
    _, _, profile = words
    sums = profile.split_weights(("heads", "hidden", "vocab"), 4).total
    row = 4 * 16 * 64
    # The embedding's rows and two sums for each block; behind them one for queries, keys and values together, one for
    # the wide product, and one for the scores of words.
    assert sums.forward == sums.backward == 5 * row
    assert sums.each == 9 * row
    assert sums.recomputed == 2 * row


def test_refused_plans_are_never_proposed(words):
    _, _, profile = words
    plan = estimate_plan(profile, Hardware(4, "1TB"))
    kinds = {}
    for c in plan.candidates:
        options = c.choice.options
        kinds.setdefault((*c.choice.mesh, *options, options.get("recompute")), c.choice)
    assert len(kinds) > 20
    for choice in kinds.values():
        strategy = create_strategy(choice)
        taken = strategy.options.get_non_defaults()
        for name, option in options_of(choice).items():
            given = [kind for kind, _ in taken[name]] if name == "offload" else taken[name]
            assert sorted(given) == sorted(option) if name == "offload" else given == option
    refused = [c for c in enumerate_choices(profile, 4) if find_refusal(c, profile) is not None]
    assert len(refused) + len(plan.candidates) == len(list(enumerate_choices(profile, 4)))
    assert len(refused) == len(plan.dropped) == sum(int(s.split(":")[0]) for s in plan.reasons())


def options_of(choice):
    found = dict(choice.options)
    found.pop("pipeline", None)
    return found


def test_compiled_memory_and_bytes_equal_the_plan(words):
    model, batch, profile = words
    with shapes_only():
        for choice in (
            PlanChoice(4, zero=1),
            PlanChoice(4, zero=3),
            PlanChoice(4, zero=3, recompute="layer", micro_batches=4),
            PlanChoice(2, model=2, zero=1, names=("heads", "hidden", "vocab")),
        ):
            estimate, trial = (
                costs(profile).estimate(choice),
                compile_trial(model, batch, create_strategy(choice)),
            )
            assert estimate.memory == pytest.approx(trial.memory, rel=0.15), choice
            assert estimate.bytes == pytest.approx(trial.sent, rel=0.03), choice
    assert all(v.layout is None and v.has_no_value for v in model.trainable_variables)


def test_a_model_of_1_4_billion_parameters_on_eight_devices():
    model, batch = gpt(24, 2048, 16, 1024, 50304), tokens(64, 1024)
    with shapes_only():
        plan = tf.distribute.plan(model, *batch, hardware=Hardware(8, "16GB"))
    assert plan.profile.parameters == 1_414_698_112
    assert all(v.has_no_value for v in model.optimizer.variables if v.ndim)
    # Copies with Adam's two slots need 17 GB.
    assert all(c.choice.devices == 8 and c.memory <= 16e9 for c in plan.candidates)
    assert not any(c.choice.options in ({}, {"micro_batches": 8}) for c in plan.candidates)
    assert any("do not fit" in line for line in plan.reasons())
    # The lower bound of computation: six operations per parameter and token, divided evenly, at
    # 1e14 per second.
    least = 6 * plan.profile.parameters * 64 * 1024 / 8 / 1e14
    assert least < plan.best.estimate_time(plan.hardware) < 2 * least
    assert plan.lines[1].startswith("strategy = tf.distribute.MeshStrategy(mesh, rules=")
    with pytest.raises(tf.errors.FailedPreconditionError, match="has no value"):
        model.get_weights()


class Scaled(tf.keras.Sequential):
    """Let Keras compute gradients."""

    def train_step(self, data):
        x, y = data
        return super().train_step((2.0 * x, y))


class Own(tf.keras.Sequential):
    """Compute them itself."""

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x, y, self(x, training=True))
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        return {"loss": loss}


class Failing(Own):
    """Need values for its gradients."""

    def train_step(self, data):
        return super().train_step([v.numpy() for v in data])


class Twice(Own):
    """Make two updates, the second of which depends on the first."""

    def train_step(self, data):
        super().train_step(data)
        return super().train_step(data)


@pytest.mark.parametrize(
    ("kind", "own", "loops"),
    [(Scaled, False, 0), (Own, True, 1), (Twice, True, 2), (Failing, True, 0)],
)
def test_custom_training_steps(kind, own, loops):
    """Test that steps that compute gradients get no options without effect on them."""
    model = kind([tf.keras.Input([4]), LAYERS.Dense(8), LAYERS.Dense(4)])
    model.compile("adam", "mse")
    before = model.get_weights()
    rows = tf.TensorSpec([8, 4])
    told = []
    found = tf.distribute.plan(model, rows, rows, hardware=Hardware(4, "1GB"), progress=told.append)
    assert found.profile.own_step is own
    choices = [c.choice for c in found.candidates]
    assert found.profile.step_loops == loops
    needing = [c for c in choices if c.stage > 1 or (c.micro_batches > 1 and not loops)]
    assert bool(own and loops) == (own and any(c.micro_batches > 1 for c in choices))
    assert {(c.zero, c.recompute) for c in choices} >= {(1, None), (3, "layer")}
    said = [line for line in found.reasons() if "computes gradients itself" in line]
    assert (not needing, len(said)) == (own, int(own))
    assert told == [f"Reading {model.name}", "Estimating choices for 4 devices"]
    np.testing.assert_array_equal(before[0], model.get_weights()[0])
    if own:
        with found.strategy().scope():
            model = kind([tf.keras.Input([4]), LAYERS.Dense(8), LAYERS.Dense(4)])
            model.compile("adam", "mse", run_eagerly=kind is Failing)
        model.train_on_batch(np.ones([8, 4], "float32"), np.ones([8, 4], "float32"))


def test_planning_restores_models_of_strategies():
    """Test that layouts and products of another strategy are ignored and restored."""
    strategy = create_strategy(
        PlanChoice(2, 2, zero=1, sequence="split", names=("heads", "hidden"))
    )
    with strategy.scope():
        model, batch = gpt(1, 16, 2, 8, 32), tokens(8, 8)
        first = model.layers[1].embeddings
        before = first._value, first.layout
        with shapes_only():
            plan = tf.distribute.plan(
                model, *batch, hardware=Hardware(4, "1GB"), objective="bytes", compiled=1
            )
        assert plan.best.trial is not None
        assert plan.best.bytes == pytest.approx(plan.best.estimate.bytes, rel=0.03)
    assert (first._value, first.layout) == before and first._distribute_strategy is strategy
    assert model.distribute_strategy is strategy


def test_no_plan_fits(words):
    _, _, profile = words
    with pytest.raises(tf.errors.ResourceExhaustedError) as caught:
        estimate_plan(profile, Hardware(4, "200KB"))
    text = str(caught.value)
    assert "too much" in text and "4 devices of 200 kB" in text and "devices would do: data" in text
    with pytest.raises(tf.errors.ResourceExhaustedError, match="take a smaller batch"):
        estimate_plan(profile, Hardware(4, "1KB"))


def candidate(seconds, memory, sent):
    estimate = StepCosts({"weights": memory}, {"weights": sent}, {"compute": seconds})
    return Candidate(PlanChoice(1), estimate)


@pytest.mark.parametrize(
    ("others", "best"),
    [
        ([(1.005, 50, 100)], 1),  # A tie: less memory is better.
        ([(1.005, 95, 100)], 0),
        ([(1.02, 50, 100)], 0),
        ([(1.2, 200, 33)], 1),  # The gain is less than the error, at three times the bytes.
        ([(1.2, 200, 34)], 0),
        ([(1.3, 200, 1)], 0),
        ([(1.1, 100, 30), (1.2, 100, 9)], 2),
    ],
)
def test_choice_of_the_best_candidate(others, best):
    candidates = [candidate(1.0, 100, 100), *(candidate(*other) for other in others)]
    ranked = _rank_candidates(candidates, Hardware(1, "1GB"), "time")
    assert ranked[0] is candidates[best] and len(ranked) == len(candidates)


def test_margins_of_memory(equal):
    needed = min(c.memory for c in estimate_plan(equal, Hardware(4, "1GB")).candidates)
    assert estimate_plan(equal, Hardware(4, needed, margin=0)).best.memory == needed
    assert estimate_plan(equal, Hardware(4, 1.2 * needed)).best.memory <= 1.08 * needed
    with pytest.raises(tf.errors.ResourceExhaustedError, match="too much with a margin of 10%"):
        estimate_plan(equal, Hardware(4, 1.05 * needed))
    assert Hardware(4, "1GB", margin="25%").usable_memory == 75 * 10**7
    for margin in ("100%", "a bit", -0.1):
        with pytest.raises(ValueError, match="margin must be a part"):
            Hardware(4, "1GB", margin=margin)


def test_precision_is_a_choice():
    rows, model = tf.TensorSpec([BATCH, WIDTH]), dense([WIDTH] * 4)
    hardware = Hardware(4, "1GB", products=1e9, bfloat16_products=4e9, wait=0)
    policies = ["float32", "mixed_bfloat16"]
    both = tf.distribute.plan(model, rows, rows, hardware=hardware, precisions=policies)
    assert {c.choice.precision for c in both.candidates} == {*policies}
    assert both.best.choice.precision == "mixed_bfloat16" and len(both.lines) == 3
    assert both.lines[0] == 'tf.keras.mixed_precision.set_global_policy("mixed_bfloat16")'
    activations = {
        c.choice.precision: c.estimate.held["activations"]
        for c in both.candidates
        if c.choice.options == {} and c.choice.mesh == {"data": 4}
    }
    # Casts of inputs are residuals, too; sums and the loss are float32.
    assert activations["mixed_bfloat16"] < 0.8 * activations["float32"]
    own = tf.distribute.plan(model, rows, rows, hardware=hardware, margin="0%")
    assert own.best.choice.precision is None and own.hardware.margin == 0
    assert all(layer.compute_dtype == "float32" for layer in model.layers)


def test_speeds_are_measured():
    found = measure_hardware(64, "1GB", "5%")
    assert (found.devices, found.margin) == (64, 0.05)
    default = Hardware(64, "1GB")
    for name in ("products", "bfloat16_products", "link", "host", "wait"):
        assert getattr(found, name) > 0 and getattr(found, name) != getattr(default, name)


class Pairs(LAYERS.Layer):
    """Make a table of all pairs of features."""

    def call(self, x):
        return tf.reduce_sum(tf.tanh(x[:, :, None] * x[:, None, :]), 1)


@pytest.mark.parametrize(
    ("features", "text"), [(4_000_000, "No plan holds"), (None, "A plan that")]
)
def test_fit_names_a_plan_after_it_ran_out_of_memory(features, text, monkeypatch):
    layers = [LAYERS.Dense(features or 64), *[Pairs()] * bool(features), LAYERS.Dense(1)]
    model = tf.keras.Sequential([tf.keras.Input([1]), *layers])
    model.compile("sgd", "mse")
    x = np.zeros([8, 1], "float32")
    if not features:
        model.train_on_batch(x, x)

        def fail(batches):
            raise OutOfMemoryError("train_step: 1 TB is too much.")

        monkeypatch.setattr(model, "_make_runner", lambda kind: fail)
    with pytest.raises(tf.errors.ResourceExhaustedError, match=text) as caught:
        model.fit(x, x, batch_size=8, verbose=0)
    assert ("MeshStrategy(mesh, " in str(caught.value)) is (features is None)


@pytest.mark.parametrize(
    ("sizes", "rules", "options", "choice"),
    [
        ({"dp": 4}, "batch:dp", {"zero": 1, "compress": "int8"}, "data 4, zero=1"),
        ({"node": 2, "dp": 2}, "batch:node+dp", {"zero": 3, "zero_over": "dp"}, "data 4, zero=3"),
        ({"pp": 2, "dp": 2}, "batch:dp", {"pipeline": "pp"}, 'stage 2 x data 2, pipeline="stage"'),
    ],
)
def test_present_memory_with_other_names_and_options(sizes, rules, options, choice):
    rows, model = tf.TensorSpec([BATCH, WIDTH]), dense([WIDTH] * 4)
    found = tf.distribute.plan(model, rows, rows, hardware=Hardware(4, "1GB"))
    strategy = tf.distribute.MeshStrategy(mesh(**sizes), rules, **options)
    (memory,) = (c.memory for c in found.candidates if str(c.choice) == choice)
    assert _estimate_present_memory(found, strategy) == memory
    (memory,) = (c.memory for c in found.candidates if str(c.choice) == "data 4")
    assert _estimate_present_memory(found, tf.distribute.MirroredStrategy()) == memory


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("80GB", 80 * 10**9),
        ("16GiB", 2**34),
        ("1.5 TB", 15 * 10**11),
        (4096, 4096),
        ("4mb", 4_000_000),
    ],
)
def test_units_of_memory(text, size):
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["80 Gigs", "GB", "-3GB", "0GB", "1e9 B", None])
def test_unknown_units_of_memory(text):
    with pytest.raises(ValueError, match="such as 80GB"):
        parse_bytes(text)


def test_bad_hardware_and_objectives(equal):
    assert [format_bytes(n) for n in (0, 999, 1000, 15_240_000)] == [
        "0 B",
        "999 B",
        "1 kB",
        "15.2 MB",
    ]
    with pytest.raises(ValueError, match="devices must be"):
        Hardware(0, "1GB")
    with pytest.raises(ValueError, match=r"link must be a positive number .* got 'fast'"):
        Hardware(2, "1GB", link="fast")
    with pytest.raises(ValueError, match="link must be"):
        Hardware(2, "1GB", link=0.0)
    with pytest.raises(ValueError, match="wait must be"):
        Hardware(2, "1GB", wait=-1.0)
    with pytest.raises(ValueError, match="objective must be"):
        estimate_plan(equal, Hardware(4, "1GB"), "beauty")
    model, rows = dense([4]), tf.TensorSpec([8, 4])
    hardware = Hardware(64, "1GB")
    with pytest.raises(ValueError, match=r"objective must be one of .* got .beauty"):
        tf.distribute.plan(model, rows, rows, hardware=hardware, objective="beauty")
    with pytest.raises(ValueError, match="compiled must be"):
        tf.distribute.plan(model, rows, rows, hardware=hardware, compiled=-1)
    with pytest.raises(ValueError, match="A plan for 64 devices: there are 4 here"):
        tf.distribute.plan(model, rows, rows, hardware=hardware, compiled=1)
    with pytest.raises(ValueError, match=r"must have known sizes, got the shapes \[\(None, 4\)\]"):
        tf.distribute.plan(model, rows, tf.TensorSpec([None, 4]), hardware=hardware)
    with pytest.raises(ValueError, match="not compiled"):
        tf.distribute.plan(tf.keras.Sequential(), tf.TensorSpec([4, 2]), memory="1GB")
    own = tf.keras.Sequential([tf.keras.Input([4]), LAYERS.Dense(4)], name="own")
    own.compile("sgd")
    with pytest.raises(ValueError, match="own was compiled without a loss, and what a train_step"):
        tf.distribute.plan(own, rows, rows, hardware=hardware)
    with pytest.raises(ValueError, match="pass a batch"):
        tf.distribute.plan(dense([4]), devices=2, hardware=None, memory="1GB")
    with pytest.raises(ValueError, match="there are 4 here"):
        create_strategy(PlanChoice(64))
    with pytest.raises(ValueError, match="only hardware= can be passed with it"):
        tf.distribute.MeshStrategy(plan="auto", zero=3)
    with pytest.raises(ValueError, match='hardware= is for plan="auto"'):
        tf.distribute.MeshStrategy(hardware=Hardware(2, "1GB"))


def test_models_that_are_not_all_on_devices():
    layers = tf.keras.layers
    words = layers.TextVectorization(vocabulary=["a", "b"], output_sequence_length=4, name="words")
    inputs = [tf.keras.Input([], dtype="string"), words, layers.Embedding(4, 8), layers.Flatten()]
    model = tf.keras.Sequential([*inputs, layers.Dense(1)])
    model.compile("sgd", "mse")
    batch = tf.TensorSpec([8], "string"), tf.TensorSpec([8, 1])
    with pytest.raises(ValueError, match="its layer 'words' runs on the host"):
        tf.distribute.plan(model, *batch, hardware=Hardware(2, "1GB"))


def test_models_of_replicas():
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    rows, hardware = tf.TensorSpec([8, 4]), Hardware(2, "1GB")

    def make():
        with strategy.scope():
            layers = [tf.keras.layers.Dense(4), tf.keras.layers.BatchNormalization()]
            model = tf.keras.Sequential([tf.keras.Input([4]), *layers])
            model.compile("sgd", "mse")
        return model

    with pytest.raises(ValueError, match=r"of which each has its own .*moving_mean"):
        tf.distribute.plan(make(), rows, rows, hardware=hardware)
    with tf.distribute.shapes_only():
        found = tf.distribute.plan(make(), rows, rows, hardware=hardware)
    assert found.profile.parameters == 4 * 4 + 4 + 2 * 4


def test_models_of_replicas_are_trained_after_planning():
    x = np.ones([8, 4], "float32")
    with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
        model = tf.keras.Sequential([tf.keras.Input([4]), LAYERS.Dense(4)])
        model.compile("sgd", "mse")
    losses = []
    for _ in range(2):
        losses.append(model.train_on_batch(x, x))
        found = tf.distribute.plan(model, x, x, hardware=Hardware(2, "1GB"))
        assert found.profile.parameters == 4 * 4 + 4
    assert losses[1] < losses[0]


def test_strategy_that_plans_at_the_first_step(rng):
    """Test that the curve equals one device; every choice is made at the first step, which moves
    the weights."""
    x = rng.normal(size=(32, 16)).astype("float32")
    y = rng.normal(size=(32, 8)).astype("float32")

    def trained(strategy=None):
        tf.keras.backend.reset_uids()
        tf.keras.utils.set_random_seed(2)

        def make():
            layers = [LAYERS.Dense(32, "tanh"), LAYERS.Dropout(0.0), LAYERS.Dense(8)]
            model = tf.keras.Sequential([tf.keras.Input([16]), *layers])
            model.compile(tf.keras.optimizers.Adam(1e-2), "mse", metrics=["mae"])
            return model

        if strategy is None:
            model = make()
        else:
            with strategy.scope():
                model = make()
        return model, model.fit(x, y, batch_size=16, epochs=2, shuffle=False, verbose=0).history

    _, expected = trained()
    weights = 4 * (16 * 32 + 32 + 32 * 8 + 8)
    # Less memory than full copies of weights and slots need: something must be divided.
    strategy = tf.distribute.MeshStrategy(
        plan="auto", hardware=Hardware(4, int(2.6 * weights), link=1e6, products=1e9, margin=0)
    )
    model, history = trained(strategy)
    for name, values in expected.items():
        np.testing.assert_allclose(history[name], values, rtol=1e-5)
    taken = strategy.plan.best
    assert (
        taken.memory <= 2.6 * weights
        and sum(c.trial is not None for c in strategy.plan.candidates) == 3
    )
    assert (
        strategy.options.get_non_defaults().keys() & {"zero", "pipeline"}
        or "model" in strategy.mesh.dim_names
    )
    assert model.layers[0].kernel.layout.mesh == strategy.mesh
    assert strategy.mesh.size == 4


def test_recomputation_and_zero3_hold_no_gradients_of_tables(words, monkeypatch):
    model, table = costs(words[2], 8), 4 * 128 * 64
    options = {"zero": 1}, {"zero": 1, "recompute": "layer"}, {"zero": 3}
    memory = lambda: [model.estimate(PlanChoice(8, **o)).memory for o in options]
    known = memory()
    monkeypatch.setattr(model, "_compute_table_gradients", lambda choice: 2 * table)
    assert np.subtract(memory(), known).tolist() == [table, 0, 0]


def test_scripts_name_batch_normalization_in_micro_batches():
    with shapes_only():
        layers = [LAYERS.Dense(4), LAYERS.BatchNormalization(name="norm")]
        model = tf.keras.Sequential([tf.keras.Input([4]), *layers])
        model.compile("sgd", "mse")
        rows = tf.TensorSpec([8, 4])
        profile = profile_of(model, rows, rows)
    choice = PlanChoice(2, zero=3, micro_batches=2, keeps_weights=True)
    hardware = Hardware(2, "1GB")
    found = Plan(profile, hardware, "time", (Candidate(choice, None),), ())
    assert found.lines[1].endswith("zero=3, max_live_parameters=10**15, micro_batches=2)")
    assert found.lines[2] == "# Batch normalization (norm) uses statistics of each micro-batch."
    whole = dataclasses.replace(choice, micro_batches=1)
    found = dataclasses.replace(found, candidates=(Candidate(whole, None),))
    assert len(found.lines) == 2


def test_normalized_values_are_not_stored():
    layers = tf.keras.layers
    convolve = lambda: layers.Conv2D(8, 3, padding="same")
    with shapes_only():
        inputs = tf.keras.Input([8, 8, 4])
        x = layers.ReLU()(layers.BatchNormalization()(convolve()(inputs)))
        model = tf.keras.Model(inputs, layers.GlobalAveragePooling2D()(convolve()(x)))
        model.compile("adam", "mse")
        rows = tf.TensorSpec([8, 8, 8, 4]), tf.TensorSpec([8, 8])
        profile = profile_of(model, *rows)
    whole = 4 * 8 * 8 * 8
    kept = dict(zip(profile.layers, profile.split_weights((), 1).kept, strict=True))
    assert [kept["conv2d"], kept["re_lu"]] == [whole, whole]
    assert kept["batch_normalization"] < whole // 8
