"""The Helm chart: rendered in both modes, and what is rendered read by Kubernetes' own types and by the proxy."""

import json
import re

import pytest

from kafka_throttle.common.yaml_file import parse_yaml
from kafka_throttle.proxy.config.load import config_of
from tests.deploy.tools import CHART, DEPLOY, helm, passes
from tests.support.go_program import go_program

MODES = ["ports", "sni"]
RELEASE = "test"
NAME = f"{RELEASE}-kafka-throttle"
_DOCUMENT = re.compile(r"^---\n", re.M)

pytestmark = pytest.mark.nightly


def rendered(mode, *arguments):
    """The text that `helm template` makes of the chart."""
    return passes(helm(), "template", RELEASE, CHART, "--namespace", "kafka", *given(mode), *arguments)


def given(mode):
    """The arguments for the values of a mode. A helm that was built by hand believes to be of Kubernetes 1.20."""
    return ["--values", CHART / "ci" / f"{mode}-values.yaml", "--kube-version", "1.30.0"]


def manifests(mode, *arguments):
    """The manifests by kind and name."""
    documents = [parse_yaml(text, "manifest") for text in _DOCUMENT.split(rendered(mode, *arguments))]
    return {(each["kind"], each["metadata"]["name"]): each for each in documents if each}


def deployment(made):
    return made["Deployment", NAME]["spec"]["template"]["spec"]


def config(made):
    text = made["ConfigMap", NAME]["data"]["proxy.yaml"]
    return config_of(parse_yaml(text, "proxy.yaml"))


@pytest.mark.parametrize("mode", MODES)
def test_helm_has_nothing_to_say(mode):
    said = passes(helm(), "lint", "--strict", CHART, *given(mode))
    assert "1 chart(s) linted, 0 chart(s) failed" in said
    assert "[WARNING]" not in said


@pytest.mark.parametrize(
    ("mode", "kinds"),
    [
        (
            "ports",
            ["PodDisruptionBudget", "ConfigMap", "ConfigMap", "Service", "Service", "Deployment"]
            + ["ServiceMonitor", "PrometheusRule", "CronJob"],
        ),
        ("sni", ["PodDisruptionBudget", "ConfigMap", "Service", "Service", "Deployment"]),
    ],
)
def test_kubernetes_knows_every_field(mode, kinds):
    assert sorted(passes(go_program("manifests"), given=rendered(mode)).split()) == sorted(kinds)


def test_an_unknown_field_would_be_found():
    text = rendered("sni").replace("terminationGracePeriodSeconds:", "terminationGracePeriod:")
    with pytest.raises(AssertionError, match="terminationGracePeriod"):
        passes(go_program("manifests"), given=text)


def test_in_the_mode_ports_each_node_has_a_port_and_the_service_has_them_all():
    made = manifests("ports")
    [cluster] = config(made).virtual_clusters
    [listener] = cluster.listeners
    assert listener.ports() == {1: 19093, 2: 19094, 3: 19095, 1001: 19096}
    assert list(listener.spares()) == [19097, 19098]
    ports = [listener.port, *listener.ports().values(), *listener.spares()]
    assert [port["port"] for port in made["Service", NAME]["spec"]["ports"]] == ports
    [container] = deployment(made)["containers"]
    assert {port["name"]: port["containerPort"] for port in container["ports"]} == {
        "kafka": 19092,
        **{f"node-{i}": port for i, port in enumerate(ports[1:])},
        "metrics": 9404,
    }
    assert listener.advertised_host == f"{NAME}.kafka.svc"
    assert cluster.quotas.instances == 2
    assert cluster.throttle.max_throttle_ms == 15000


def test_two_proxies_divide_quotas_by_a_topic_unless_they_are_told_otherwise():
    def fleet(*arguments):
        [cluster] = config(manifests("ports", *arguments)).virtual_clusters
        return cluster.fleet

    assert fleet().topic == "__kafka_throttle_claims_main"
    assert fleet("--set", "virtualCluster.name=orders").topic == "__kafka_throttle_claims_orders"
    assert fleet("--set", "divideQuotas=false") is None
    assert fleet("--set", "replicaCount=1") is None
    by_zookeeper = fleet("--set-json", 'virtualCluster.fleet={"zookeeper": {"servers": ["zk:2181"]}}')
    assert (by_zookeeper.topic, list(map(str, by_zookeeper.zookeeper.servers))) == (None, ["zk:2181"])


def test_the_login_and_the_authority_are_of_existing_secrets():
    made = manifests("ports")
    upstream = config(made).virtual_clusters[0].upstream
    folder = "/secrets"
    assert upstream.admin.password_file == f"{folder}/kafka-throttle-login/password"
    assert upstream.admin.ca_file == upstream.tls.ca_file == f"{folder}/kafka-ca/ca.crt"
    mounted = {volume["secret"]["secretName"] for volume in deployment(made)["volumes"] if "secret" in volume}
    assert mounted == {"kafka-throttle-login", "kafka-ca", "more"}


def test_in_the_mode_sni_there_is_one_port_with_a_certificate():
    made = manifests("sni")
    [cluster] = config(made).virtual_clusters
    [listener] = cluster.listeners
    assert [port["port"] for port in made["Service", NAME]["spec"]["ports"]] == [9093]
    assert listener.advertised_node_host == "b{node_id}.kafka.example.com"
    assert listener.tls.certificate_file == "/secrets/kafka-throttle-tls/tls.crt"
    assert (cluster.quotas.source, cluster.quotas.state_file) == ("upstream", "/var/lib/kafka-throttle/quotas.json")


