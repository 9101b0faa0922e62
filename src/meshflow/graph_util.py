"""`tf.graph_util`: the import of graphs."""

from meshflow.saved_model.graph.reading.imported_graphs import import_graph_def

__all__ = ["import_graph_def"]
