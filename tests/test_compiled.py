"""The build that mypyc compiles: what its modules must not contain, when it is taken, and that it passes the tests."""

import ast
import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
import time
import traceback
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

from deploy.compile import MODULES, _prune, all_sources, sources
from kafka_throttle.proxy.installed import LIST_OF_HASHES, compiled_modules
from kafka_throttle.quotas.sensors.windowed_rate import Sensors, StaleSensor
from tests.support.places import ROOT

COMPILED = "KAFKA_THROTTLE_COMPILED"
FAST = (
    "tests/protocol",
    "tests/proxy",
    "tests/quotas",
    "tests/relay",
    "tests/simulation",
    "tests/test_compiled.py",
)


# ---- what mypyc 2.4 does otherwise than Python ---------------------------------------------------


def slices_with_calls(source):
    """The lines of slices with a call in a bound. For many types mypyc makes the call twice."""
    bounds = (
        (node.lineno, bound)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Slice)
        for bound in (node.lower, node.upper)
        if bound is not None
    )
    calls = (ast.Call, ast.NamedExpr)
    return [line for line, bound in bounds if any(isinstance(node, calls) for node in ast.walk(bound))]


def generators_kept(source):
    """The lines of generator expressions that are not the argument of a call. mypyc makes lists of them, at once."""
    tree = ast.parse(source)
    consumed = {id(argument) for node in ast.walk(tree) if isinstance(node, ast.Call) for argument in node.args}
    return [node.lineno for node in ast.walk(tree) if isinstance(node, ast.GeneratorExp) and id(node) not in consumed]


def test_what_is_compiled_otherwise_is_found():
    assert slices_with_calls("a = view[: read()]\nb = view[at : at + size]\nc = view[len(head) + 1 :]") == [1, 3]
    assert generators_kept("a = sum(x for x in y)\nb = (x for x in y)\ndef f(): return (x for x in y)") == [2, 3]


@pytest.mark.parametrize("file", sources(), ids=str)
def test_what_is_compiled_otherwise_is_not_written(file):
    source = (ROOT / file).read_text()
    assert (slices_with_calls(source), generators_kept(source)) == ([], [])


def test_an_error_says_in_which_file_and_line_it_was_raised():
    """In compiled code too."""
    with pytest.raises(StaleSensor) as raised:
        Sensors(1).charge(1, 1.0, 0)
    last = traceback.extract_tb(raised.value.__traceback__)[-1]
    file = ROOT / Path(*Path(last.filename).parts[-3:])
    assert file == ROOT / "quotas" / "sensors" / "windowed_rate.py"
    assert file.read_text().splitlines()[last.lineno - 1].strip() == "raise StaleSensor(handle)"


# ---- which build is taken -------------------------------------------------------------------------

MODULE = Path("kafka_throttle", "quotas", "sensors", "windowed_rate.py")


TAKE = "from kafka_throttle.proxy.installed import *; take_build()"


