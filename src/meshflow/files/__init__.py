"""Files and folders, here and in stores: the one way in which anything is read or written.

`paths` says where a path leads, `gfile` has TensorFlow's functions on it, `listing` says what lies below a folder;
`replacing` writes files and folders that are whole or not there, `parts` names and clears what is being
written; `copies` go between this machine and stores.
"""
