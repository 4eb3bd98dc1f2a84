"""``python -m dashboards``: write every generated file (``--check``: print those that differ, and exit with 1)."""

from __future__ import annotations

import sys

from dashboards.build import stale, write


def main(arguments: list[str]) -> int:
    """Write or check."""
    if "--check" in arguments:
        different = stale()
        for path in different:
            print(f"{path} is not what dashboards/ generates")
        return 1 if different else 0
    for path in write():
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
