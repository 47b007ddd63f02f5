"""Plans carried out: what is refused, lost, doubled or interrupted, and what is written down of it."""

import hashlib
import io
import json
import os
from dataclasses import replace

import pytest
from click.testing import CliRunner

from kafka_throttle.pipeline.jobs import apply as job
from kafka_throttle.pipeline.rollout.author import who
from kafka_throttle.pipeline.rollout.place import Place, in_words_of_commands
from kafka_throttle.pipeline.rollout.plan import Bounds, planned
from kafka_throttle.pipeline.rollout.plan_file import Made, PlanFile, read_plan, write_plan
from kafka_throttle.proxy.cli.main import main
from kafka_throttle.quotas.changes import SourceUnavailable
from kafka_throttle.quotas.entities import DEFAULT, Entity, QuotaType
from kafka_throttle.quotas.sources.upstream import UpstreamSettings, UpstreamSource
from tests.fakes.kafka_quotas import FakeCluster
from tests.support.places import ROOT

PRODUCE = QuotaType.PRODUCE
ALICE, BOB, ETL = (("user", "alice"),), (("user", "bob"),), (("client-id", "etl"),)
WANTED = {Entity("alice"): {PRODUCE: 50.0}, Entity("bob"): {PRODUCE: 70.0}, Entity(client_id="etl"): {PRODUCE: 9.0}}
AUDIT = "quota-audit.jsonl"


def cluster_with_alice():
    return FakeCluster({ALICE: {"producer_byte_rate": 80.0, "request_percentage": 5.0}})


def place_of(cluster):
    settings = UpstreamSettings(("a:9092",), interval_s=3600.0)
    return Place("a:9092", lambda: UpstreamSource(settings, cluster.connect), ("upstream",))


@pytest.fixture
def plan(tmp_path):
    """From what alice has to what is wanted."""
    found = planned({Entity("alice"): {PRODUCE: 80.0}}, WANTED, Bounds())
    path = tmp_path / "plan.json"
    write_plan(path, PlanFile(Made("now", "me", "a:9092", "q.yaml"), found.changes))
    return path


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(job, "_SHOWN_WITHIN_S", 0.0)


def audited(plan):
    lines = [json.loads(line) for line in (plan.parent / AUDIT).read_text().splitlines()]
    return [(line["event"], *line["entity"].values(), line["before"], line["after"]) for line in lines]


INTENDED = [("intended", "etl", None, 9.0), ("intended", "alice", 80.0, 50.0), ("intended", "bob", None, 70.0)]


def test_a_plan_is_applied_read_back_and_written_down(plan, capsys):
    cluster = cluster_with_alice()
    assert job.main(plan, place_of(cluster)) == 0
    assert cluster.quotas == {
        ALICE: {"producer_byte_rate": 50.0, "request_percentage": 5.0},
        BOB: {"producer_byte_rate": 70.0},
        ETL: {"producer_byte_rate": 9.0},
    }
    assert audited(plan) == [*INTENDED, *(("applied", *line[1:]) for line in INTENDED)]
    out = capsys.readouterr().out
    assert "3 applied at a:9092" in out
    line = json.loads((plan.parent / AUDIT).read_text().splitlines()[0])
    assert line["plan"] == read_plan(plan).checksum
    assert "@" in line["by"]
    assert not cluster.open_connections


def test_a_plan_is_refused_where_it_was_not_made_unless_that_is_asked_for(plan):
    cluster = cluster_with_alice()
    other = replace(place_of(cluster), name="b:9092")
    with pytest.raises(
        ValueError, match=r"plan\.json: made at a:9092, and this is b:9092: plan again for it, or use --else"
    ):
        job.main(plan, other)
    assert cluster.alterations == []
    assert not (plan.parent / AUDIT).exists()
    assert job.main(plan, other, elsewhere=True) == 0
    assert cluster.quotas[BOB] == {"producer_byte_rate": 70.0}


def test_applied_twice_it_does_nothing(plan, capsys):
    cluster = cluster_with_alice()
    job.main(plan, place_of(cluster))
    lines = audited(plan)
    assert job.main(plan, place_of(cluster)) == 0
    assert "nothing to do: 3 changes in force already" in capsys.readouterr().out
    assert audited(plan) == lines
    assert len(cluster.alterations) == 1


