"""``python -m kgfast``: the command line."""

from kgfast.cli import main

if __name__ == "__main__":
    main()
