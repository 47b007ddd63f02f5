"""The images that the Dockerfile makes: built by buildah, run with a read-only root as the user that they name.

No container engine is needed, but root is. The base image is made of Debian's packages, as no registry of images can be
reached from everywhere; it stands under the name that the Dockerfile asks for.
"""

import contextlib
import json
import os
import re
import shlex
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from demo.kafka_cluster import KafkaCluster
from tests.integration.proxy_process import ProxyProcess
from tests.pipeline.spools import Fleet, records, write_spool
from tests.support.places import ROOT
from tests.test_release import produces

pytestmark = [pytest.mark.nightly, pytest.mark.kafka]

DOCKERFILE = (ROOT / "Dockerfile").read_text()
BASE = next(iter(re.findall(r"^FROM (\S+:\S+) AS build$", DOCKERFILE, re.M)))
PACKAGES = "python3,python3-dev,python3-venv,python3-pip,ca-certificates"
CERTIFICATES = Path("/etc/ssl/certs")
"""This machine's, which may know an authority of its own."""
MOUNTED = Path("/opt/certificates-of-the-machine")


@pytest.fixture(scope="module")
def buildah(tmp_path_factory):
    """Runs buildah, with its files in a folder of the test's."""
    for tool in ("buildah", "debootstrap"):
        assert shutil.which(tool), f"{tool} is missing: apt-get install buildah debootstrap"
    assert os.geteuid() == 0, "images are built as root here"
    folder = tmp_path_factory.mktemp("images")

    def run(*arguments: Path | str, fails: bool = False) -> str:
        where = ["--root", folder / "root", "--runroot", folder / "run", "--storage-driver", "vfs"]
        done = subprocess.run(["buildah", *where, *arguments], capture_output=True, text=True)
        assert (done.returncode != 0) == fails, f"{arguments}: {done.stdout[-3000:]}{done.stderr[-3000:]}"
        return f"{done.stdout}{done.stderr}" if fails else done.stdout.strip()

    return run


@pytest.fixture(scope="module")
def base(buildah, tmp_path_factory) -> None:
    """A Python on Debian under the name of the Dockerfile's base."""
    folder = tmp_path_factory.mktemp("base") / "root"
    command = ["debootstrap", "--variant=minbase", f"--include={PACKAGES}", "bookworm", folder]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:]
    (folder / "usr/local/bin/python").symlink_to("/usr/bin/python3")
    container = buildah("from", "scratch")
    buildah("add", "--quiet", container, folder, "/")
    bundle = f"{MOUNTED}/ca-certificates.crt"
    java = f"-Djavax.net.ssl.trustStore={MOUNTED}/java/cacerts"
    for variable in (f"PIP_CERT={bundle}", f"MAVEN_OPTS={java}"):
        buildah("config", "--env", variable, container)
    buildah("commit", "--quiet", container, f"docker.io/library/{BASE}")
    buildah("rm", container)
    shutil.rmtree(folder)


def build(buildah, name: str, *options: Path | str, fails: bool = False) -> str:
    own = ["--isolation", "chroot", "--network", "host", "--pull-never", "--volume", f"{CERTIFICATES}:{MOUNTED}:ro"]
    return buildah("bud", "--quiet", "--format", "docker", *own, "--tag", name, *options, ROOT, fails=fails)


@dataclass(frozen=True)
class Image:
    """One that is built, and mounted."""

    root: Path
    config: dict

    @property
    def user(self) -> str:
        return self.config["User"]

    def command(self, *command: str, mounts: dict[str, Path] | None = None) -> list[str]:
        """A command line that runs in the image as its user, and can write to what is mounted only."""
        root = shlex.quote(str(self.root))
        steps = [f"mount --bind {root} {root}", f"mount -t proc proc {root}/proc", f"mount --rbind /dev {root}/dev"]
        for file in ("/etc/hosts", "/etc/resolv.conf"):  # every engine does this
            steps += [f"touch {root}{file}", f"mount --bind {file} {root}{file}"]
        for target, source in (mounts or {}).items():
            steps += [f"mkdir -p {root}{target}", f"mount --bind {shlex.quote(str(source))} {root}{target}"]
        inside = ["env", "-i", *self.config["Env"], *command]
        steps += [
            f"mount -o remount,bind,ro {root}",
            f"cd {root}{self.config['WorkingDir']}",
            f"exec chroot --userspec={self.user} {root} {shlex.join(inside)}",
        ]
        return ["unshare", "--mount", "sh", "-ec", "\n".join(steps)]

    def run(self, *command: str, mounts: dict[str, Path] | None = None) -> str:
        done = subprocess.run(self.command(*command, mounts=mounts), capture_output=True, text=True)
        assert done.returncode == 0, f"{command}: {done.stdout[-3000:]}{done.stderr[-3000:]}"
        return done.stdout


