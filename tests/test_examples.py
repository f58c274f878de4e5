"""The notebook of examples/ runs as it stands, and is kept without its outputs."""

import json

import pytest

from support.paths import ROOT

NOTEBOOK = ROOT / "examples" / "quickstart.ipynb"


def cells():
    return [it for it in json.loads(NOTEBOOK.read_text())["cells"] if it["cell_type"] == "code"]


def test_it_is_kept_without_outputs():
    assert len(cells()) > 5
    assert all(it["outputs"] == [] and it["execution_count"] is None for it in cells())


def test_its_code_is_python():
    for place, cell in enumerate(cells()):
        compile("".join(cell["source"]), f"{NOTEBOOK.name}, cell {place}", "exec")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_it_runs(tmp_path):
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbclient.NotebookClient(
        notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}
    ).execute()
    done = [cell for cell in notebook.cells if cell.cell_type == "code"]
    shown = [
        out.data
        for cell in done
        for out in cell.outputs
        if out.output_type in ("execute_result", "display_data")
    ]
    assert len(shown) == len(done)
    assert float(shown[1]["text/plain"]) > 0.5, "the model did not learn"
    tables = [data for data in shown if data["text/plain"].count("\n") >= 3]
    assert len(tables) >= 3, "results print as tables"
    assert (tmp_path / "runs/quickstart/report.html").stat().st_size > 50_000
