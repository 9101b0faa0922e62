"""Reading and writing of models in files, and the methods of `Model` that use it."""
