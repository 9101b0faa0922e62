"""`tf.saved_model.save`: functions, signatures and objects of a SavedModel."""
