"""Pages of docs/ whose snippets run as they stand."""

import re

from support.paths import ROOT


def run_snippets(page: str) -> None:
    """Run the Python of a page, from top to bottom in one namespace."""
    text = (ROOT / "docs" / f"{page}.md").read_text()
    snippets = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert snippets, f"docs/{page}.md has none"
    exec(compile("\n".join(snippets), f"{page}.md", "exec"), {"__name__": page})
