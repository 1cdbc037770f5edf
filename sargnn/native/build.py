"""Builds the package's compiled code: ``python -m sargnn.native [NAME ...]``, and what installing the package calls.

It runs before the package's requirements are there, so it imports nothing of them.

Compilers are tried in this order: ``$CXX`` alone if it is set; g++, clang++ and c++ on the path; clang of the Python package
``ziglang``, which ``CXX=ziglang`` names. The sources need C's headers only, and the library libc, libm and libpthread.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

SOURCES = Path(__file__).parent / "src"
FOLDER = Path(__file__).parent / "lib"
ISA = "SARGNN_ISA"
ZIGLANG = "ziglang>=0.17,<0.18"
"""What is required where there is no other compiler."""
AGAIN = "python -m sargnn.native"
CPUINFO = Path("/proc/cpuinfo")
_BF16 = {"amx_bf16": "AMX", "avx512_bf16": "AVX512-BF16", "bf16": "BF16"}
"""Flags of Linux -> names, of instructions that multiply bf16. The last is ARM's."""


class Library(NamedTuple):
    """A processor's instruction set, as ``platform.machine``, g++ and zig call it; flags of /proc/cpuinfo and of the
    compiler.
    """

    machine: str
    arch: str
    cpu: str
    needs: str = ""
    flags: tuple[str, ...] = ()


_V2 = "cx16 popcnt sse4_2 ssse3"
_V3 = f"{_V2} abm avx avx2 bmi1 bmi2 f16c fma movbe"
LIBRARIES = {
    "x86-64-v2": Library(
        "x86_64", "x86-64-v2", "x86_64_v2", _V2, ("-O1",)
    ),  # hardly anybody's: two thirds of the time to build
    "avx2": Library("x86_64", "x86-64-v3", "x86_64_v3", _V3),
    "avx512": Library(
        "x86_64",
        "x86-64-v4",
        "x86_64_v4",
        f"{_V3} avx512bw avx512cd avx512dq avx512f avx512vl",
        ("-mprefer-vector-width=512",),
    ),
    "aarch64": Library("aarch64", "armv8-a", "generic"),
}
"""By name, of each machine the widest last."""
SANITIZED = "sanitized"
"""One more, for tests, of the widest vectors here: it ends the process at a wrong address and at undefined behaviour."""
_CHECKS = ("-O0", "-g", "-DSARGNN_CALLS", "-fsanitize=address,undefined", "-fno-sanitize-recover")
_FLAGS = ["-std=c++20", "-O3", "-fPIC", "-fno-exceptions", "-fno-rtti", "-ffp-contract=off", "-fno-math-errno", "-g1"]
_FLAGS += ["-fvisibility=hidden", "-fno-threadsafe-statics", "-Wall", "-Wextra", "-Wno-psabi", "-Wno-ignored-attributes"]
_PROBE = (
    "#include <pthread.h>\nauto f = []<class T>(T x) requires (sizeof(T) > 1) { return x; };\nint main() { return f(0); }\n"
)


class BuildError(Exception):
    """The library cannot be built; the message says why, and what to do."""


def library_path(name: str, folder: Path = FOLDER) -> Path:
    return (folder / name if name == SANITIZED else folder) / f"libsargnn-{name}.so"  # that one goes into no wheel


def names_here() -> list[str]:
    """Libraries for this kind of machine, the widest last. None on other systems than Linux, and other machines."""
    return [name for name, library in LIBRARIES.items() if sys.platform == "linux" and library.machine == platform.machine()]


@functools.cache
def _flags(cpuinfo: Path = CPUINFO) -> frozenset[str]:
    try:
        lines = cpuinfo.read_text().lower().splitlines()
    except OSError:
        return frozenset()
    return frozenset(next((line for line in lines if line.startswith(("flags", "features"))), "").split())


def lacks(name: str) -> list[str]:
    """Flags that the processor lacks for a library. Where it tells none, the narrowest library is taken to run."""
    library = LIBRARIES[name]
    if not _flags() and name == names_here()[0]:
        return []
    return [flag for flag in library.needs.split() if flag not in _flags()]


def bf16_instructions(cpuinfo: Path = CPUINFO) -> tuple[str, ...]:
    """The names of those that this processor multiplies bf16 with; none also where it does not say."""
    return tuple(name for flag, name in _BF16.items() if flag in _flags(cpuinfo))


