"""Builds the package's compiled code: ``python -m sargnn.native.build``, and what the package's own build calls.

It is run before the package's requirements are there, so it imports nothing of them.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

SOURCES = Path(__file__).parent / "src"
FOLDER = Path(__file__).parent / "lib"
ISA = "SARGNN_ISA"
LIBRARIES = {
    "x86-64-v2": ["-march=x86-64-v2"],
    "avx2": ["-march=x86-64-v3"],
    "avx512": ["-march=x86-64-v4", "-mprefer-vector-width=512"],
}
_FLAGS = ["-std=c++20", "-O3", "-fPIC", "-fno-exceptions", "-fno-rtti", "-ffp-contract=off", "-fno-math-errno"]
_FLAGS += ["-fvisibility=hidden", "-fno-threadsafe-statics", "-Wall", "-Wextra", "-Wno-psabi", "-Wno-ignored-attributes", "-g1"]


def library_path(name: str) -> Path:
    return FOLDER / f"libsargnn-{name}.so"


def digest_of_sources() -> str:
    digest = hashlib.sha256()
    for path in sorted(SOURCES.iterdir()):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def usable() -> list[str]:
    """Names of libraries that this processor can run, the widest last."""
    flags = set()
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("flags"):
            flags = set(line.split())
            break
    names = ["x86-64-v2"]
    if {"avx2", "fma", "bmi2", "f16c"} <= flags:
        names.append("avx2")
        if {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"} <= flags:
            names.append("avx512")
    return names


def build(names: list[str], folder: Path = FOLDER) -> None:
    compiler = [os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++") or ""]
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary, ThreadPoolExecutor(os.cpu_count()) as pool:
        jobs = []
        stamp = Path(temporary) / "stamp.cpp"
        visible = 'extern "C" __attribute__((visibility("default")))'
        stamp.write_text(f'{visible} const char *sargnn_sources() {{ return "{digest_of_sources()}"; }}\n')
        for name in names:
            for source in [*sorted(SOURCES.glob("*.cpp")), stamp]:
                out = Path(temporary) / f"{name}-{source.stem}.o"
                command = [*compiler, *_FLAGS, *LIBRARIES[name], "-c", str(source), "-o", str(out)]
                jobs.append((name, out, pool.submit(subprocess.run, command, check=True)))
        for _, _, job in jobs:
            job.result()
        for name in names:
            objects = [str(out) for of, out, _ in jobs if of == name]
            made = folder / f".{os.getpid()}-{name}"
            subprocess.run([*compiler, "-shared", "-Wl,--as-needed", *objects, "-o", str(made), "-lm", "-lpthread"], check=True)
            made.replace(library_path(name))


if __name__ == "__main__":
    started = time.time()
    build(sys.argv[1:] or list(LIBRARIES))
    print(f"{time.time() - started:.1f} s, {platform.machine()}")
