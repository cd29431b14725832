"""The HTML report: `build.py` gathers the data, the files beside it draw it in the browser."""
