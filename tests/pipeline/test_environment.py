"""What is said where Spark cannot start: one line with the variable or the user id, and what to do."""

import os
import pwd
from pathlib import Path

import pyspark
import pytest

from kafka_throttle.pipeline.jobs import ingest
from kafka_throttle.pipeline.spark.environment import reasons, refuse_nameless_user
from kafka_throttle.pipeline.table.table import BadTable


def java(folder, says, status=0):
    """A java that says this."""
    file = folder / "bin" / "java"
    file.parent.mkdir(parents=True)
    file.write_text(f"#!/bin/sh\necho '{says}' >&2\nexit {status}\n")
    file.chmod(0o755)
    return str(folder)


@pytest.fixture
def good(tmp_path):
    return java(tmp_path / "java17", 'openjdk version "17.0.9" 2023-10-17')


def test_a_java_that_is_too_old_is_named(tmp_path):
    for says, named in (('java version "1.8.0_402"', "Java 8"), ('openjdk version "11.0.2"', "Java 11")):
        home = java(tmp_path / named, says)
        assert reasons({"JAVA_HOME": home}) == (
            f"Spark does not start: JAVA_HOME={home!r} is {named}: name Java 17 or later"
        )
    broken = java(tmp_path / "broken", "Error: no JVM", status=1)
    assert f"JAVA_HOME={broken!r} is no Java that says its version" in reasons({"JAVA_HOME": broken})
    assert "the java of the PATH is Java 8" in reasons({"PATH": str(tmp_path / "Java 8" / "bin")})


def test_a_java_that_is_not_there_is_named(tmp_path):
    gone = str(tmp_path / "gone")
    assert f"JAVA_HOME={gone!r}: {gone}/bin/java cannot be run" in reasons({"JAVA_HOME": gone})
    assert "no java in the PATH, and no JAVA_HOME: install Java 17" in reasons({"PATH": gone})


def test_another_spark_and_arguments_for_another_program_are_named_both(good):
    said = reasons(
        {"JAVA_HOME": good, "SPARK_HOME": "/opt/spark", "PYSPARK_SUBMIT_ARGS": "--master yarn pyspark-shell"}
    )
    assert said == (
        "Spark does not start: PYSPARK_SUBMIT_ARGS='--master yarn pyspark-shell' may be for another program: unset it; "
        f"SPARK_HOME='/opt/spark' is another Spark than {pyspark.__version__} of this Python: unset it"
    )


def test_where_nothing_is_wrong_the_jvm_itself_has_said_why(good):
    own = str(Path(pyspark.__file__).parent)
    assert reasons({"JAVA_HOME": good, "SPARK_HOME": own}).endswith("for the reason that it says above")


def test_a_table_is_not_made_where_a_colon_is_in_its_path(tmp_path):
    table = tmp_path / "run 10:00" / "table"
    with pytest.raises(BadTable, match="run 10:00/table: expected a path without a colon, which Spark cannot write to"):
        ingest.main(str(table), [str(tmp_path)])
    assert not table.parent.exists()


def test_a_user_id_without_a_name_is_refused_before_java_starts(monkeypatch):
    refuse_nameless_user()

    def nobody(number):
        raise KeyError(number)

    monkeypatch.setattr(os, "getuid", lambda: 54321)
    monkeypatch.setattr(pwd, "getpwuid", nobody)
    with pytest.raises(
        ValueError, match="the user id 54321 has no name, and Java's login needs one: add it to /etc/pass"
    ):
        refuse_nameless_user()