@pytest.mark.parametrize("mode", MODES)
def test_a_pod_has_the_time_that_the_proxy_needs_to_end(mode):
    made = manifests(mode, "--set", "drain.lameDuckSeconds=7", "--set", "drain.drainSeconds=100")
    settings = config(made)
    assert (settings.drain.lame_duck_s, settings.limits.drain_s) == (7, 100)
    assert deployment(made)["terminationGracePeriodSeconds"] > 7 + 100 + 30


@pytest.mark.parametrize("mode", MODES)
def test_a_pod_is_not_root_and_writes_only_to_its_volumes(mode):
    pod = deployment(manifests(mode))
    [container] = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"]
    assert "--uid 10001" in (DEPLOY.parent / "Dockerfile").read_text()
    assert pod["securityContext"]["runAsUser"] == 10001
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    volumes = {volume["name"] for volume in pod["volumes"]}
    assert {mount["name"] for mount in container["volumeMounts"]} == volumes


def night(made):
    """The job of the pipeline, and its pod."""
    job = made["CronJob", f"{NAME}-nightly"]["spec"]["jobTemplate"]["spec"]
    return job, job["template"]


def test_the_pipeline_of_the_night_has_the_settings_that_its_script_reads():
    _, pod = night(manifests("ports"))
    [container] = pod["spec"]["containers"]
    settings = {each["name"]: each["value"] for each in container["env"]}
    script = (DEPLOY / "nightly.sh").read_text()
    of_image = {"NIGHTLY_TABLE", "NIGHTLY_OUT"}
    assert settings.keys() | of_image == set(re.findall(r"NIGHTLY_\w+", script))
    assert settings["NIGHTLY_INGEST"].startswith("--from-topic kafka-throttle-usage --bootstrap-server ")
    assert settings["NIGHTLY_PLAN"] == ""
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    image = (DEPLOY.parent / "Dockerfile").read_text()
    for name in of_image:
        [path] = re.findall(rf"{name}=(\S+)", image)
        assert path.startswith(f"{mounts['data']}/")
    assert mounts["secret-prices"] == "/secrets/prices"
    assert {volume["name"] for volume in pod["spec"]["volumes"]} == mounts.keys()
    assert {"name": "data", "persistentVolumeClaim": {"claimName": "usage"}} in pod["spec"]["volumes"]


def test_the_pipeline_of_the_night_is_tried_again_unless_records_are_missing_and_has_no_clients():
    made = manifests("ports")
    job, pod = night(made)
    [rule] = job["podFailurePolicy"]["rules"]
    assert (rule["action"], rule["onExitCodes"]) == ("FailJob", {"operator": "In", "values": [1, 3]})
    assert pod["spec"]["restartPolicy"] == "Never"  # which a policy for failures needs
    for kind, name in (("Service", NAME), ("Service", f"{NAME}-metrics")):
        assert not made[kind, name]["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    proxy = deployment(made)
    assert pod["spec"]["securityContext"] == proxy["securityContext"]
    assert pod["spec"]["containers"][0]["securityContext"] == proxy["containers"][0]["securityContext"]


def test_changed_quotas_leave_the_pods_and_other_changes_replace_them():
    def checksum(*arguments):
        made = manifests("ports", *arguments)
        return made["Deployment", NAME]["spec"]["template"]["metadata"]["annotations"]["checksum/config"]

    assert checksum("--set-json", 'quotas.entries=[{"user": "me", "producer_byte_rate": 1}]') == checksum()
    assert checksum("--set", "upstream.username=other") != checksum()


def test_what_selects_pods_selects_these():
    made = manifests("ports")
    labels = made["Deployment", NAME]["spec"]["template"]["metadata"]["labels"].items()
    selectors = [
        made["Deployment", NAME]["spec"]["selector"]["matchLabels"],
        made["PodDisruptionBudget", NAME]["spec"]["selector"]["matchLabels"],
        made["Service", NAME]["spec"]["selector"],
        made["Service", f"{NAME}-metrics"]["spec"]["selector"],
    ]
    assert all(selector.items() <= labels for selector in selectors)
    wanted = made["ServiceMonitor", NAME]["spec"]["selector"]["matchLabels"].items()
    services = [each["metadata"] for (kind, _), each in made.items() if kind == "Service"]
    matching = [service["name"] for service in services if wanted <= service["labels"].items()]
    assert matching == [f"{NAME}-metrics"]


def test_alerts_and_dashboards_are_those_of_the_other_folders():
    made = manifests("ports")
    alerts = parse_yaml((DEPLOY / "prometheus" / "alerts.yaml").read_text(), "alerts.yaml")
    assert made["PrometheusRule", NAME]["spec"] == alerts
    for name in ("fleet", "tenant"):
        text = made["ConfigMap", f"{NAME}-dashboards"]["data"][f"kafka-throttle-{name}.json"]
        assert json.loads(text) == json.loads((DEPLOY / "grafana" / f"{name}.json").read_text())


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--set", "upstream.bootstrapServers=null"], "bootstrapServers"),
        (["--set", "listener.mode=sni"], "listener.advertisedNodeHost"),
        (["--set", "listener.mod=sni"], "mod"),
        (["--set", "nightly.ingest="], "nightly.ingest: where the records come from"),
        (["--set", "nightly.ingst=x"], "ingst"),
    ],
)
def test_values_that_make_no_proxy_are_refused(arguments, problem):
    with pytest.raises(AssertionError, match=problem):
        rendered("ports", *arguments)


def test_a_table_that_would_end_with_its_pod_is_refused():
    with pytest.raises(AssertionError, match="dataVolume: where the table stays"):
        rendered("sni", "--set", "nightly.enabled=true", "--set", "nightly.ingest=x")