def test_the_plan_that_takes_it_back_does(plan):
    cluster = cluster_with_alice()
    job.main(plan, place_of(cluster))
    assert job.main(plan.with_name("plan.rollback.json"), place_of(cluster)) == 0
    assert cluster.quotas == cluster_with_alice().quotas


def test_plans_of_one_name_that_follow_each_other_can_each_be_taken_back(plan):
    cluster = cluster_with_alice()
    job.main(plan, place_of(cluster))
    first = plan.with_name("plan.rollback.json").read_bytes()
    found = planned({Entity("alice"): {PRODUCE: 50.0}}, {Entity("alice"): {PRODUCE: 30.0}}, Bounds())
    second = PlanFile(Made("then", "me", "a:9092", "q.yaml"), found.changes)
    write_plan(plan, second)
    assert job.main(plan, place_of(cluster)) == 0
    assert plan.with_name("plan.rollback.json").read_bytes() == first
    back = plan.with_name(f"plan.rollback-{second.checksum[7:15]}.json")
    for path, limit in ((back, 50.0), (plan.with_name("plan.rollback.json"), 80.0)):
        assert job.main(path, place_of(cluster)) == 0
        assert cluster.quotas[ALICE]["producer_byte_rate"] == limit


def test_a_file_that_is_no_plan_is_never_replaced_by_the_one_that_takes_it_back(plan):
    cluster, foreign = cluster_with_alice(), plan.with_name("plan.rollback.json")
    foreign.write_text("mine")
    with pytest.raises(ValueError, match="no plan that takes this one back"):
        job.main(plan, place_of(cluster))
    another = PlanFile(Made("then", "me", "a:9092", "q.yaml"), ())
    write_plan(foreign, another.reversed("now", "me"))
    with pytest.raises(ValueError, match="no plan that takes this one back"):
        job.main(plan, place_of(cluster), rollback_out=foreign)
    assert cluster.alterations == []


def test_nothing_is_changed_where_somebody_else_has_changed_what_it_changes(plan, capsys):
    cluster = cluster_with_alice()
    cluster.quotas[BOB] = {"producer_byte_rate": 1.0}
    cluster.quotas[ALICE]["producer_byte_rate"] = 79.0
    assert job.main(plan, place_of(cluster)) == 1
    assert cluster.alterations == []
    assert capsys.readouterr().err.splitlines()[1:] == [
        "  producer_byte_rate of user=alice: the plan found 80 and sets 50, in force is 79",
        "  producer_byte_rate of user=bob: the plan found none and sets 70, in force is 1",
    ]
    assert [line[0] for line in audited(plan)] == ["not tried"] * 2
    assert not plan.with_name("plan.rollback.json").exists()


def test_other_quotas_may_have_changed(plan):
    cluster = cluster_with_alice()
    cluster.quotas[ALICE]["request_percentage"] = 77.0
    cluster.quotas[(("user", "carol"),)] = {"producer_byte_rate": 3.0}
    assert job.main(plan, place_of(cluster)) == 0
    assert cluster.quotas[ALICE] == {"producer_byte_rate": 50.0, "request_percentage": 77.0}


def test_a_dry_run_asks_and_changes_nothing(plan, capsys):
    cluster = cluster_with_alice()
    cluster.refusals[BOB] = (44, "too much for bob")
    assert job.main(plan, place_of(cluster), dry_run=True) == 1
    out = capsys.readouterr().out
    assert "would be refused  user=bob" in out
    assert "too much for bob" in out
    assert "would set         user=alice" in out
    assert out.endswith("dry run, nothing is changed: 3 changes, of which a:9092 would refuse 1\n")
    assert [path.name for path in plan.parent.iterdir()] == ["plan.json"]
    assert cluster.quotas == cluster_with_alice().quotas
    del cluster.refusals[BOB]
    assert job.main(plan, place_of(cluster), dry_run=True) == 0


def test_what_is_refused_is_told_and_the_rest_can_be_applied_again_or_taken_back(plan, capsys):
    cluster = cluster_with_alice()
    cluster.refusals[BOB] = (44, "too much for bob")
    assert job.main(plan, place_of(cluster)) == 1
    reported = capsys.readouterr()
    assert "2 applied, 1 refused at a:9092" in reported.out
    assert "too much for bob" in reported.out
    assert "again for the rest" in reported.err
    assert [line[0] for line in audited(plan)[3:]] == ["applied", "applied", "refused"]
    assert job.main(plan.with_name("plan.rollback.json"), place_of(cluster)) == 0
    assert cluster.quotas[ALICE]["producer_byte_rate"] == 80.0
    assert ETL not in cluster.quotas
    cluster.refusals.clear()
    assert job.main(plan, place_of(cluster)) == 0
    assert cluster.quotas[BOB] == {"producer_byte_rate": 70.0}


