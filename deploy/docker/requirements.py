"""Print the third-party requirements of the package, for a layer of its own: ``requirements.py EXTRA…``.

Runs in the image's build stage, where the package itself is not installed yet; reads ``pyproject.toml`` beside it.
``triton`` alone leaves the base requirements out: they are in the layer below.
"""

import sys
import tomllib
from pathlib import Path

project = tomllib.loads(Path("pyproject.toml").read_text())["project"]
extras = project["optional-dependencies"]
wanted = [] if sys.argv[1:] == ["triton"] else list(project["dependencies"])
for name in sys.argv[1:]:
    wanted += extras[name]
sys.stdout.write("\n".join(wanted) + "\n")
