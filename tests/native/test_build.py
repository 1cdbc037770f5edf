"""How the library is built: by which compiler, of what, and what is said where it cannot be."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from sargnn.native import build
from tests.processes import ROOT, run_command, search_path

needs_ziglang = pytest.mark.skipif(not importlib.util.find_spec("ziglang"), reason="the Python package ziglang is missing")
NAMES = build.names_here()


@pytest.fixture(autouse=True)
def _no_compiler_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CXX", raising=False)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Sources that compile at once, in a folder without a checkout's files."""
    sources = tmp_path / "package" / "native" / "src"
    sources.mkdir(parents=True)
    (sources / "border.hpp").write_text('#define OPEN extern "C" __attribute__((visibility("default")))\n')
    (sources / "one.cpp").write_text('#include "border.hpp"\nOPEN int sargnn_one() { return 1; }\n')
    (sources / "two.cpp").write_text('#include "border.hpp"\nOPEN int sargnn_two() { return 2; }\n')
    monkeypatch.setattr(build, "SOURCES", sources)
    return sources


def _has_compiler() -> bool:
    return any(not compiler.zig for compiler in build._candidates())


needs_compiler = pytest.mark.skipif(not _has_compiler(), reason="no compiler is on the path")
needs_readelf = pytest.mark.skipif(shutil.which("readelf") is None, reason="readelf is missing")


def _needed(path: Path) -> set[str]:
    done = subprocess.run(["readelf", "--dynamic", str(path)], capture_output=True, text=True, check=True)
    return {line.partition("[")[2].rstrip("]") for line in done.stdout.splitlines() if "(NEEDED)" in line}


@needs_readelf
@pytest.mark.parametrize("name", NAMES)
def test_a_library_needs_libc_alone(name: str) -> None:
    """Of any C++ compiler's own libraries none may be there."""
    allowed = ("libc.so", "libm.so", "libpthread.so", "ld-linux")
    assert all(needed.startswith(allowed) for needed in _needed(build.library_path(name)))


def test_what_is_installed_is_built() -> None:
    assert NAMES and all(map(build.is_built, NAMES))


