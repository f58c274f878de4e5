"""The configs that come with the package: ``kgfast train --config wn18rr/rotate_fast``."""
