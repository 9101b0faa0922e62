"""Files and folders, here and in stores: the one way in which anything is read or written.

`paths` says where a path leads, `gfile` has TensorFlow's functions on it, `replacing` writes files and
folders that are whole or not there.
"""
