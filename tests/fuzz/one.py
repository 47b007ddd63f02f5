"""Fuzzes one target with atheris until its time is over: python -m tests.fuzz.one TARGET [libFuzzer's options]."""

import sys

import atheris

with atheris.instrument_imports(
    include=[
        "kafka_throttle.protocol",
        "kafka_throttle.proxy.relay",
        "kafka_throttle.proxy.decisions.sasl",
        "kafka_throttle.quotas.sources",
        "tests.fuzz",
    ]
):
    from tests.fuzz.targets import TARGETS


def main() -> None:
    """Does not return: libFuzzer ends the process."""
    name = sys.argv.pop(1)
    atheris.Setup(sys.argv, TARGETS[name].try_out)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
