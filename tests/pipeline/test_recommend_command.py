"""`kafka-throttle usage recommend`: what is refused before Spark is started."""

from click.testing import CliRunner

from kafka_throttle.proxy.cli.main import main


def refused(*arguments):
    result = CliRunner().invoke(main, ["usage", "recommend", "--table", "nowhere", *arguments])
    assert result.exit_code == 2
    return result.output


def test_every_mistake_of_a_capacity_file_is_told_with_file_and_place(tmp_path):
    path = tmp_path / "capacity.yaml"
    path.write_text("reserve: 2\nvirtual_clusters:\n- {name: main, produce: {per_nod: 1}}\n")
    output = refused("--out", str(tmp_path / "out"), "--capacity", str(path))
    assert f"{path}: reserve: expected a number of at least 0 and below 1, got 2 (line 1)" in output
    assert f"{path}: virtual_clusters[0].produce.per_nod: unknown key, did you mean 'per_node'? (line 3)" in output


def test_a_capacity_file_that_is_not_there_is_named_once(tmp_path):
    output = refused("--out", str(tmp_path / "out"), "--capacity", str(tmp_path / "none.yaml"))
    assert output.count("none.yaml") == 1


def test_an_output_that_is_no_directory_is_refused(tmp_path):
    path = tmp_path / "file"
    path.write_text("")
    assert f"{path}: expected a directory to write to" in refused("--out", str(path))


def test_quota_types_are_those_of_records(tmp_path):
    output = refused("--out", str(tmp_path), "--types", "produce,consume")
    assert "got 'consume'" in output
    assert "controller_mutation" in output


def test_nan_is_no_number(tmp_path):
    for option in ("--percentile", "--headroom", "--step"):
        output = refused("--out", str(tmp_path), option, "nan")
        assert f"Invalid value for '{option}': expected a number, got 'nan'" in output


def test_a_time_that_ends_before_it_begins_is_refused(tmp_path):
    assert "--since" in refused("--out", str(tmp_path), "--since", "2026-11-02", "--until", "2026-11-01")
