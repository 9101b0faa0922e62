"""LiteRT's interpreter, which is imported when an object of it is created."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from meshflow.environment import optional_packages
from meshflow.environment.types import ArrayLike


def load_interpreter_module() -> Any:
    """Import LiteRT's module of interpreters.

    Raises:
      ImportError: if the extra `lite` is not installed.
    """
    return optional_packages.import_extra(
        "ai_edge_litert.interpreter", "lite", "tf.lite needs LiteRT, the package ai-edge-litert"
    )


class _LiteRTMeta(type):
    """Metaclass of a class with objects and subclasses that belong to LiteRT's own class."""

    def __new__(
        mcs, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **options: Any
    ) -> type:
        if any(type(base) is _LiteRTMeta for base in bases):
            litert_class = load_interpreter_module().Interpreter
            litert_bases = tuple(litert_class if type(b) is _LiteRTMeta else b for b in bases)
            return type(litert_class)(name, litert_bases, namespace, **options)
        return super().__new__(mcs, name, bases, namespace, **options)

    def __instancecheck__(cls, instance: object) -> bool:
        return cls.__subclasscheck__(type(instance))

    def __subclasscheck__(cls, subclass: type) -> bool:
        if subclass is cls:
            return True
        return any(kind.__module__ == "ai_edge_litert.interpreter" for kind in subclass.__mro__)


class Interpreter(metaclass=_LiteRTMeta):
    """Interpreter of a converted model; its objects are of LiteRT's own class.

    Args:
      model_path: path of a .tflite file.
      model_content: content of the file, instead of a path.
      experimental_delegates: results of `tf.lite.experimental.load_delegate`.
      num_threads: number of threads.
      experimental_op_resolver_type: member of `tf.lite.experimental.OpResolverType`; default
        `AUTO`.
      experimental_preserve_all_tensors: whether intermediate results can be read after a call.
      experimental_disable_delegate_clustering: whether the order of operators is preserved.
      experimental_default_delegate_latest_features: whether the default delegate uses its latest
        features.
      **options: other options of LiteRT.

    Raises:
      ImportError: if the extra `lite` is not installed.
    """

    def __new__(
        cls,
        model_path: str | None = None,
        model_content: bytes | None = None,
        experimental_delegates: list[Any] | None = None,
        num_threads: int | None = None,
        experimental_op_resolver_type: Any = None,
        experimental_preserve_all_tensors: bool = False,
        experimental_disable_delegate_clustering: bool = False,
        experimental_default_delegate_latest_features: bool = False,
        **options: Any,
    ) -> Interpreter:
        """Create LiteRT's interpreter."""
        module = load_interpreter_module()
        if experimental_op_resolver_type is None:
            experimental_op_resolver_type = module.OpResolverType.AUTO
        interpreter: Interpreter = module.Interpreter(
            model_path=model_path,
            model_content=model_content,
            experimental_delegates=experimental_delegates,
            num_threads=num_threads,
            experimental_op_resolver_type=experimental_op_resolver_type,
            experimental_preserve_all_tensors=experimental_preserve_all_tensors,
            experimental_disable_delegate_clustering=experimental_disable_delegate_clustering,
            experimental_default_delegate_latest_features=experimental_default_delegate_latest_features,
            **options,
        )
        return interpreter

    if TYPE_CHECKING:

        def allocate_tensors(self) -> None:
            """Allocate the memory of all tensors, before the first `invoke` and after each resize."""

        def get_input_details(self) -> list[dict[str, Any]]:
            """Return a dictionary for each input, with its name, index, shape, dtype and quantization."""

        def get_output_details(self) -> list[dict[str, Any]]:
            """Return a dictionary for each output, with its name, index, shape, dtype and quantization."""

        def get_tensor_details(self, subgraph_index: int = 0) -> list[dict[str, Any]]:
            """Return a dictionary for each tensor of a subgraph, including intermediate ones."""

        def get_signature_list(self) -> dict[str, dict[str, list[str]]]:
            """Return the names of the inputs and outputs of each signature."""

        def get_signature_runner(
            self, signature_key: str | None = None
        ) -> Callable[..., dict[str, Any]]:
            """Return a function from named inputs to named outputs; None selects the only signature."""

        def get_tensor(self, tensor_index: int, subgraph_index: int = 0) -> Any:
            """Return a copy of the value of a tensor as a NumPy array."""

        def tensor(self, tensor_index: int) -> Callable[[], Any]:
            """Return a function that returns a NumPy view of a tensor's memory."""

        def set_tensor(self, tensor_index: int, value: ArrayLike) -> None:
            """Copy a value to an input tensor."""

        def resize_tensor_input(
            self, input_index: int, tensor_size: Sequence[int], strict: bool = False
        ) -> None:
            """Set the shape of an input; with `strict`, only axes of unknown size may change."""

        def num_subgraphs(self) -> int:
            """Return the number of subgraphs in the model."""

        def reset_all_variables(self) -> None:
            """Reset the state variables of the model to their initial values."""

        def invoke(self) -> None:
            """Run the model on the values of its inputs."""
