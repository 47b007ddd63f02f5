"""Asks the page at HEALTH_URL whether the proxy is well; the exit status says it. For the image, which has no curl.

The certificate of the page is not looked at: it is on this machine.
"""

import os
import ssl
import sys
import urllib.request

_TIMEOUT_S = 4


def main() -> int:
    """0 if the page has status 200, else 1."""
    direct = urllib.request.ProxyHandler({})
    unverified = urllib.request.HTTPSHandler(context=ssl._create_unverified_context())
    try:
        with urllib.request.build_opener(direct, unverified).open(os.environ["HEALTH_URL"], timeout=_TIMEOUT_S):
            return 0
    except OSError as error:
        print(error)
        return 1


if __name__ == "__main__":
    sys.exit(main())