@needs_compiler
def test_a_change_compiles_what_changed(small: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    compiled: list[str] = []
    run = build._run

    def counted(command: list[str], temporary: str) -> None:
        compiled.extend(Path(part).stem for part in command if part.endswith(".cpp"))
        run(command, temporary)

    monkeypatch.setattr(build, "_run", counted)
    (small.parents[2] / "pyproject.toml").touch()  # a checkout
    folder = tmp_path / "lib"

    def built() -> list[str]:
        compiled.clear()
        build.build(NAMES[:1], folder)
        return sorted(set(compiled) - {"stamp"})

    assert not build.is_built(NAMES[0], folder)
    assert built() == ["one", "two"] and build.is_built(NAMES[0], folder)
    assert built() == []
    (small / "two.cpp").write_text((small / "two.cpp").read_text().replace("2", "3"))
    assert not build.is_built(NAMES[0], folder)
    assert built() == ["two"]
    (small / "border.hpp").write_text((small / "border.hpp").read_text() + "\n")
    assert built() == ["one", "two"]
    assert len(list((folder / "objects").iterdir())) == 3  # those of before are gone


@needs_compiler
def test_objects_are_kept_in_a_checkout_only(small: Path, tmp_path: Path) -> None:
    build.build(NAMES[:1], tmp_path / "lib")
    assert [path.name for path in (tmp_path / "lib").iterdir()] == [f"libsargnn-{NAMES[0]}.so"]


@needs_compiler
def test_an_error_of_the_compiler_is_shown(small: Path, tmp_path: Path) -> None:
    (small / "two.cpp").write_text("int f() { return unknown; }\n")
    with pytest.raises(build.BuildError) as caught:
        build.build(NAMES[:1], tmp_path / "lib")
    text = str(caught.value)
    assert "two.cpp" in text and "unknown" in text and "-std=c++20" in text and "CXX=ziglang" in text
    assert not build.library_path(NAMES[0], tmp_path / "lib").exists()


def _program(folder: Path, name: str, text: str) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def _hide_ziglang(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "ziglang" else find(name))


def test_no_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    _hide_ziglang(monkeypatch)
    with pytest.raises(build.BuildError, match="No compiler(?s:.*)pip install 'ziglang"):
        build.build(NAMES[:1], tmp_path / "lib")
    assert build.requirements() == [build.ZIGLANG]


def test_a_compiler_that_is_too_old(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It is as good as none: the build of the package asks for another one."""
    old = _program(tmp_path / "bin", "g++", 'echo "g++: error: unrecognized option -std=c++20" >&2; exit 1')
    monkeypatch.setenv("PATH", str(old.parent))
    _hide_ziglang(monkeypatch)
    with pytest.raises(build.BuildError, match=r"bin/g\+\+: g.*unrecognized option(?s:.*)needs g\+\+ 11, clang 14") as caught:
        build.build(NAMES[:1], tmp_path / "lib")
    assert "Traceback" not in str(caught.value)
    assert build.requirements() == [build.ZIGLANG]


@pytest.mark.parametrize("given", ["/nowhere/g++", "/bin/true", "/bin/false -O2"])
def test_a_named_compiler_that_is_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, given: str) -> None:
    monkeypatch.setenv("CXX", given)
    with pytest.raises(build.BuildError, match=f"cannot compile it:\n  {re.escape(given)}: "):
        build.build(NAMES[:1], tmp_path / "lib")
    assert build.requirements() == []


@needs_compiler
def test_nothing_is_required_beside_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    assert build.requirements() == []
    monkeypatch.setenv("CXX", "ziglang")
    assert build.requirements() == [build.ZIGLANG]


def test_a_message_at_the_command_line(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "sargnn" / "native" / "build.py")]
    done = run_command([*command, "avx3"], tmp_path)
    assert done.returncode == 1 and all(word in done.stderr for word in ("avx3", *build.LIBRARIES, "sanitized"))
    done = run_command([*command, NAMES[0]], tmp_path, environment=os.environ | {"CXX": "/bin/false"})
    assert done.returncode == 1 and "cannot be built" in done.stderr and "Traceback" not in done.stderr
    assert run_command(command, tmp_path).returncode == 0  # all is built


@needs_ziglang
@needs_readelf
def test_ziglang_links_with_an_old_glibc(small: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    text = '#include <math.h>\n#include <pthread.h>\n#include "border.hpp"\nstatic pthread_t id;\n'
    text += (
        "OPEN int sargnn_two() { return pthread_create(&id, 0, 0, 0); }\nOPEN double sargnn_sin(double x) { return sin(x); }\n"
    )
    (small / "two.cpp").write_text(text)
    monkeypatch.setenv("CXX", "ziglang")
    assert build.build(NAMES, tmp_path / "lib").zig
    for name in NAMES:
        path = build.library_path(name, tmp_path / "lib")
        assert all(needed.startswith(("libc.so", "libm.so", "libpthread.so")) for needed in _needed(path))
        versions = subprocess.run(["readelf", "--version-info", str(path)], capture_output=True, text=True).stdout
        asked = {
            tuple(map(int, part.removeprefix("GLIBC_").split("."))) for part in versions.split() if part.startswith("GLIBC_")
        }
        assert max(asked) <= (2, 17)


@needs_ziglang
@pytest.mark.parametrize("name", ["aarch64", "x86-64-v2"])
def test_the_sources_compile_for(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The smallest file with every header; the whole library: ``test_the_library_of``."""
    monkeypatch.setenv("CXX", "ziglang")
    compiler = build.find_compiler(build.LIBRARIES[name])
    (tmp_path / "objects").mkdir()
    made = build._compile(
        compiler, name, build.LIBRARIES[name], build.SOURCES / "threads.cpp", tmp_path / "objects", str(tmp_path)
    )
    assert made.read_bytes()[18] == {"aarch64": 183, "x86-64-v2": 62}[name]  # ELF's number of the machine


@pytest.mark.long
@needs_ziglang
@pytest.mark.parametrize("name", list(build.LIBRARIES))
def test_the_library_of(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CXX", "ziglang")
    build.build([name], tmp_path)
    assert build.is_built(name, tmp_path)


@pytest.mark.machine
@pytest.mark.timeout(1200)
def test_installing_without_a_compiler(tmp_path: Path) -> None:
    """pip fetches one for the build alone; what is installed runs."""
    shutil.copytree(
        ROOT,
        tmp_path / "source",
        ignore=shutil.ignore_patterns(".git", ".venv", "lib", "stores", "runs", "__pycache__", ".*_cache"),
    )
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "venv")], check=True)
    python = tmp_path / "venv" / "bin" / "python"
    environment = {key: value for key, value in os.environ.items() if key not in ("CXX", "PYTHONPATH")} | {
        "PATH": str(python.parent)
    }
    command = [str(python), "-m", "pip", "install", "--quiet", "--no-deps", str(tmp_path / "source")]
    done = run_command(command, tmp_path, environment=environment, timeout_s=900)
    if "ziglang" in done.stderr and "No matching distribution" in done.stderr:
        pytest.skip("ziglang cannot be had here")
    assert done.returncode == 0, done.stderr
    # The requirements of the tests' environment, the package of the new one.
    (package,) = (tmp_path / "venv" / "lib").glob("python*/site-packages")
    program = "import sargnn.native as n, pathlib; n.library(); print(pathlib.Path(n.__file__).parent)"
    done = run_command([sys.executable, "-c", program], tmp_path, environment=os.environ | {"PYTHONPATH": search_path(package)})
    assert done.stdout.strip() == str(package / "sargnn" / "native"), done.stderr
