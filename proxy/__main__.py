"""`python -m kafka_throttle`, in a checkout also `python -m proxy`, is `kafka-throttle`."""

from kafka_throttle.common.standard_streams import open_closed_streams
from kafka_throttle.proxy.installed import take_build


def main() -> None:
    """Take the build of the deciding code, then run the command line."""
    open_closed_streams()
    take_build()
    from kafka_throttle.proxy.cli.main import main as run

    run(prog_name="kafka-throttle")


if __name__ == "__main__":
    main()