def test_who_may_not_alter_is_told_the_error_by_name(plan, capsys):
    cluster = cluster_with_alice()
    cluster.refusals = dict.fromkeys([ALICE, BOB, ETL], (31, "Cluster authorization failed."))
    assert job.main(plan, place_of(cluster)) == 1
    assert capsys.readouterr().out.count("CLUSTER_AUTHORIZATION_FAILED (error 31)") == 3
    assert job.main(plan, place_of(cluster), dry_run=True) == 1
    assert "CLUSTER_AUTHORIZATION_FAILED (error 31): AlterConfigs" in capsys.readouterr().out


def test_who_may_not_describe_is_told_the_error_by_name(plan, capsys):
    cluster = cluster_with_alice()
    cluster.error = (31, "no")
    assert job.main(plan, place_of(cluster)) == 1
    said = capsys.readouterr().err
    assert said.startswith("nothing is changed: a:9092: not allowed: CLUSTER_AUTHORIZATION_FAILED (error 31): Describe")


class Lossy(FakeCluster):
    """Takes what it is told, and loses the connection before it answers; `gone`: for good."""

    def __init__(self, quotas, gone):
        super().__init__(quotas)
        self.gone = gone

    def response(self, request):
        found = super().response(request)
        if self.alterations and (self.gone or len(self.alterations) == 1):
            if not self.gone:
                self.alterations.append("lost")
            raise SourceUnavailable("a:9092: the connection was lost")
        return found


def test_a_response_that_is_lost_is_looked_up(plan, capsys):
    cluster = Lossy(cluster_with_alice().quotas, gone=False)
    assert job.main(plan, place_of(cluster)) == 0
    assert "3 applied" in capsys.readouterr().out


def test_where_nobody_answers_any_more_it_says_what_is_not_known(plan, capsys):
    cluster = Lossy(cluster_with_alice().quotas, gone=True)
    assert job.main(plan, place_of(cluster)) == 1
    assert "3 unknown at a:9092" in capsys.readouterr().out
    assert [line[0] for line in audited(plan)[3:]] == ["unknown"] * 3
    assert job.main(plan, place_of(cluster_with_alice())) == 0


def test_no_more_is_tried_after_something_was_refused(tmp_path):
    wanted = {Entity(f"user-{i:03}"): {PRODUCE: 5.0} for i in range(250)}
    path, cluster = tmp_path / "plan.json", FakeCluster()
    write_plan(path, PlanFile(Made("now", "me", "a:9092", "q"), planned({}, wanted, Bounds()).changes))
    cluster.refusals[(("user", "user-150"),)] = (44, "no")
    assert job.main(path, place_of(cluster)) == 1
    assert [len(entities) for entities in cluster.alterations] == [100, 100]
    assert [line[0] for line in audited(path)].count("not tried") == 50
    cluster.refusals.clear()
    assert job.main(path, place_of(cluster)) == 0
    assert len(cluster.quotas) == 250


def test_nothing_is_changed_that_cannot_be_written_down(plan):
    cluster = cluster_with_alice()
    with pytest.raises(ValueError, match="cannot be written: No such file"):
        job.main(plan, place_of(cluster), audit=plan.parent / "missing" / "audit.jsonl")
    with pytest.raises(ValueError, match=r"/dev/full|missing"):
        job.main(plan, place_of(cluster), rollback_out=plan.parent / "missing" / "back.json")
    (plan.parent / "mine.json").write_text("{}")
    with pytest.raises(ValueError, match="no plan that takes this one back"):
        job.main(plan, place_of(cluster), rollback_out=plan.parent / "mine.json")
    assert cluster.alterations == []


def test_a_full_disk_stops_it_before_it_changes_anything(plan, capsys):
    cluster, full = cluster_with_alice(), plan.with_name("full")
    full.symlink_to("/dev/full")
    assert job.main(plan, place_of(cluster), audit=full) == 1
    assert cluster.alterations == []
    reported = capsys.readouterr()
    assert "3 not tried" in reported.out
    assert "No space left" in reported.err


