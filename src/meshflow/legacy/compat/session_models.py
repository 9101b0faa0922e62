"""`tf.compat.v1.saved_model`: saved models of the values in a session, and their import into the graph of a session."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from meshflow.environment.types import StrPath
from meshflow.files import gfile
from meshflow.files.paths import to_path_string
from meshflow.legacy.compat.public_package import tf
from meshflow.legacy.graph.definitions import freeze_graph
from meshflow.legacy.graph.graph import get_default_graph
from meshflow.legacy.graph.imports import create_outside_of_graphs, import_nodes
from meshflow.legacy.graph.operations import Operation
from meshflow.legacy.graph.sessions import Session
from meshflow.saved_model.graph.format.messages import Message, SavedModel, SignatureDef
from meshflow.saved_model.graph.reading.graph_loader import make_variable_finder, read_meta_graph

__all__ = ["Builder", "load", "main_op", "main_op_with_restore", "simple_save"]

_INIT_OP = "saved_model_main_op"


class Builder:
    """Writer of a saved model with the graph of a session, which holds the values of variables as constants.

    Args:
      export_dir: Folder, which must not exist or be empty.

    Raises:
      AssertionError: If the folder has files.
    """

    def __init__(self, export_dir: StrPath) -> None:
        self._path = to_path_string(export_dir)
        if gfile.exists(self._path) and gfile.listdir(self._path):
            raise AssertionError(
                "Export directory already exists, and isn't empty. Please choose a different export directory, or delete "
                f"all the contents of the specified directory: {self._path}"
            )
        self._model = SavedModel(saved_model_schema_version=1)

    def add_meta_graph_and_variables(
        self,
        sess: Session,
        tags: Sequence[str],
        signature_def_map: Mapping[str, Message] | None = None,
        assets_collection: object = None,
        legacy_init_op: object = None,
        clear_devices: bool = False,
        main_op: object = None,
        strip_default_attrs: bool = False,
        saver: object = None,
    ) -> None:
        """Add the operations of signatures, with the values that variables have in a session.

        Args:
          sess: The session.
          tags: Tags of the graph.
          signature_def_map: Signatures by name.
          assets_collection: Must be empty.
          legacy_init_op: Ignored: there are no variables to initialize.
          clear_devices: Ignored.
          main_op: Ignored.
          strip_default_attrs: Ignored.
          saver: Ignored.

        Raises:
          ValueError: If there are no signatures, or assets.
        """
        if assets_collection or not signature_def_map:
            raise ValueError(
                "A saved model of a session consists of signatures without assets. Pass signature_def_map, or use "
                "tf.saved_model.save with a tf.Module."
            )
        meta = self._model.meta_graphs.add()
        graph, signatures = sess.graph, signature_def_map
        outputs = [i.name for s in signatures.values() for i in s.outputs.values()]
        inputs = [i.name for s in signatures.values() for i in s.inputs.values()]
        operations = [graph.get_tensor_by_name(n).op for n in dict.fromkeys(outputs)]
        fed = [graph.get_tensor_by_name(n) for n in dict.fromkeys(inputs)]
        meta.graph_def.CopyFrom(freeze_graph(sess, operations, fed))
        meta.meta_info_def.tags.extend(tags)
        meta.meta_info_def.tensorflow_version = tf.__version__
        for name, signature in signatures.items():
            meta.signature_def[name].CopyFrom(signature)

    def add_meta_graph(self, tags: Sequence[str], **options: Any) -> None:
        """Add another graph of the default session; see `add_meta_graph_and_variables`."""
        session = tf.compat.v1.get_default_session()
        self.add_meta_graph_and_variables(session, tags, **options)

    def save(self, as_text: bool = False) -> str:
        """Write the model, and return the path of its file.

        Args:
          as_text: Whether to write text instead of bytes.
        """
        path = gfile.join(self._path, "saved_model.pbtxt" if as_text else "saved_model.pb")
        gfile.makedirs(gfile.join(self._path, "variables"))
        with gfile.GFile(path, "w" if as_text else "wb") as file:
            file.write(str(self._model) if as_text else self._model.SerializeToString())
        return path


def simple_save(
    session: Session,
    export_dir: StrPath,
    inputs: Mapping[str, Any],
    outputs: Mapping[str, Any],
    legacy_init_op: object = None,
) -> None:
    """Write a saved model with one signature; see `Builder`.

    Args:
      session: The session.
      export_dir: Folder.
      inputs: Tensors of the graph by name.
      outputs: Tensors of the graph by name.
      legacy_init_op: Ignored.
    """
    models = tf.compat.v1.saved_model
    signature: SignatureDef = models.predict_signature_def(inputs, outputs)
    builder = Builder(export_dir)
    builder.add_meta_graph_and_variables(
        session, [models.tag_constants.SERVING], {"serving_default": signature}
    )
    builder.save()


def load(
    sess: Session,
    tags: Iterable[str],
    export_dir: StrPath,
    import_scope: str | None = None,
    **saver_kwargs: object,
) -> Message:
    """Add the nodes of a saved model to the graph of a session, with the saved values of variables.

    Args:
      sess: The session.
      tags: Tags of the graph.
      export_dir: Folder of the model.
      import_scope: Prefix of the names, without the slash.
      **saver_kwargs: Ignored.

    Returns:
      The `MetaGraphDef`.
    """
    path = to_path_string(export_dir)
    meta = read_meta_graph(path, list(tags))
    prefix = f"{import_scope}/" if import_scope else ""
    with create_outside_of_graphs():
        find_variable = make_variable_finder(path, meta)
    import_nodes(sess.graph, meta.graph_def, prefix, find_variable=find_variable)
    return meta


def main_op() -> Operation:
    """Return an operation that initializes variables and tables."""
    compat = tf.compat.v1
    return get_default_graph().group(
        [
            compat.global_variables_initializer(),
            compat.local_variables_initializer(),
            compat.tables_initializer(),
        ],
        _INIT_OP,
    )


def main_op_with_restore(restore_op_name: object) -> Operation:
    """Return `main_op`: the values of variables are constants, so that the name of the operation is ignored."""
    return main_op()