def told(code, **environment):
    """What a process writes on stdout and stderr that takes the build of this environment, then runs the code."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("KAFKA_THROTTLE_")}
    command = [sys.executable, "-c", f"{TAKE}; {code}"]
    done = subprocess.run(command, cwd=ROOT, env=inherited | environment, capture_output=True, text=True, check=True)
    return done.stdout.strip(), done.stderr


def taken(**environment):
    """The build that a process takes in this environment, and what it writes on stderr."""
    return told("print(build_in_use())", **environment)


COMPILED_MODULE = MODULE.with_suffix(EXTENSION_SUFFIXES[0])


@pytest.fixture
def directory(tmp_path):
    """Looks as if it was compiled. No test imports its module."""
    module = tmp_path / COMPILED_MODULE
    module.parent.mkdir(parents=True)
    module.write_bytes(b"code")
    listed = {MODULE: ROOT / MODULE, COMPILED_MODULE: module}
    lines = [f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {path}\n" for path, file in listed.items()]
    (tmp_path / LIST_OF_HASHES).write_text("".join(lines))
    return tmp_path


def test_from_sources_pure_python_runs_unless_compiled_modules_are_named(directory):
    assert taken() == ("pure", "")
    assert taken(**{COMPILED: ""}) == ("pure", "")
    assert taken(**{COMPILED: str(directory)}) == ("compiled", "")
    assert taken(**{COMPILED: str(directory)}, KAFKA_THROTTLE_PURE="1") == ("pure", "")


def without(directory):
    (directory / LIST_OF_HASHES).unlink()


def with_list(content):
    return lambda directory: (directory / LIST_OF_HASHES).write_bytes(content)


def with_module(content):
    return lambda directory: (directory / COMPILED_MODULE).write_bytes(content)


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (without, "No such file"),
        (with_list(b""), "names no module for this Python"),
        (with_list(b"\n"), "values to unpack"),
        (with_list(b"\xff"), "codec can't decode"),
        (with_list(f"{'0' * 64}  {MODULE}\n".encode()), f"{MODULE};"),
        (with_module(b"cod"), f"{COMPILED_MODULE};"),
        (lambda directory: (directory / COMPILED_MODULE).unlink(), "No such file"),
        (lambda directory: shutil.rmtree(directory), "No such file"),
    ],
)
def test_a_directory_that_is_broken_or_of_other_sources_is_not_taken(directory, spoil, said):
    spoil(directory)
    build, reported = taken(**{COMPILED: str(directory)})
    assert build == "pure"
    assert reported.startswith(f"{directory} has no compiled modules of these sources: ")
    assert said in reported
    assert reported.endswith("; pure Python runs\n")


def test_what_is_not_listed_is_not_taken(directory):
    unlisted = directory / "kafka_throttle" / "proxy" / "cli" / f"main{EXTENSION_SUFFIXES[0]}"
    unlisted.parent.mkdir(parents=True)
    unlisted.touch()
    assert list(compiled_modules(directory)) == ["kafka_throttle.quotas.sensors.windowed_rate"]


def test_the_sources_of_constants_count_although_they_are_not_compiled():
    of_constants = {Path("kafka_throttle", "protocol", "api.py"), Path("kafka_throttle", "quotas", "limits.py")}
    assert of_constants <= set(all_sources()) - set(sources())


def test_without_a_compiler_nothing_is_compiled(tmp_path):
    for tool in ("bash", "dirname"):
        (tmp_path / tool).symlink_to(shutil.which(tool))
    done = subprocess.run([ROOT / "deploy/compiled.sh"], env={"PATH": str(tmp_path)}, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")
    assert "no C compiler is here" in done.stderr


def test_a_module_that_does_not_compile_is_an_error_and_no_pure_build(tmp_path):
    folder = tmp_path / "deploy"
    folder.mkdir()
    shutil.copy(ROOT / "deploy/compiled.sh", folder)
    (folder / "setup.sh").write_text(f"#!/bin/sh\necho {sys.executable}\n")
    (folder / "setup.sh").chmod(0o755)
    (folder / "compile.py").write_text("raise SystemExit('quotas/limits.py:3: error: float, expected int')")
    done = subprocess.run([folder / "compiled.sh"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "")
    assert "quotas/limits.py:3: error" in done.stderr


def test_of_the_compiled_modules_in_the_cache_the_last_ones_stay(tmp_path):
    ages_s = {"a": 90_000, "b": 80_000, "c": 70_000, "d": 60_000, "e": 50_000, "f": 40_000, "g": 10}
    for name, age_s in ages_s.items():
        (tmp_path / f"compiled-{name}").mkdir()
        (tmp_path / f"compiled-{name}" / "module.so").touch()
        os.utime(tmp_path / f"compiled-{name}", (time.time() - age_s,) * 2)
    (tmp_path / "compiled.lock").touch()
    (tmp_path / "python-dev-a").mkdir()
    _prune(tmp_path)
    left = [f"compiled-{name}" for name in "cdefg"]
    assert sorted(path.name for path in tmp_path.iterdir()) == [*left, "compiled.lock", "python-dev-a"]


def test_what_was_used_within_the_hour_stays_in_the_cache(tmp_path):
    for number in range(9):
        (tmp_path / f"compiled-{number}").mkdir()
    _prune(tmp_path)
    assert len(list(tmp_path.iterdir())) == 9


@pytest.mark.nightly
@pytest.mark.parametrize("sanitized", [False, True])
def test_streams_of_the_pure_build_pass_with_the_sweep_in_c(tmp_path, sanitized):
    """With AddressSanitizer and UndefinedBehaviorSanitizer too, which end the process at the first fault."""
    module = tmp_path / "kafka_throttle" / "proxy" / "net" / f"_sweep{EXTENSION_SUFFIXES[0]}"
    module.parent.mkdir(parents=True)
    flags = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"] if sanitized else []
    warnings = ["-Wall", "-Wextra", "-Werror", "-Wno-unused-parameter", "-Wno-missing-field-initializers"]
    options = [*flags, *warnings, "-Wno-cast-function-type", "-g", "-O1", "-fPIC", "-shared"]
    include = f"-I{sysconfig.get_path('include')}"
    subprocess.run(["cc", *options, include, ROOT / "proxy/net/_sweep.c", "-o", module], check=True)
    digest = hashlib.sha256(module.read_bytes()).hexdigest()
    (tmp_path / LIST_OF_HASHES).write_text(f"{digest}  {module.relative_to(tmp_path)}\n")
    environment = os.environ | {COMPILED: str(tmp_path), "KAFKA_THROTTLE_PURE": ""}
    if sanitized:
        asked = ["cc", "-print-file-name=libasan.so"]
        library = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
        environment |= {"LD_PRELOAD": library, "ASAN_OPTIONS": "detect_leaks=0", "PYTHONMALLOC": "malloc"}
    files = [
        "test_sweep.py",
        "test_many_streams.py",
        "test_stream.py",
        "test_stream_batches.py",
        "test_poller.py",
        "test_tls_stream.py",
    ]
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        *(f"tests/proxy/net/{name}" for name in files),
    ]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, f"{done.stdout[-5000:]}{done.stderr[-5000:]}"
    assert "deselected" not in done.stdout  # the sweep was there


def compiled_by_the_script():
    done = subprocess.run([ROOT / "deploy/compiled.sh"], stdout=subprocess.PIPE, text=True)
    assert done.returncode == 0
    return done.stdout.strip()


def test_all_modules_compile_and_load():
    directory = compiled_by_the_script()
    assert taken(**{COMPILED: directory}) == ("compiled", "")
    files = f"import sys, {', '.join(MODULES)}; print(*(sys.modules[name].__file__ for name in {MODULES}), sep='\\n')"
    loaded, said = told(files, **{COMPILED: directory})
    assert said == ""
    assert [file for file in loaded.splitlines() if not file.endswith(EXTENSION_SUFFIXES[0])] == []


@pytest.mark.nightly
def test_the_fast_tests_pass_when_compiled():
    directory = compiled_by_the_script()
    assert taken(**{COMPILED: directory}) == ("compiled", "")
    fast = "not nightly and not kafka and not spark and not exclusive"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "2", "-m", fast, *FAST]
    done = subprocess.run(command, cwd=ROOT, env=os.environ | {COMPILED: directory}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-5000:]
