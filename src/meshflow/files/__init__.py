"""Access to files and folders on local disks and in remote stores.

All other packages read and write files through these modules. `paths` resolves paths, `gfile` has
TensorFlow's file functions, and `listing` finds files in folders. `atomic_writes` replaces files
and folders atomically, `part_files` names unfinished files and deletes abandoned ones, and `copies`
transfers files between local disks and stores.
"""
