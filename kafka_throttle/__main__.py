"""`python -m kafka_throttle` is `kafka-throttle`."""

from kafka_throttle.proxy.__main__ import main

if __name__ == "__main__":
    main()
