"""How Keras models are built, run and trained."""