def usable() -> list[str]:
    """Names of libraries that this processor can run, the widest last."""
    return [name for name in names_here() if not lacks(name)]


def _library(name: str) -> Library:
    if name != SANITIZED:
        return LIBRARIES[name]
    return LIBRARIES[(usable() or names_here())[-1]]._replace(flags=_CHECKS)


def digest_of_sources() -> str:
    """Of the sources and of how they are compiled. A library holds the digest of what it was built from."""
    digest = hashlib.sha256(repr((_FLAGS, LIBRARIES)).encode())
    for path in sorted(SOURCES.iterdir()):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()[:16]


class Compiler(NamedTuple):
    command: list[str]
    zig: bool

    def target(self, library: Library) -> list[str]:
        if self.zig:  # an old glibc, so that the library runs anywhere
            return ["-target", f"{library.machine}-linux-gnu.2.17", f"-mcpu={library.cpu}", *library.flags]
        return [f"-march={library.arch}", *library.flags]

    def link(self, library: Library) -> list[str]:
        """How objects are linked. Zig would compile helpers of its own first, for half a minute: none is needed."""
        if self.zig:
            zig = [part if part != "c++" else "cc" for part in self.command]
            target = ["-target", f"{library.machine}-linux-gnu.2.17"]
            return [*zig, *target, "-O3", "-fno-sanitize=all", "-rtlib=none", "-unwindlib=none", "-shared"]
        sanitizers = [flag for flag in library.flags if flag.startswith("-fsanitize")]
        return [*self.command, *sanitizers, "-shared", "-Wl,--as-needed"]


