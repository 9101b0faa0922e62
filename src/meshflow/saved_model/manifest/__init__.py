"""Objects, tables, assets and structures as the manifest of a SavedModel describes them."""
