"""Mesh-TensorFlow's mesh shapes and layouts, as its models' settings have them."""

import pytest

import meshflow as tf
from distribute.parallel.training import LAYERS


def sizes(strategy):
    return dict(zip(strategy.mesh.dim_names, strategy.mesh.shape(), strict=True))


# Of its transformers, experts, images and first example, on four devices.
T5 = "ensemble:ensemble,batch:batch,d_ff:model,heads:model,vocab:model,experts:batch"
REAL = {
    "T5": ("model:2,batch:2", T5, {"batch": "batch", "experts": "batch", "hidden": "model"}),
    "T5, batch alone": ("batch:4", T5, {"batch": "batch", "experts": "batch", "hidden": None}),
    "a language model": (
        "batch:2;model:2",
        "batch:batch;vocab:model;d_ff:model;heads:model",
        {"vocab": "model", "heads": "model", "hidden": "model"},
    ),
    "experts": ("batch:4", "batch:batch;experts:batch", {"experts": "batch"}),
    "products in two dimensions": (
        "rows:2 cols:2",
        "batch:rows d_model:cols, d_ff:rows",
        {"batch": "rows", "embed": "cols", "hidden": "rows"},
    ),
    "the same dimension all over": ("all:4", {"batch": "all"}, {"batch": "all", "embed": None}),
    "one device": ("", "", {"batch": None}),
}


@pytest.mark.filterwarnings("ignore:from_mesh_tensorflow")
@pytest.mark.parametrize("name", REAL)
def test_real_layouts(name):
    shape, layout, over = REAL[name]
    strategy = tf.distribute.from_mesh_tensorflow(shape, layout)
    found = {name: strategy.rules.dimensions(name) for name in over}
    assert found == {name: () if target is None else (target,) for name, target in over.items()}
    assert strategy.mesh.size == (4 if shape else 1)


def test_dimension_names_map_to_layer_axes():
    strategy = tf.distribute.from_mesh_tensorflow(
        "batch:2;model:2", "batch:batch;d_ff:model", zero=1
    )
    assert sizes(strategy) == {"batch": 2, "model": 2}
    assert strategy.batch_dimensions == ("batch",) and strategy.options.zero == 1
    with strategy.scope():
        wide, own = LAYERS.Dense(64), LAYERS.Dense(16, dims="out:d_ff")
        wide.build([None, 16])
        own.build([None, 16])
    assert wide.kernel.layout.sharding_specs == ["unsharded", "model"]
    assert own.kernel.layout.sharding_specs == ["unsharded", "model"]


def test_rules_for_dimensions_that_a_mesh_has_not_are_warned_of():
    with pytest.warns(UserWarning, match=r"the rules \['ensemble:ensemble', 'd_ff:model'"):
        tf.distribute.from_mesh_tensorflow("batch:4", T5)


def test_invalid_mesh_shapes_and_layouts():
    for wrong in ("rows:two", "rows:2;rows:2", "rows:0", {"rows": -1}):
        with pytest.raises(
            ValueError, match="sizes, 1 or more, once each, as 'rows:4;cols:2'; got"
        ):
            tf.distribute.from_mesh_tensorflow(wrong, "batch:rows")
    for wrong in ("rows", "rows:", 4, None, "a:b:2"):
        with pytest.raises(ValueError, match="mesh_shape must be text such as 'rows:4;cols:2'"):
            tf.distribute.from_mesh_tensorflow(wrong, "batch:rows")
    with pytest.raises(ValueError, match="layout must be text such as 'batch:rows;hidden:cols'"):
        tf.distribute.from_mesh_tensorflow("rows:2", "batch")
    with pytest.raises(
        ValueError, match=r"'batch' is split over 'rows' and over 'cols' of the mesh"
    ):
        tf.distribute.from_mesh_tensorflow("rows:2;cols:2", "batch:rows;batch:cols")
    with pytest.raises(ValueError, match=r"A mesh of \{'rows': 64\} has 64 devices, there are"):
        tf.distribute.from_mesh_tensorflow("rows:64", "batch:rows")
