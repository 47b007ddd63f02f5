"""What was measured on, and which versions of what."""

import os
import platform
import re
import subprocess
from importlib.metadata import version
from pathlib import Path

from tests.bench.processes import find_tool
from tests.support.places import ROOT

Facts = dict[str, str | int]


def facts() -> Facts:
    """The machine (processor, cores, kernel, TCP) and the versions of everything that takes part."""
    return {
        "processor": _first(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text()),
        "cores": os.cpu_count() or 0,
        "memory_mib": int(_first(r"MemTotal:\s*(\d+)", Path("/proc/meminfo").read_text())) // 1024,
        "virtual": "yes" if "hypervisor" in Path("/proc/cpuinfo").read_text() else "no",
        "kernel": platform.release(),
        "congestion_control": Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text().strip(),
        "system": platform.freedesktop_os_release().get("PRETTY_NAME", "unknown"),
        "python": platform.python_version(),
        "uvloop": version("uvloop"),
        "haproxy": _first(r"version (\S+)", _printed("haproxy", "-v")),
        "nginx": _first(r"nginx/(\S+)", _printed("nginx", "-v")),
        "compiler": _printed("cc", "--version").partition("\n")[0],
        "commit": _printed("git", "-C", str(ROOT), "describe", "--always", "--dirty").strip(),
    }


def sentence(found: Facts) -> str:
    """The facts in one line, for under a table."""
    virtual = "virtual machine" if found["virtual"] == "yes" else "machine"
    return (
        f"{found['processor']}, {found['cores']} cores, {virtual}; Linux {found['kernel']}, "
        f"{found['congestion_control']}; Python {found['python']}, uvloop {found['uvloop']}; "
        f"HAProxy {found['haproxy']}; nginx {found['nginx']}."
    )


def _first(pattern: str, text: str) -> str:
    match = re.search(pattern, text)
    return match[1].strip() if match else "unknown"


def _printed(program: str, *arguments: str) -> str:
    path = find_tool(program)
    if path is None:
        return "missing"
    done = subprocess.run([path, *arguments], capture_output=True, text=True, timeout=20)
    return done.stdout + done.stderr if not done.returncode else "unknown"
