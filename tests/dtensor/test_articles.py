"""TensorFlow's articles on DTensor run with no change but the import."""

from pathlib import Path

import forked


def test_articles():
    program = Path(__file__).with_name("articles.py")
    code, text = forked.run(program.read_text(), after="import jax")
    assert code == 0 and text.splitlines()[-1] == "done", text
