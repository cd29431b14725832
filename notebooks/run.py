"""Runs the cells of a notebook in one namespace and keeps what they print and draw.

    python -m notebooks.run notebooks/fusion.ipynb

A notebook is JSON, and its cells are Python: neither Jupyter nor a kernel is needed for that.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import io
import json
import os
import tempfile
from pathlib import Path
from typing import Any


def run(notebook: dict[str, Any]) -> dict[str, Any]:
    """Runs every code cell in its order, replaces its outputs, and returns the names that the cells defined."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    names: dict[str, Any] = {"__name__": "__main__"}
    plt.show = lambda *_, **__: None  # figures are kept below
    count = 0
    for cell in notebook["cells"]:
        if cell["cell_type"] != "code":
            continue
        count += 1
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile("".join(cell["source"]), f"cell {count}", "exec"), names)
        outputs: list[dict[str, Any]] = []
        if text := printed.getvalue():
            outputs.append({"output_type": "stream", "name": "stdout", "text": text.splitlines(keepends=True)})
        for number in plt.get_fignums():
            drawn = io.BytesIO()
            plt.figure(number).savefig(drawn, format="png", dpi=80, bbox_inches="tight", metadata={"Software": None})
            data = {"image/png": base64.b64encode(drawn.getvalue()).decode(), "text/plain": ["a figure"]}
            outputs.append({"output_type": "display_data", "data": data, "metadata": {}})
        plt.close("all")
        cell["outputs"], cell["execution_count"] = outputs, count
    return names


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("notebook", type=Path)
    file = parser.parse_args().notebook.resolve()
    notebook = json.loads(file.read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)  # what the cells write is not kept
        run(notebook)
    file.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
