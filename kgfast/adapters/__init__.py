"""Doors to other libraries: one file each, none imported unless asked for."""
