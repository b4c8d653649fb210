"""The notebook of the examples runs in a real kernel, and shows progress in the outputs of its cells."""

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

# A kernel starts slowly on a busy machine.
pytestmark = pytest.mark.timeout(900)

NOTEBOOK = Path(__file__).resolve().parents[2] / "examples" / "notebook.ipynb"

# In a process of its own: the warnings of Jupyter are not ours. Sockets of files, because ports may be taken.
EXECUTE = """
import sys
import nbformat
from jupyter_client import AsyncKernelManager
from nbclient import NotebookClient

notebook = nbformat.read(sys.argv[1], as_version=4)
kernel = AsyncKernelManager(kernel_name="python3", transport="ipc")
NotebookClient(notebook, km=kernel, timeout=None, startup_timeout=600).execute()
nbformat.write(notebook, sys.argv[2])
"""


@pytest.fixture(scope="module")
def outputs():
    """Execute the notebook, and return the outputs of its code cells by the id of the cell."""
    # Not pytest's directory: the path of a socket must be short.
    with tempfile.TemporaryDirectory(prefix="nb") as folder:
        executed = Path(folder) / "executed.ipynb"
        environment = {
            **os.environ,
            "JUPYTER_RUNTIME_DIR": folder,
            "IPYTHONDIR": folder,
            "JUPYTER_PLATFORM_DIRS": "1",
        }
        done = subprocess.run(  # noqa: S603 - this interpreter
            [sys.executable, "-c", EXECUTE, str(NOTEBOOK), str(executed)],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert 0 == done.returncode, done.stderr
        cells = json.loads(executed.read_text("utf-8"))["cells"]
    return {cell["id"]: cell["outputs"] for cell in cells if cell["cell_type"] == "code"}


def text_of(output):
    return "".join(output["data"]["text/plain"])


def test_every_cell_gives_what_it_should(outputs):
    """Calls, streams and runs work with the event loop of the kernel."""
    results = {name: text_of(own[-1]) for name, own in outputs.items() if own}
    assert results.pop("result").startswith("<SamplingResult success")
    assert {"lanes": "True", "stream": "True", "run": "'completed'"} == results


def test_a_result_shows_its_lanes_and_attempts(outputs):
    """A result at the end of a cell is shown as HTML."""
    [shown] = outputs["result"]
    assert "<svg" in "".join(shown["data"]["text/html"])
    assert "<details" in "".join(shown["data"]["text/html"])


def test_the_page_has_the_cells_of_the_notebook():
    """The page has the same cells as the notebook that the tests run."""
    page = (NOTEBOOK.parent.parent / "docs" / "how-to" / "use-in-a-notebook.md").read_text("utf-8")
    cells = [cell for cell in json.loads(NOTEBOOK.read_text("utf-8"))["cells"] if cell["cell_type"] == "code"]
    assert ["".join(cell["source"]) for cell in cells] == re.findall(r"^```python\n(.*?)\n```$", page, re.M | re.S)


def test_lanes_are_in_the_output_of_the_cell(outputs):
    """One display that was updated to its last state, as HTML and as text."""
    [shown, _] = outputs["lanes"]
    assert "display_data" == shown["output_type"]
    assert "#1 Rejection" in text_of(shown)
    assert "validated" in text_of(shown)
    assert "✓" in text_of(shown)
    assert "right" in text_of(shown)
    assert "<pre" in "".join(shown["data"]["text/html"])


def test_the_progress_of_a_run_is_in_the_output_of_the_cell(outputs):
    """The same display as on a terminal."""
    [shown, _] = outputs["run"]
    assert "3 of 3" in text_of(shown)
    assert "completed" in text_of(shown)


def test_nothing_is_written_to_the_output_of_the_kernel(outputs):
    """Semantics 14: neither to stdout nor to stderr."""
    assert not [output for own in outputs.values() for output in own if output["output_type"] == "stream"]
