"""Runs a module with other constants of the configuration, for a process whose bounds a test has to reach.

python -m tests.integration.with_constants '{"LimitsConfig.max_handshakes": 2}' proxy run -c proxy.yaml
"""

import json
import runpy
import sys

from kafka_throttle.proxy.config import settings

if __name__ == "__main__":
    for place, value in json.loads(sys.argv[1]).items():
        section, _, name = place.partition(".")
        model = getattr(settings, section)
        if name not in model.constants():
            raise SystemExit(f"{place} is no constant of the configuration")
        setattr(model, name, value)
    del sys.argv[:2]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
