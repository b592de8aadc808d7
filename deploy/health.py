"""Whether a server answers 200: `python deploy/health.py URL [VARIABLE]`. VARIABLE names the one that holds the server's token, which so
stands on no command line. For health checks: standard library only, a few milliseconds."""

from __future__ import annotations

import os
import sys
import urllib.error
import urllib.request
from collections.abc import Sequence

TIMEOUT_S = 5.0


def main(arguments: Sequence[str]) -> int:
    url, *variable = arguments
    headers = {"Authorization": f"Bearer {os.environ[variable[0]]}"} if variable else {}
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=TIMEOUT_S) as answer:
            status = answer.status
    except (urllib.error.URLError, OSError) as error:
        print(f"{url}: {error}", file=sys.stderr)
        return 1
    return 0 if status == 200 else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
