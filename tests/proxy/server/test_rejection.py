"""When files that cannot be used are reported, and read again."""

import pytest

from kafka_throttle.proxy.config.settings import ListenerTlsConfig, UpstreamTlsConfig
from kafka_throttle.proxy.server.rejection import Rejection
from kafka_throttle.proxy.server.tls_material import CertificateFiles
from tests.support.certificates import Authority


def test_files_that_nothing_is_wrong_with_are_not_read_again():
    rejection = Rejection()
    assert not rejection.is_due(1e12)
    rejection.note(["wrong"], 0)
    rejection.forget()
    assert not rejection.is_due(1e12)


def test_what_is_wrong_is_reported_once_and_the_files_are_read_again_after_a_while():
    rejection = Rejection()
    assert rejection.note(["wrong"], 1_000)
    assert [rejection.is_due(now_ms) for now_ms in (1_000, 30_999, 31_000)] == [False, False, True]
    assert not rejection.note(["wrong"], 31_000)
    assert not rejection.is_due(60_999)
    assert rejection.is_due(61_000)
    assert rejection.note(["wrong in another way"], 61_000)


def test_after_a_change_the_same_is_reported_again():
    rejection = Rejection()
    assert rejection.note(["wrong"], 0)
    rejection.forget()
    assert rejection.note(["wrong"], 10)


@pytest.mark.parametrize("setting", ["certificate_file", "key_file", "key_password_file", "ca_file"])
@pytest.mark.parametrize("model", [ListenerTlsConfig, UpstreamTlsConfig], ids=["listener", "nodes"])
@pytest.mark.parametrize("what", ["mode", "another file", "gone and back"])
def test_each_file_of_a_section_is_watched_with_what_makes_it_usable(tmp_path, model, setting, what):
    authority = Authority(tmp_path)
    issued = authority.issue("localhost")
    (tmp_path / "password").write_text("secret")
    paths = {
        "certificate_file": issued.certificate_file,
        "key_file": issued.key_file,
        "key_password_file": tmp_path / "password",
        "ca_file": authority.file,
    }
    asked = {"client_auth": "required"} if model is ListenerTlsConfig else {}
    files = CertificateFiles(model.model_validate({name: str(path) for name, path in paths.items()} | asked))
    path = paths[setting]
    assert [files.changed(), files.changed()] == [False, False]
    before = path.stat().st_ctime_ns
    if what == "mode":
        while path.stat().st_ctime_ns == before:  # a tick of the file system's clock
            path.chmod(0o640)
    elif what == "another file":
        aside = path.with_suffix(".new")
        aside.write_bytes(path.read_bytes())
        aside.replace(path)
    else:
        path.rename(tmp_path / "elsewhere")
        assert [files.changed(), files.changed()] == [False, True]
        (tmp_path / "elsewhere").rename(path)
    assert [files.changed(), files.changed(), files.changed()] == [False, True, False]
