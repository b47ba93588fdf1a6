"""Execute the notebooks, and store their outputs.

    pip install nbclient ipykernel
    python tests/stored_notebooks.py [NAME.ipynb ...]

Standard error is left out, because progress has times and paths.
"""

import base64
import io
import json
import pathlib
import sys
import tempfile

FOLDER = pathlib.Path(__file__).parents[1] / "notebooks"


def read(name):
    """Return a notebook as nested dicts and lists."""
    return json.loads((FOLDER / name).read_text(encoding="utf-8"))


def source(notebook):
    """Return the code of a notebook."""
    cells = [c["source"] for c in notebook["cells"] if c["cell_type"] == "code"]
    return "\n\n".join("".join(cell) for cell in cells)


def execute(name):
    import nbclient
    import nbformat

    notebook = nbformat.read(FOLDER / name, as_version=4)
    metadata = notebook.metadata
    with tempfile.TemporaryDirectory() as elsewhere:
        nbclient.NotebookClient(
            notebook, record_timing=False, resources={"metadata": {"path": elsewhere}}
        ).execute()
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = [o for o in cell.outputs if o.get("name") != "stderr"]
            for output in cell.outputs:
                if "image/png" in output.get("data", {}):
                    output.data["image/png"] = smaller(output.data["image/png"])
    notebook.metadata = {
        "kernelspec": metadata.kernelspec,
        "language_info": {"name": "python"},
    }
    nbformat.write(notebook, FOLDER / name)


def smaller(png):
    """Reduce a picture in base64 to 256 colours, less than half of its size."""
    from PIL import Image

    with Image.open(io.BytesIO(base64.b64decode(png))) as picture:
        packed = io.BytesIO()
        picture.convert("RGB").quantize(256).save(packed, "PNG", optimize=True)
    return base64.b64encode(packed.getvalue()).decode()


if __name__ == "__main__":
    for name in sys.argv[1:] or sorted(path.name for path in FOLDER.glob("*.ipynb")):
        print(name)
        execute(name)
