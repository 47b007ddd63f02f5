"""Runs one of the tools with the build of the deciding code that the environment asks for, and says which that is.

KAFKA_THROTTLE_COMPILED=$(deploy/compiled.sh) python -m tests.support.on_build tests.simulation --seconds 600
"""

import runpy
import sys

from kafka_throttle.proxy.installed import build_in_use, take_build

if __name__ == "__main__":
    take_build()
    print(f"the {build_in_use()} build runs", file=sys.stderr)
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
