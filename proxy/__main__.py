"""`python -m proxy` is `kafka-throttle`."""

from proxy.cli.main import main

if __name__ == "__main__":
    main()
