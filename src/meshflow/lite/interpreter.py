"""LiteRT's interpreter, which is imported when one is made."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from meshflow.environment import extras

__all__ = ["Interpreter", "interpreter_module"]


def interpreter_module() -> Any:
    """LiteRT's module of interpreters.

    Raises:
      ImportError: without the extra `lite`.
    """
    return extras.load(
        "ai_edge_litert.interpreter", "lite", "tf.lite needs LiteRT, the package ai-edge-litert"
    )


class _LiteRT(type):
    """The type of a class whose objects, and whose subclasses, are LiteRT's."""

    def __new__(
        mcs, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **options: Any
    ) -> Any:
        if any(type(base) is _LiteRT for base in bases):
            own = interpreter_module().Interpreter
            given = tuple(own if type(base) is _LiteRT else base for base in bases)
            return type(own)(name, given, namespace, **options)
        return super().__new__(mcs, name, bases, namespace, **options)

    def __instancecheck__(cls, instance: Any) -> bool:
        return cls.__subclasscheck__(type(instance))

    def __subclasscheck__(cls, subclass: type) -> bool:
        if subclass is cls:
            return True
        return any(kind.__module__ == "ai_edge_litert.interpreter" for kind in subclass.__mro__)


class Interpreter(metaclass=_LiteRT):
    """Runs a model that was converted: LiteRT's own class.

    Args:
      model_path: a .tflite file.
      model_content: its content, in place of the file.
      experimental_delegates: of `tf.lite.experimental.load_delegate`.
      num_threads: how many threads it uses.
      experimental_op_resolver_type: of `tf.lite.experimental.OpResolverType`; default its `AUTO`.
      experimental_preserve_all_tensors: whether results inside of the model can be read after a call.
      experimental_disable_delegate_clustering: whether operators keep their order.
      experimental_default_delegate_latest_features: whether the default delegate uses what is new in it.
      **options: those that LiteRT has besides.

    Raises:
      ImportError: without the extra `lite`.
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
        """LiteRT's object."""
        module = interpreter_module()
        if experimental_op_resolver_type is None:
            experimental_op_resolver_type = module.OpResolverType.AUTO
        made: Interpreter = module.Interpreter(
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
        return made

    if TYPE_CHECKING:

        def allocate_tensors(self) -> None: ...
        def get_input_details(self) -> list[dict[str, Any]]: ...
        def get_output_details(self) -> list[dict[str, Any]]: ...
        def get_tensor_details(self, subgraph_index: int = 0) -> list[dict[str, Any]]: ...
        def get_signature_list(self) -> dict[str, dict[str, list[str]]]: ...
        def get_signature_runner(self, signature_key: str | None = None) -> Callable[..., dict[str, Any]]: ...  # fmt: skip
        def get_tensor(self, tensor_index: int, subgraph_index: int = 0) -> Any: ...
        def tensor(self, tensor_index: int) -> Callable[[], Any]: ...
        def set_tensor(self, tensor_index: int, value: Any) -> None: ...
        def resize_tensor_input(self, input_index: int, tensor_size: Any, strict: bool = False) -> None: ...  # fmt: skip
        def num_subgraphs(self) -> int: ...
        def reset_all_variables(self) -> None: ...
        def invoke(self) -> None: ...
