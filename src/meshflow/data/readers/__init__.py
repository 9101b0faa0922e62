"""Datasets of files and of other libraries: records, CSV, Arrow, SQL and tar files."""
