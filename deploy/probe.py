"""``python -m deploy.probe URL``: exit with 0 if the address answers 2xx within 3 s. The images' health check.

The images have no curl. This file imports nothing of ours and little else, because it runs every few seconds.
"""

from __future__ import annotations

import http.client
import sys
from urllib.parse import urlsplit

TIMEOUT_S = 3.0


def main(arguments: list[str]) -> int:
    """Send one request. Return the exit code: 0 for 2xx, otherwise 1 with one line that says what went wrong."""
    parts = urlsplit(arguments[0])
    connection = http.client.HTTPConnection(parts.hostname or "127.0.0.1", parts.port or 80, timeout=TIMEOUT_S)
    try:
        connection.request("GET", parts.path or "/")
        reply = connection.getresponse()
        if 200 <= reply.status < 300:
            return 0
        print(f"{arguments[0]} answered {reply.status}: {reply.read(500).decode(errors='replace')}")  # noqa: T201 - shown by `docker inspect`
    except OSError as error:
        print(f"{arguments[0]} does not answer: {error}")  # noqa: T201 - as above
    finally:
        connection.close()
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
