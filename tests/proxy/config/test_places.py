"""Lines of problems: of what is wrong, or of what it should stand in."""

import json

import pytest

from kafka_throttle.common.places import placed, with_places
from kafka_throttle.common.problems import Problem, show
from kafka_throttle.proxy.config.load import load_config
from kafka_throttle.proxy.config.problems import ConfigErrors

TEXT = """\
# a comment
virtual_clusters:
- name: main
  upstream: {bootstrap_servers: ["a:1"]}
  listeners:
    - name: plain
      bind: 127.0.0.1
      port: 9092
      node_ids:
        - 0-2
        - nine
limits:
  max_connections_per_ip: 5
"""

LINES = {
    "virtual_clusters[0]": 3,
    "virtual_clusters[0].listeners[0].port": 8,
    "virtual_clusters[0].listeners[0].node_ids[1]": 11,
    "virtual_clusters[0].listeners[0].tls.certificate_file": 6,
    "virtual_clusters[0].upstream.bootstrap_servers[0]": 4,
    "virtual_clusters[7].name": 2,
    "limits.max_connections_per_ip": 13,
    "limits.['odd']": 12,
    "metrics.port": None,
    "line 3, column 5": None,
}


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "proxy.yaml"
    path.write_text(TEXT)
    return path


def test_a_problem_has_the_line_of_the_last_thing_that_its_path_leads_to(file):
    found = placed([Problem(path, "no") for path in LINES], file)
    assert {each.path: each.line for each in found} == LINES
    assert str(found[1]) == "virtual_clusters[0].listeners[0].port: no (line 8)"
    assert [str(each) for each in placed([Problem("(file)", "no")], file)] == [f"{file}: no"]


@pytest.mark.parametrize("key", ["CN=a b", "a.b", "[0]", "ключ", "it's", 'say "x"', "k" * 200])
def test_a_key_that_is_shown_in_quotes_has_its_line(tmp_path, key):
    file = tmp_path / "proxy.yaml"
    file.write_text(f"limits:\n  a: 1\n  {json.dumps(key)}: 2\n")
    assert placed([Problem(f"limits[{show(key)}]", "no")], file)[0].line == 3


def test_lines_of_very_many_keys_are_found_in_time(tmp_path):
    file, count = tmp_path / "proxy.yaml", 10_000
    file.write_text("".join(f"k{i}: 1\n" for i in range(count)))
    found = placed([Problem(f"k{i}", "no") for i in range(count)], file)
    assert [each.line for each in found] == [*range(1, count + 1)]


def test_a_file_that_is_no_yaml_or_gone_has_no_lines(file):
    problem = Problem("limits", "no")
    for text in ("a: [", "a: &x [*x]"):
        file.write_text(text)
        assert [each.line for each in placed([problem], file)] == [None]
    file.unlink()
    assert [str(each) for each in placed([problem], file)] == ["limits: no"]


def test_a_line_that_is_known_stays(file):
    def fail():
        raise ConfigErrors([Problem("limits", "no", line=99), Problem("limits", "neither")])

    with pytest.raises(ConfigErrors) as raised:
        with_places(file, fail)
    assert [each.line for each in raised.value.problems] == [99, 12]


def test_problems_of_a_configuration_have_lines(file):
    with pytest.raises(ConfigErrors) as raised:
        load_config(file)
    assert [(each.path, each.line) for each in raised.value.problems] == [
        ("virtual_clusters[0].listeners[0].node_ids[1]", 11),
        ("limits.max_connections_per_ip", 13),
    ]
