"""Print the requirements of the named extras of pyproject.toml, one a line.

    python tools/extras.py test bench

``pip install -e ".[test]"`` builds the package again, however recently it was installed.
"""

import sys
import tomllib
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1] / "pyproject.toml"


def main() -> None:
    """Print what the extras named on the command line require."""
    extras = tomllib.loads(PROJECT.read_text())["project"]["optional-dependencies"]
    print("\n".join(line for name in sys.argv[1:] for line in extras[name]))


if __name__ == "__main__":
    main()
