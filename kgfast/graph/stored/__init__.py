"""Known triples in a folder: built of files that are larger than memory, and mapped from there."""
