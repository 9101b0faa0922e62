"""SavedModels of TensorFlow: graphs that are written for it and read from it."""
