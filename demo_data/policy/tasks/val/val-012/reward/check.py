"""Scores a workspace: 1.0 if its files are exactly the expected ones, else 0.0."""

import json
import sys
from pathlib import Path

EXPECTED = {"cow": "kelp sand", "doe": "fig silk", "dog": "fig silk kelp sand"}

files = {path.name: path.read_text().split() for path in Path(sys.argv[1]).iterdir() if path.is_file()}
files.pop("tmp", None)
print(json.dumps({"files_are_right": float(files == {name: text.split() for name, text in EXPECTED.items()})}))