@contextlib.contextmanager
def mounted(buildah, name: str) -> Iterator[Image]:
    container = buildah("from", "--pull-never", name)
    config = json.loads(buildah("inspect", "--type", "image", name))["Docker"]["config"]
    try:
        yield Image(Path(buildah("mount", container)), config)
    finally:
        buildah("rm", container)


def owned(folder: Path, user: str) -> Path:
    folder.mkdir()
    os.chown(folder, *map(int, user.split(":")))
    return folder


class InImage(ProxyProcess):
    """A proxy of an image."""

    def __init__(self, *arguments, image: Image, state: Path, **settings) -> None:
        super().__init__(*arguments, **settings)
        self._image, self._state = image, state

    def command(self):
        folder = self.config_path.parent
        folder.chmod(0o755)
        self.config_path.chmod(0o644)
        program = [*self._image.config["Entrypoint"], *self._image.config["Cmd"]]
        return self._image.command(
            *program, mounts={"/etc/kafka-throttle": folder, "/var/lib/kafka-throttle": self._state}
        )


def test_the_image_is_compiled_and_serves_with_a_read_only_root_as_nobody_special(buildah, base, tmp_path):
    begin = time.monotonic()
    build(buildah, "kafka-throttle")
    print(f"built in {time.monotonic() - begin:.0f} s")
    with mounted(buildah, "kafka-throttle") as image:
        assert re.fullmatch(r"[1-9]\d+:[1-9]\d+", image.user)
        assert image.run("kafka-throttle", "--version").strip().endswith(", compiled")
        assert image.run("id", "-u").strip() == image.user.partition(":")[0]
        refused = subprocess.run(image.command("touch", "/etc/kafka-throttle/file"), capture_output=True, text=True)
        assert "Read-only file system" in refused.stderr
        state = owned(tmp_path / "state", image.user)
        source = {"source": {"state_file": "/var/lib/kafka-throttle/quotas.json"}}
        with KafkaCluster(nodes=1) as kafka, InImage(kafka, image=image, state=state, **source) as proxy:
            url = f"http://{proxy.host}:{proxy.metrics_port}/livez"
            kind, *check = image.config["Healthcheck"]["Test"]
            assert kind == "CMD"
            image.run("env", f"HEALTH_URL={url}", *check)
            produces(proxy.bootstrap)
            assert proxy.terminate() == 0
        dead = subprocess.run(image.command("env", f"HEALTH_URL={url}", *check), capture_output=True)
        assert dead.returncode == 1


def test_an_image_that_cannot_be_compiled_is_not_built(buildah, base, tmp_path):
    file = tmp_path / "Dockerfile"
    file.write_text(re.sub(r" gcc libc6-dev ", " ", DOCKERFILE, count=1))
    said = build(buildah, "not-compiled", "--file", file, fails=True)
    assert "the wheel is pure Python" in said


def test_the_image_of_the_pipeline_ingests_a_spool(buildah, base, tmp_path):
    build(buildah, "kafka-throttle-pipeline", "--target", "pipeline")
    spool = tmp_path / "spool"
    write_spool(spool, records(Fleet(entities=20), 2_000))
    with mounted(buildah, "kafka-throttle-pipeline") as image:
        work, temporary = owned(tmp_path / "work", image.user), owned(tmp_path / "temporary", image.user)
        mounts = {"/spool": spool, "/var/lib/kafka-throttle": work, "/tmp": temporary}
        table = "/var/lib/kafka-throttle/table"
        said = image.run("kafka-throttle", "usage", "ingest", "--from", "/spool", "--table", table, mounts=mounts)
        gaps = image.run("kafka-throttle", "usage", "gaps", "--table", table, mounts=mounts)
    assert "2,000 records new" in said
    assert "no record is missing" in gaps
