"""`tf.compat.v1.flags`: absl's flags, with the parameters of TensorFlow 1, parsed when a program first reads one."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any

from absl import flags as _flags

# Names of parameters in TensorFlow 1, and those of absl.
_RENAMED = {"flag_name": "name", "default_value": "default", "docstring": "help"}


class _ParsedFlags:
    """The flags of the program; the first read parses the command line."""

    def __getattr__(self, name: str) -> Any:
        if not _flags.FLAGS.is_parsed():
            _flags.FLAGS(sys.argv, known_only=True)
        return getattr(_flags.FLAGS, name)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(_flags.FLAGS, name, value)

    def __delattr__(self, name: str) -> None:
        delattr(_flags.FLAGS, name)

    def __getitem__(self, name: str) -> Any:
        return _flags.FLAGS[name]

    def __setitem__(self, name: str, flag: Any) -> None:
        _flags.FLAGS[name] = flag

    def __contains__(self, name: str) -> bool:
        return name in _flags.FLAGS

    def __iter__(self) -> Iterator[str]:
        return iter(_flags.FLAGS)

    def __len__(self) -> int:
        return len(_flags.FLAGS)

    def __call__(self, *args: Any, **kwargs: Any) -> list[str]:
        """Parse a command line; see `absl.flags.FlagValues`."""
        return _flags.FLAGS(*args, **kwargs)

    def __dir__(self) -> list[str]:
        return dir(_flags.FLAGS)

    def __repr__(self) -> str:
        return repr(_flags.FLAGS)


def _rename_parameters(define: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of absl that also accepts the keywords of TensorFlow 1."""

    @functools.wraps(define)
    def function(*args: object, **kwargs: object) -> object:
        return define(*args, **{_RENAMED.get(k, k): v for k, v in kwargs.items()})

    return function


FLAGS: Any = _ParsedFlags()
globals().update(
    {n: _rename_parameters(getattr(_flags, n)) for n in dir(_flags) if n.startswith("DEFINE")}
)


def __getattr__(name: str) -> Any:
    return getattr(_flags, name)


def __dir__() -> list[str]:
    return sorted({"FLAGS", *(n for n in dir(_flags) if not n.startswith("_"))})
