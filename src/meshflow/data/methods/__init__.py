"""The methods of `tf.data.Dataset` that create datasets, as base classes of `Dataset`.

Each method constructs the class that implements it through `constructors`, because these classes
derive from `Dataset` and could not be imported here.
"""
