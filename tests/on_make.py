"""Runs one of the tools with the make of the deciding code that the environment asks for, and says which that is.

KAFKA_THROTTLE_COMPILED=$(deploy/compiled.sh) python -m tests.on_make tests.simulation --seconds 600
"""

import runpy
import sys

from proxy.installed import make_in_use, take_make

if __name__ == "__main__":
    take_make()
    print(f"the {make_in_use()} make runs", file=sys.stderr)
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
