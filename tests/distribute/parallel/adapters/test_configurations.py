"""Test that adapters accept and refuse configurations of other systems as
`docs/large_models/configurations.md` states."""

import ast
import collections
import json
import re
from pathlib import Path

import pytest

import meshflow as tf

PAGE = (Path(__file__).parents[4] / "docs/large_models/configurations.md").read_text()


def list_rows():
    """Yield the system and the cells of each row."""
    for section in PAGE.split("\n## ")[1:]:
        system = section.partition("\n")[0]
        lines = [line for line in section.splitlines() if line.startswith("| `")]
        for line in lines:
            yield system, *(cell.strip() for cell in re.findall(r"\| ([^|]*)(?=\|)", line))


def parse_call(text):
    call = ast.parse(f"dict({text.strip('`')})", mode="eval")
    return eval(compile(call, "row", "eval"), {"tf": tf})


def create_strategy(choices):
    """Create a strategy on a mesh with two devices in each dimension that the arguments name."""
    if "plan" in choices:
        return tf.distribute.MeshStrategy(**choices)
    targets = re.findall(r":([\w+]+)", choices.get("rules", ""))
    names = {name for target in targets for name in target.split("+")}
    names = sorted(names | ({"stage"} if "pipeline" in choices else set()), reverse=True)
    devices = [f"CPU:{i}" for i in range(2 ** len(names))]
    mesh = tf.experimental.dtensor.create_mesh(dict.fromkeys(names, 2), devices=devices)
    return tf.distribute.MeshStrategy(mesh, **choices)


ROWS = [*list_rows()]


@pytest.mark.filterwarnings("ignore:from_mesh_tensorflow")
@pytest.mark.parametrize(
    ("system", "cell", "result", "advice"), ROWS, ids=[r[1][:60] for r in ROWS]
)
def test_the_table_is_right(system, cell, result, advice):
    edit = next(iter(re.findall(r"`(.*?)`", advice)), "")
    if system == "DeepSpeed":
        config, accept = json.loads(cell.strip("`")), tf.distribute.from_deepspeed
    else:
        config = None
    if system == "Mesh-TensorFlow":
        config = parse_call(cell)
        accept = lambda config: tf.distribute.from_mesh_tensorflow(**config)
    if result == "unchanged":
        assert accept(config) is not None
        return
    if config is not None:
        with pytest.raises(ValueError, match=re.escape(edit) if result == "refused" else "."):
            accept(config)
    if result == "refused":
        assert advice
    elif system == "DeepSpeed":
        merged = config | json.loads(edit)
        assert accept({k: v for k, v in merged.items() if v is not None}) is not None
    elif "mesh_shape" in edit:
        assert accept(config | parse_call(edit)) is not None
    else:
        assert create_strategy(parse_call(edit)) is not None


def test_the_counts_are_right():
    counts = collections.Counter((system, result) for system, _, result, _ in ROWS)
    lines = re.findall(r"\n\| ([A-Z][\w-]+) \| (\d+) \| (\d+) \| (\d+) \|", PAGE)
    for system, *written in lines:
        kinds = ("unchanged", "edit", "refused")
        assert [counts[system, kind] for kind in kinds] == [int(n) for n in written]
        assert sum(map(int, written)) >= 16
    assert len(lines) == 4
    assert f"shows {len(ROWS)} configurations" in PAGE
