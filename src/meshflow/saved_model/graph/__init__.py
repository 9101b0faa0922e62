"""TensorFlow's part of a SavedModel: written, so that TensorFlow runs it, and read."""