def _unfit(compiler: Compiler, library: Library) -> str:
    """Why a compiler cannot compile the sources; empty if it can."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "probe.cpp"
        source.write_text(_PROBE)
        command = [*compiler.command, "-std=c++20", *compiler.target(library), "-c", str(source), "-o", f"{folder}/probe.o"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, env=_environment(folder))
        except OSError as error:
            return error.strerror or str(error)
        if done.returncode == 0 and Path(command[-1]).exists():
            return ""
    lines = done.stderr.splitlines()
    return next((line for line in lines if "error" in line), lines[0] if lines else "it makes no object")


def _environment(folder: str) -> dict[str, str]:
    return os.environ | {"LC_ALL": "C", "ZIG_GLOBAL_CACHE_DIR": f"{folder}/zig", "ZIG_LOCAL_CACHE_DIR": f"{folder}/zig"}


def _candidates() -> list[Compiler]:
    given = shlex.split(os.environ.get("CXX", ""))
    if given == ["ziglang"] or not given and importlib.util.find_spec("ziglang"):
        zig = [Compiler([sys.executable, "-m", "ziglang", "c++"], zig=True)]
    else:
        zig = []
    if given:
        return zig or [Compiler(given, zig="zig" in Path(given[0]).name)]
    on_path = [path for name in ("g++", "clang++", "c++") if (path := shutil.which(name))]
    return [*(Compiler([path], zig=False) for path in on_path), *zig]


def find_compiler(library: Library) -> Compiler:
    """The first compiler that can compile the sources for a processor. Raises ``BuildError`` where there is none."""
    tried = []
    for compiler in _candidates():
        if not (reason := _unfit(compiler, library)):
            return compiler
        tried.append(f"  {shlex.join(compiler.command)}: {reason}")
    reasons = "\n".join(
        ["These cannot compile it:", *tried] if tried else ["No compiler is on the path: neither g++ nor clang++."]
    )
    raise BuildError(
        f"The package's compiled code cannot be built. {reasons}\n"
        "It needs g++ 11, clang 14, or a newer one of them; CXX=... names one that is elsewhere.\n"
        f"Without administrator's rights: pip install '{ZIGLANG}', which has clang; then {AGAIN}."
    )


def requirements() -> list[str]:
    """What the build of the package needs from PyPI: clang, if there is no compiler or ``CXX=ziglang`` asks for it."""
    if os.environ.get("CXX"):
        return [ZIGLANG] if os.environ["CXX"] == "ziglang" else []
    fit = (
        not compiler.zig and not _unfit(compiler, LIBRARIES[name]) for name in names_here()[-1:] for compiler in _candidates()
    )
    return [] if any(fit) else [ZIGLANG]


def is_built(name: str, folder: Path = FOLDER) -> bool:
    """Whether a library is there and is as new as its sources."""
    path = library_path(name, folder)
    return path.exists() and digest_of_sources().encode() in path.read_bytes()


def build(names: list[str], folder: Path = FOLDER) -> Compiler:
    """Compiles libraries, on all cores. Objects of a checkout are kept, for the next build. Raises ``BuildError`` where there
    is no compiler, or it fails.
    """
    if not names:
        here = f"{platform.system()} on {platform.machine()}"
        raise BuildError(f"The package's compiled code is for Linux on x86-64 and 64-bit Arm; this is {here}.")
    libraries = {name: _library(name) for name in names}
    compiler = find_compiler(libraries[names[-1]])
    folder.mkdir(parents=True, exist_ok=True)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    with tempfile.TemporaryDirectory() as temporary, ThreadPoolExecutor(cores) as pool:
        stamp = Path(temporary) / "stamp.cpp"
        visible = 'extern "C" __attribute__((visibility("default")))'
        stamp.write_text(f'{visible} const char *sargnn_sources() {{ return "{digest_of_sources()}"; }}\n')
        sources = sorted([*SOURCES.glob("*.cpp"), stamp], key=lambda path: -path.stat().st_size)  # the longest first
        is_checkout = (SOURCES.parents[2] / "pyproject.toml").exists()
        objects = folder / "objects" if is_checkout else Path(temporary) / "objects"
        objects.mkdir(exist_ok=True)
        jobs = [
            (name, pool.submit(_compile, compiler, name, library, source, objects, temporary))
            for source in sources
            for name, library in libraries.items()
        ]
        try:
            made = [(name, job.result()) for name, job in jobs]
        except BuildError:
            pool.shutdown(cancel_futures=True)
            raise
        for name, library in libraries.items():
            path = library_path(name, folder)
            path.parent.mkdir(exist_ok=True)
            new = path.with_name(f".{os.getpid()}-{name}")
            parts = [str(path) for of, path in made if of == name]
            _run([*compiler.link(library), *parts, "-o", str(new), "-lm", "-lpthread"], temporary)
            new.replace(path)
    return compiler


def _compile(compiler: Compiler, name: str, library: Library, source: Path, objects: Path, temporary: str) -> Path:
    """A source's object: one that is kept, if it was made of the same text by the same command."""
    command = [*compiler.command, *_FLAGS, *compiler.target(library), *(["-nostdlib++"] if compiler.zig else [])]
    digest = hashlib.sha256(repr(command).encode())
    for path in [*sorted(SOURCES.glob("*.hpp")), source]:
        digest.update(path.read_bytes())
    out = objects / f"{name}-{source.stem}-{digest.hexdigest()[:16]}.o"
    if not out.exists():
        new = Path(temporary) / out.name
        _run([*command, "-c", str(source), "-o", str(new)], temporary)
        for old in objects.glob(f"{name}-{source.stem}-*.o"):
            old.unlink()
        shutil.move(new, out)
    return out


def _run(command: list[str], temporary: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, env=_environment(temporary))
    if done.returncode != 0:
        end = "\n".join(done.stderr.splitlines()[:30])
        raise BuildError(
            f"The package's compiled code cannot be built. This failed:\n{shlex.join(command)}\n{end}\n"
            f"CXX=... names another compiler; CXX=ziglang is clang of the Python package {ZIGLANG}."
        )
    if done.stderr:
        print(done.stderr, file=sys.stderr)


def main(names: list[str]) -> None:
    """Builds these libraries, else all of this machine that are older than the sources."""
    known = [*LIBRARIES, SANITIZED]
    if unknown := [name for name in names if name not in known]:
        sys.exit(f"There is no library {', '.join(unknown)}: it is one of {', '.join(known)}.")
    wanted = names or [name for name in names_here() if not is_built(name)]
    if not wanted and names_here():
        return
    started = time.time()
    try:
        compiler = build(wanted)
    except BuildError as error:
        sys.exit(str(error))
    print(f"compiled code for {', '.join(wanted)}: built in {time.time() - started:.0f} s by {shlex.join(compiler.command)}")


if __name__ == "__main__":
    main(sys.argv[1:])
