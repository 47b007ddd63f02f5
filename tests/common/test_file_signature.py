from kafka_throttle.common.file_signature import signature


def test_a_file_of_the_same_size_that_takes_the_place_of_another_is_noticed(tmp_path):
    file, other = tmp_path / "file", tmp_path / "other"
    file.write_text("a")
    other.write_text("b")
    before = signature(file)
    assert before == signature(file)
    other.replace(file)
    assert signature(file) != before


def test_a_file_that_may_be_read_now_is_noticed(tmp_path):
    file = tmp_path / "file"
    file.write_text("a")
    file.chmod(0)
    before = signature(file)
    file.chmod(0o600)
    assert signature(file) != before


def test_a_file_that_is_gone_has_no_signature(tmp_path):
    assert signature(tmp_path / "none") is None