def test_an_interruption_is_told_like_a_loss(plan, capsys):
    class Interrupting(FakeCluster):
        def response(self, request):
            found = super().response(request)
            if len(self.alterations) == 1:
                self.alterations.append("once")
                raise KeyboardInterrupt
            return found

    cluster = Interrupting(cluster_with_alice().quotas)
    assert job.main(plan, place_of(cluster)) == 0
    reported = capsys.readouterr()
    assert "interrupted" in reported.err
    assert "3 applied" in reported.out


# ----------------------------------------------------------------- commands


CONFIG = """
virtual_clusters:
- name: main
  upstream: {bootstrap_servers: ["127.0.0.1:9"]}
  listeners: [{name: plain, bind: 127.0.0.1, port: 19092, node_ids: ["0-2"]}]
  quotas:
    state_file: state.json
    entries:
    - {user: alice, producer_byte_rate: 1000, shadow_consumer_byte_rate: 9}
    - {default_client_id: true, producer_byte_rate: 5000000}
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "proxy.yaml").write_text(CONFIG)
    return tmp_path


def usage(folder, *arguments):
    done = CliRunner().invoke(main, ["usage", *[a.replace("@", f"{folder}/") for a in arguments]])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.stdout.replace(f"{folder}/", ""), done.stderr.replace(f"{folder}/", "")


def test_a_file_of_quotas_becomes_a_plan_and_is_in_force(folder):
    (folder / "q.yaml").write_text(
        "entries:\n- {user: alice, producer_byte_rate: 100, shadow_producer_byte_rate: 5}\n"
        "- {client_id: noisy, producer_byte_rate: 1000000}\n"
    )
    status, out, err = usage(folder, "plan", "--quotas", "@q.yaml", "-c", "@proxy.yaml", "--out", "@plan.json")
    assert status == 0
    assert out == (
        "entity           quota                                              in force   this run     wanted\n"
        "client-id=noisy  producer_byte_rate  none (5,000,000 by client-id=<default>)  2,500,000  1,000,000"
        "  a factor of 2 a run: --most-change\n"
        "user=alice       producer_byte_rate                                    1,000        500        100"
        "  a factor of 2 a run: --most-change\n"
        "\n"
        "Byte rates in bytes/s, request_percentage in % of one thread, the others per second; each at every node.\n"
        "2 changes of 2 entities at proxy.yaml, virtual cluster main\n"
        "2 limits will not be as wanted after this run: apply it, then plan again\n"
        "plan.json is written; `kafka-throttle usage apply plan.json` with the same place carries it out\n"
    )
    assert err == "warning: 1 shadow quotas of q.yaml are left out: set them with `kafka-throttle quotas set`\n"
    status, out, _ = usage(folder, "apply", "@plan.json", "-c", "@proxy.yaml", "--dry-run")
    assert status == 0
    assert out.endswith(
        ", virtual cluster main was not asked whether it would refuse any: files and ZooKeeper cannot be\n"
    )
    assert "would be refused" not in out
    assert usage(folder, "apply", "@plan.json", "-c", "@proxy.yaml")[0] == 0
    described = CliRunner().invoke(main, ["quotas", "describe", "-c", str(folder / "proxy.yaml")]).stdout
    assert "producer_byte_rate         500  state.json" in described
    assert "shadow_consumer_byte_rate    9  proxy.yaml" in described


@pytest.mark.parametrize(
    ("option", "variable", "expected"),
    [
        (["--by", "alice"], "airflow", "alice"),
        (["--by", "alice"], None, "alice"),
        ([], "Zoë, on call", "Zoë, on call"),
        ([], None, "process"),
        ([], "", "process"),
    ],
)
def test_the_author_is_that_of_the_option_then_of_the_variable_then_the_process(
    folder, monkeypatch, option, variable, expected
):
    monkeypatch.delenv("KAFKA_THROTTLE_ACTOR", raising=False)
    if variable is not None:
        monkeypatch.setenv("KAFKA_THROTTLE_ACTOR", variable)
    expected = who() if expected == "process" else expected
    (folder / "q.yaml").write_text("entries: [{user: alice, producer_byte_rate: 600}]")
    assert usage(folder, "plan", "--quotas", "@q.yaml", "-c", "@proxy.yaml", "--out", "@plan.json", *option)[0] == 0
    assert usage(folder, "apply", "@plan.json", "-c", "@proxy.yaml", *option)[0] == 0
    lines = [json.loads(line) for line in (folder / AUDIT).read_text().splitlines()]
    assert [line["event"] for line in lines] == ["intended", "applied"]
    assert {(line["by"], line["process"]) for line in lines} == {(expected, who())}
    plans = [read_plan(folder / name) for name in ("plan.json", "plan.rollback.json")]
    assert [plan.made.by for plan in plans] == [expected, expected]


def test_a_refused_plan_is_written_down_with_its_author(plan):
    cluster = FakeCluster({ALICE: {"producer_byte_rate": 81.0}})
    assert job.main(plan, place_of(cluster), by="alice") == 1
    [line] = [json.loads(line) for line in (plan.parent / AUDIT).read_text().splitlines()]
    assert (line["event"], line["by"], line["process"]) == ("not tried", "alice", who())


@pytest.mark.parametrize("name", [" ", "a\nb", "\u202eecila", "a" * 257])
def test_an_author_that_cannot_be_read_in_one_line_is_refused(folder, monkeypatch, name):
    (folder / "q.yaml").write_text("entries: [{user: alice, producer_byte_rate: 600}]")
    command = ("plan", "--quotas", "@q.yaml", "-c", "@proxy.yaml", "--out", "@plan.json")
    status, _, err = usage(folder, *command, "--by", name)
    assert (status, err.count("\n")) == (2, 1)
    assert "--by (or KAFKA_THROTTLE_ACTOR): expected a name of 1 to 256 printable characters, got" in err
    monkeypatch.setenv("KAFKA_THROTTLE_ACTOR", name)
    assert usage(folder, *command)[0] == 2
    assert not (folder / "plan.json").exists()


def test_no_jvm_and_no_spark_is_needed(folder):
    import subprocess
    import sys

    (folder / "q.yaml").write_text("entries: [{user: alice, producer_byte_rate: 600}]")
    code = (
        "import sys; sys.modules.update(dict.fromkeys(['pyspark', 'pandas', 'pyarrow', 'rich', 'jinja2']))\n"
        "from kafka_throttle.proxy.cli.main import main\nmain()"
    )
    command = [sys.executable, "-c", code, "usage", "plan", "--quotas", "q.yaml", "-c", "proxy.yaml"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, env=_environment())
    assert (done.returncode, done.stderr) == (0, "")
    assert "user=alice  producer_byte_rate     1,000       600     600" in done.stdout


def _environment(**others):
    return {**os.environ, "PYTHONPATH": str(ROOT), **others}


def applied_to(folder, stdout, **environment):
    import subprocess
    import sys

    (folder / "q.yaml").write_text("entries: [{user: łucja, producer_byte_rate: 600}]")
    assert usage(folder, "plan", "--quotas", "@q.yaml", "-c", "@proxy.yaml", "--out", "@plan.json")[0] == 0
    command = [sys.executable, "-m", "proxy", "usage", "apply", "plan.json", "-c", "proxy.yaml"]
    done = subprocess.run(
        command,
        cwd=folder,
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        env=_environment(**environment),
    )
    return done, [json.loads(line)["event"] for line in (folder / AUDIT).read_text().splitlines()]


def test_what_came_of_it_is_written_down_where_standard_output_takes_nothing(folder):
    with open("/dev/full", "w") as full:  # noqa: PTH123
        done, events = applied_to(folder, full)
    assert (done.returncode, events) == (0, ["intended", "applied"])
    assert done.stderr.endswith("standard output: not all could be written: No space left on device\n")


def test_a_name_that_the_terminal_cannot_show_is_escaped(folder):
    import subprocess

    done, events = applied_to(folder, subprocess.PIPE, PYTHONIOENCODING="latin-1")
    assert (done.returncode, events, done.stderr.count("Traceback")) == (0, ["intended", "applied"], 0)
    assert "user=\\u0142ucja" in done.stdout


def test_what_came_of_it_is_written_down_before_it_is_told(plan, monkeypatch):
    class Broken(io.StringIO):
        def write(self, text):
            raise BrokenPipeError

    monkeypatch.setattr("sys.stdout", Broken())
    monkeypatch.setattr("sys.stderr", Broken())
    assert job.main(plan, place_of(cluster_with_alice())) == 0
    assert len(audited(plan)) == 6


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("plan", "--quotas", "@q.yaml"), "expected one of --bootstrap-server, --zookeeper and --config, got none"),
        (("plan", "--quotas", "@q.yaml", "--bootstrap-server", "x"), "--bootstrap-server: expected HOST:PORT"),
        (("plan", "--quotas", "@q.yaml", "--zookeeper", "x:1", "-c", "y"), "got 2 of them"),
        (("plan", "--quotas", "@q.yaml", "--zookeeper", "x:1", "--command-config", "y"), "with --bootstrap-server"),
        (("plan", "--quotas", "@no.yaml", "-c", "@proxy.yaml"), "no.yaml: cannot be read: No such file"),
        (("plan", "--quotas", "@bad.yaml", "-c", "@proxy.yaml"), "bad.yaml: entries[0].producer_byte_rate: expected"),
        (("plan", "--quotas", "@empty.yaml", "-c", "@proxy.yaml", "--prune"), "expected at least one quota with"),
        (("plan", "--quotas", "@two.yaml", "-c", "@proxy.yaml"), "--virtual-cluster: expected a or b, got nothing"),
        (("plan", "--quotas", "@q.yaml", "-c", "@proxy.yaml", "--out", "@no/x"), "no/x: cannot be written"),
        (("plan", "--quotas", "@q.yaml", "-c", "@proxy.yaml", "--most-change", "1"), "1.0 is not in the range"),
        (("plan", "--quotas", "@q.yaml", "-c", "@proxy.yaml", "--most-change", "nan"), "expected a number, got 'nan'"),
        (
            ("plan", "--quotas", "@q.yaml", "-c", "@proxy.yaml", "--out", "@proxy.yaml"),
            "is there already, and is no plan",
        ),
        (("plan", "--quotas", "@q.yaml", "-c", "@proxy.yaml", "--out", "@q.yaml"), "is there already, and is no plan"),
        (
            ("plan", "--quotas", "@q.yaml", "-c", "@proxy.yaml", "--out", "@pipe"),
            "is there already, and is no plan",
        ),
        (("apply", "@no.json", "-c", "@proxy.yaml"), "no.json: cannot be read: No such file"),
        (("apply", "@q.yaml", "-c", "@proxy.yaml"), "q.yaml: line 1, column 1: no JSON"),
        (("plan", "--quotas", "@q.yaml", "--bootstrap-server", "h:1", "--command-config", "@no"), "no: cannot be read"),
    ],
)
def test_mistakes_are_told(folder, arguments, problem):
    (folder / "q.yaml").write_text("entries: [{user: alice, producer_byte_rate: 600}]")
    (folder / "bad.yaml").write_text("entries: [{user: alice, producer_byte_rate: fast}]")
    (folder / "empty.yaml").write_text("entries: []")
    (folder / "two.yaml").write_text("virtual_clusters: [{name: a}, {name: b}]")
    os.mkfifo(folder / "pipe")
    before = contents(folder)
    status, _, err = usage(folder, *arguments)
    assert status == 2
    assert problem in err
    assert contents(folder) == before


def contents(folder):
    return {path.name: path.is_file() and path.read_bytes() for path in folder.iterdir()}


def test_quotas_from_a_pipe_are_read_once(folder):
    content = b"entries: [{user: alice, producer_byte_rate: 600}]"
    reading, writing = os.pipe()
    os.write(writing, content)
    os.close(writing)
    status, _, _ = usage(folder, "plan", "--quotas", f"/dev/fd/{reading}", "-c", "@proxy.yaml", "--out", "@plan.json")
    os.close(reading)
    made = read_plan(folder / "plan.json").made
    assert (status, made.options["quotas"]) == (0, f"sha256:{hashlib.sha256(content).hexdigest()}")


def test_a_plan_and_an_empty_file_may_be_replaced(folder):
    (folder / "q.yaml").write_text("entries: [{user: alice, producer_byte_rate: 600}]")
    (folder / "plan.json").touch()
    for _ in range(2):
        assert usage(folder, "plan", "--quotas", "@q.yaml", "-c", "@proxy.yaml", "--out", "@plan.json")[0] == 0
        assert read_plan(folder / "plan.json").changes


@pytest.mark.parametrize("limit", [80.0, 79.0])
@pytest.mark.parametrize("name", ["plan.json", "link.json", "plan.rollback.json"])
def test_an_audit_is_not_written_into_a_plan(plan, name, limit):
    cluster = cluster_with_alice()
    job.main(plan, place_of(cluster))
    plan.with_name("link.json").hardlink_to(plan)
    before = plan.with_name(name).read_bytes()
    cluster = cluster_with_alice()
    cluster.quotas[ALICE]["producer_byte_rate"] = limit
    with pytest.raises(ValueError, match=r"expected another file for the audit than .*, which is a plan"):
        job.main(plan, place_of(cluster), audit=plan.with_name(name))
    assert plan.with_name(name).read_bytes() == before
    assert cluster.alterations == []


@pytest.mark.parametrize(
    "content", ["hosts: []\n", "{}\n", '{"at": "now"}\n', "[1]\n", "\n", "\xff\n", 70_000 * "[", '{"b'], ids=ascii
)
def test_an_audit_is_not_written_into_a_file_of_somebody_elses(plan, content):
    cluster, foreign = cluster_with_alice(), plan.with_name("foreign")
    foreign.write_text(content, encoding="latin-1")
    with pytest.raises(ValueError, match=f"{foreign}: expected a new file for the audit, or an audit"):
        job.main(plan, place_of(cluster), audit=foreign)
    assert foreign.read_text(encoding="latin-1") == content
    assert cluster.alterations == []


@pytest.mark.parametrize("content", ["", '{"at": "2026-11', '{"at', '{"at": "2026-11\n{"at": "now"'])
def test_an_audit_that_a_crash_has_cut_is_appended_to(plan, content):
    audit = plan.with_name("mine")
    audit.write_text(content)
    assert job.main(plan, place_of(cluster_with_alice()), audit=audit) == 0
    assert len(audit.read_text().removeprefix(content).split()) > 0
    assert job.main(plan, place_of(cluster_with_alice()), audit=audit) == 0, "its own audit"


def test_no_broker_is_one_line(folder):
    (folder / "q.yaml").write_text("entries: [{user: alice, producer_byte_rate: 600}]")
    status, out, err = usage(folder, "plan", "--quotas", "@q.yaml", "--bootstrap-server", "127.0.0.1:1")
    assert (status, out) == (1, "")
    assert err.startswith("127.0.0.1:1: ")
    assert err.endswith("(look at --bootstrap-server)\n")
    assert err.count("\n") == 1


def test_a_zookeeper_that_is_not_there_is_told_as_who_runs_a_command_needs_it(folder):
    (folder / "q.yaml").write_text("entries: [{user: alice, producer_byte_rate: 600}]")
    status, out, err = usage(folder, "plan", "--quotas", "@q.yaml", "--zookeeper", "127.0.0.1:1,127.0.0.1:2/kafka")
    assert (status, out) == (1, "")
    assert err.startswith("cannot read quotas from ZooKeeper at 127.0.0.1:1,127.0.0.1:2: ")
    assert "Connection refused (look at --zookeeper" in err
    assert "last good" not in err


@pytest.mark.parametrize(
    ("said", "reported"),
    [
        ("is gone; the last good quotas below it stay in force until it is made again", "is gone"),
        ("cannot be read: not allowed; the last good quotas below it stay in force", "cannot be read: not allowed"),
        ("no JSON; nothing is in force", "no JSON; nothing is in force"),
    ],
)
def test_what_a_proxy_goes_on_with_is_not_told_to_who_runs_a_command(said, reported):
    assert in_words_of_commands(said) == reported


def test_defaults_of_everything_are_planned(folder):
    entities = [{"default_user": True, "default_client_id": True}, {"default_user": True, "client_id": "x"}]
    entries = [{**entity, "request_percentage": 12.5} for entity in entities]
    (folder / "q.yaml").write_text(json.dumps([*entries, {"default_ip": True, "connection_creation_rate": 0}]))
    assert usage(folder, "plan", "--quotas", "@q.yaml", "-c", "@proxy.yaml", "--out", "@plan.json")[0] == 0
    changed = {change.entity for change in read_plan(folder / "plan.json").changes}
    assert changed == {Entity(DEFAULT, DEFAULT), Entity(DEFAULT, "x"), Entity(ip=DEFAULT)}
