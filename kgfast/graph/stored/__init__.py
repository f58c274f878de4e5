"""Known triples in a folder: built from files larger than memory, and mapped."""
