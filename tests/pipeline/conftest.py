"""One Spark for all tests of the pipeline: starting it takes longer than most of them."""

import pytest

from kafka_throttle.common.jars import spark_kafka_jars, spark_s3_jars
from kafka_throttle.pipeline.spark.session import spark_session

IN_MAKE_TEST = (
    "test_what_was_written_is_read_and_nothing_comes_twice",
    "test_paced_fetches_and_requests_are_simulated_with_the_quotas_that_they_would_have",
)


def pytest_itemcollected(item):
    """Tests that share the session run in one worker. All others of them are for `make nightly`."""
    if "spark" in item.fixturenames:
        item.add_marker("spark")
        item.add_marker(pytest.mark.xdist_group("spark"))
        if item.originalname not in IN_MAKE_TEST:
            item.add_marker("nightly")


@pytest.fixture(scope="session")
def spark(request):
    # Only the start of the JVM can take them, so they are there if any test wants them.
    wanted = {name for item in request.session.items for name in item.fixturenames}
    session = spark_session(
        "local[2]",
        memory="1g",
        name="tests",
        settings={
            "spark.sql.shuffle.partitions": "2",
            **({"spark.jars": ",".join(map(str, spark_kafka_jars()))} if "kafka_source" in wanted else {}),
            # The executors are in this JVM, so that these 690 MB need not be copied to them.
            **({"spark.driver.extraClassPath": ":".join(map(str, spark_s3_jars()))} if "s3a" in wanted else {}),
            # For programs that run once each, the fast compiler is the better one; but by itself it has room for 48 MB
            # of code, which all tests together fill, and then Java ends.
            "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=256m",
        },
    )
    yield session
    session.stop()


@pytest.fixture(scope="session")
def s3a(spark):
    """Spark with the jars of Hadoop's S3 client."""
    return spark


@pytest.fixture
def kafka_source(spark):
    """Spark with the jars of its Kafka source."""
    return spark
