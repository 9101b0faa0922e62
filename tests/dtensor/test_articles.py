"""TensorFlow's articles on DTensor run with no change but the import."""

import subprocess
import sys
from pathlib import Path


def test_articles():
    program = Path(__file__).with_name("articles.py")
    done = subprocess.run(
        [sys.executable, str(program)], capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "done"
