"""The scripts of ``sargnn slurm``: pinned, read by bash and shellcheck, and harmless whatever they are given."""

from __future__ import annotations

import json
import os
import random
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from sargnn.cli.conf import conf_dir
from sargnn.cli.main import main as sargnn
from sargnn.errors import ConfigError
from sargnn.run.job_files import read_job
from sargnn.run.slurm import Job, SlurmConfig, directive, render, seconds
from sargnn.tracking.find_runs import label_of
from sargnn.tracking.summary import Summary, write_summary

GOLDEN = Path(__file__).parent / "golden"
TEMPLATE = (conf_dir().parent / "slurm" / "job.sbatch").read_text()
CASES = {
    "two_nodes": ["model=sage", "mode=sar", "world=4", "slurm.nodes=2"],
    "every_setting": [
        "model=gat", "world=32", "run_name=large one", "slurm.nodes=8", "slurm.ntasks_per_node=4", "slurm.cpus_per_task=16",
        "slurm.partition='long,short'", "slurm.mem=120G", "slurm.qos=high", "slurm.constraint='a100|h100'",
        "slurm.account=graphs", "slurm.time=1-12:00:00",
        "slurm.setup=[module load gcc/12, ulimit -n 65536]", "slurm.gloo_ifname=ib0",
        "slurm.master_addr=head-ib", "slurm.signal_s=600", "+slurm.additional_parameters.mail-type=END",
        "+slurm.additional_parameters.exclusive=null", "comm.port=29500",
    ],
    "sweep": ["-m", "model=sage,gat", "seed=0,1", "world=2", "slurm.array=true", "slurm.array_parallelism=2"],
    "gpus": ["model=gat", "world=8", "device=cuda", "slurm.nodes=2", "slurm.gpus=2"],
    "untracked": ["tracking=none", "slurm.requeue=false", "slurm.signal_s=0", "run_dir=somewhere/else", "world=1"],
}  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _pinned(script: Path, folder: Path) -> str:
    return script.read_text().replace(str(folder), "FOLDER").replace(sys.executable, "PYTHON")


def _read_by_bash(script: Path) -> None:
    assert subprocess.run(["bash", "-n", script]).returncode == 0
    if shutil.which("shellcheck"):
        done = subprocess.run(["shellcheck", script], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("name", CASES)
def test_the_script_is_the_pinned_one(name: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert sargnn(["slurm", *CASES[name]]) == 0
    (script,) = (folder / "slurm").glob("*.sbatch")
    pinned = GOLDEN / f"{name}.sbatch"
    if os.environ.get("SARGNN_PIN"):
        pinned.write_text(_pinned(script, folder))
    assert _pinned(script, folder) == pinned.read_text()
    assert f"sbatch slurm/{script.name}" in capsys.readouterr().out.replace("'", "")
    _read_by_bash(script)


def test_points_of_an_array_are_called_as_what_they_override(folder: Path) -> None:
    assert sargnn(["slurm", *CASES["sweep"]]) == 0
    (sweep,) = (folder / "sweeps").iterdir()
    labels = [label_of(sweep / f"{number:03d}") for number in range(4)]
    assert labels == ["model=sage seed=0", "model=sage seed=1", "model=gat seed=0", "model=gat seed=1"]


def test_shellcheck_looks_at_all_pinned_scripts() -> None:
    if shutil.which("shellcheck") is None:
        pytest.skip("shellcheck is not installed")
    scripts = sorted(GOLDEN.glob("*.sbatch"))
    assert len(scripts) == len(CASES)
    assert subprocess.run(["shellcheck", *scripts]).returncode == 0


def test_rendering_loads_neither_torch_nor_mlflow_and_takes_little_more_than_hydra(folder: Path) -> None:
    """Half a second on a machine where importing Hydra takes a tenth."""
    code = "import sys; from sargnn.cli.main import main; code = main(sys.argv[1:]); " + (
        "loaded = {'torch', 'dgl', 'mlflow', 'pandas'} & set(sys.modules); sys.exit(f'{loaded}' if loaded else code)"
    )
    words = ["slurm", "model=gat", "world=8", "slurm.nodes=2"]
    taken = [(_core_s("import hydra, omegaconf"), _core_s(code, *words)) for _ in range(4)]
    hydra, rendering = (min(times) for times in zip(*taken, strict=True))
    assert rendering < 10 * hydra, taken


def _core_s(code: str, *words: str) -> float:
    """Core-seconds of a Python: what it takes where the machine has nothing else to do."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == 0, done.stderr
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


_PLACES = (
    "job_name", "partition", "account", "constraint", "qos", "master_addr", "extra", "words", "labels", "point", "name", "dir",
)  # fmt: skip


def _hostile(seed: int) -> str:
    pieces = [
        "$(touch PWNED)", "`touch PWNED`", "'; touch PWNED; '", '"; touch PWNED; "', "\ntouch PWNED\n", "\n#SBATCH --uid=0\n",
        "$RUN_DIR", "${IFS}", "\\", "'", '"', " ", "\t", "#", "&& touch PWNED", "| touch PWNED", "> PWNED", "!!", "*", "~",
        "%j", "%A_%a", "{{setup}}", "EOF", "é", "\u2028", "名", "-", "--", ";", "\r", "\x1b[2J", "\x7f", "$'\\n'", "a",
    ]  # fmt: skip
    draw = random.Random(seed)
    return "".join(draw.choice(pieces) for _ in range(draw.randint(1, 6)))


def _job(folder: Path, **changes: object) -> Job:
    values: dict[str, object] = {
        "name": "run", "world": 2, "threads": None, "interface": None, "port": None, "tracking": True,
        "run_dirs": [folder / "runs" / "run"], "labels": {}, "words": [], "folder": folder,
    }  # fmt: skip
    return Job(**(values | changes))  # type: ignore[arg-type]


def _tools(folder: Path) -> Path:
    """Stand-ins for what the script calls: each notes its arguments, and does nothing."""
    tools = folder / "tools"
    tools.mkdir()
    for name in ("srun", "scontrol", "sinfo", "flock", "hostname", "python"):
        (tools / name).write_text(f'#!/bin/bash\nprintf "%s\\0" {name} "$@" >> "{folder}/called"\n')
        (tools / name).chmod(0o755)
    return tools


@pytest.mark.parametrize("first", [0, *(pytest.param(first, marks=pytest.mark.long) for first in (40, 80, 120, 160))])
def test_no_hostile_value_runs_anything_or_breaks_anything(first: int, tmp_path: Path) -> None:
    """In every place where a person's text goes; the script then runs, with stand-ins for SLURM's programs."""
    tools = _tools(tmp_path)
    refused = ran = 0
    for seed in range(first, first + 40):
        text = _hostile(seed)
        place = _PLACES[seed % len(_PLACES)]
        work = tmp_path / str(seed)
        work.mkdir()
        config, job = SlurmConfig(), _job(work)
        if place == "extra":
            config = SlurmConfig(additional_parameters={"comment": text})
        elif place == "words":
            job = _job(work, words=[text])
        elif place == "labels":
            job = _job(work, labels={0: text}, run_dirs=[work / "sweeps" / "key" / "000"])
        elif place == "point":
            job = _job(work, point=text)
        elif place == "name":
            job = _job(work, name=text)
        elif place == "dir":
            job = _job(work, run_dirs=[work / text.replace("/", "_").strip(".")])
        else:
            config = SlurmConfig(**{place: text})  # type: ignore[arg-type]
        try:
            script = render(config, job, TEMPLATE).replace(f"PYTHON={sys.executable}\n", "PYTHON=python\n")
        except ConfigError:
            refused += 1
            continue
        directives = [line for line in script.splitlines() if line.startswith("#SBATCH")]
        names = [line.split()[1].lstrip("-").partition("=")[0] for line in directives]
        assert len(set(names)) == len(names) and "uid" not in names, (seed, text)
        job.run_dirs[0].mkdir(parents=True, exist_ok=True)
        path = work / "run.sbatch"
        path.write_text(script)
        environment = {"PATH": f"{tools}:{os.environ['PATH']}", "SLURM_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "0"}
        (tmp_path / "called").unlink(missing_ok=True)
        done = subprocess.run(
            ["bash", path], cwd=work, env=environment, capture_output=True, text=True, errors="replace", timeout=60
        )
        # Nothing ran but what the template runs; the tracker and the report find no run and say so.
        called = (tmp_path / "called").read_bytes().split(b"\0")
        begins = [one for one in called if one == b"begin"]
        assert len(begins) == 1 and called[called.index(b"begin") + 1].decode() == str(job.run_dirs[0]), (
            seed,
            text,
            done.stderr,
        )
        assert not list(tmp_path.rglob("PWNED")), (seed, text)
        ran += 1
    assert ran > 10 and refused > 5, (ran, refused)


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["world=9", "slurm.nodes=2", "slurm.ntasks_per_node=4"], "9 workers"),
        (["world=2", "slurm.nodes=4"], "more nodes"),
        (["world=4", "slurm.nodes=2", "slurm.gloo_ifname=lo"], "loopback"),
        (["world=4", "slurm.nodes=2", "comm.interface=lo"], "loopback"),
        (["world=4", "slurm.nodes=2", "slurm.master_addr=127.0.0.1"], "loopback"),
        (["threads=4", "slurm.cpus_per_task=2"], "more threads than CPUs"),
        (["slurm.time=2"], "time limit"),
        (["slurm.time=soon"], "form that SLURM knows"),
        (["slurm.mem=lots"], "form that SLURM knows"),
        (["slurm.partition=''"], "is empty"),
        (["slurm.nodes=0"], "out of range"),
        (["slurm.node=2"], "There is no setting 'slurm.node'"),
        (["slurm=nowhere"], "'slurm' has no option 'nowhere'"),
        (["slurm.gpus=1"], "asks for no GPUs"),
        (["device=cuda", "world=4", "slurm.nodes=2", "slurm.gpus=3"], "next:    slurm.gpus=2"),
        (["device=cuda", "+slurm.additional_parameters.gpus=2"], "see: gpus"),
        (["-m", "device=cpu,cuda", "slurm.array=true"], "'device' cannot be swept"),
        (["slurm.setup=['if true']"], "bash cannot read"),
        (["+slurm.additional_parameters.nodes=2"], "set by sargnn"),
        (["+slurm.additional_parameters.Bad=2"], "another form"),
        (["+slurm.additional_parameters.outpu=2"], "set by sargnn"),
        (["+slurm.additional_parameters.export=NONE"], "set by sargnn"),
        (["-m", "seed=0,1", "comm.port=29500"], "one port"),
        (["-m", "seed=range(0,0)"], "has no point"),
        (["world=4", "slurm.nodes=2", "slurm.master_addr=LOCALHOST"], "loopback"),
        (["slurm.template=nowhere.sbatch"], "nowhere.sbatch"),
        (["comm.max_restarts=2"], "comm.max_restarts=2"),
        (["-m", "world=2,4", "slurm.array=true"], "'world' cannot be swept"),
        (["-m", "slurm.time=60,120", "slurm.array=true"], "'slurm.*' cannot be swept"),
        (["--status"], "sargnn slurm --status NAME"),
        (["--status", "nowhere"], "no such run"),
        (["model=sag"], "'model' has no option 'sag'"),
        (["epochs=0"], "out of range"),
    ],
)
def test_what_cannot_be_is_refused_with_the_reason(
    words: list[str], what: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sargnn(["slurm", *words]) == 1
    message = capsys.readouterr().err
    assert what in message and "Traceback" not in message
    assert not list(folder.glob("slurm/*"))


def test_a_task_gets_a_gpu_where_nothing_else_is_said(folder: Path) -> None:
    assert sargnn(["slurm", "device=cuda", "world=8", "slurm.nodes=2"]) == 0
    (script,) = (folder / "slurm").glob("*.sbatch")
    assert "#SBATCH --gpus-per-node=4\n" in script.read_text()


def test_a_site_may_have_a_template_of_its_own(folder: Path) -> None:
    (folder / "own.sbatch").write_text("#!/bin/bash\n{{directives}}\ncd {{folder}} && {{python}} -c pass {{nothing}}\n")
    assert sargnn(["slurm", "slurm.template=own.sbatch"]) == 1
    (folder / "own.sbatch").write_text("#!/bin/bash\n{{directives}}\ncd {{folder}} && {{python}} -c pass\n")
    assert sargnn(["slurm", "slurm.template=own.sbatch"]) == 0
    assert "#SBATCH --job-name=sage-sar-w4-s0" in (folder / "slurm" / "sage-sar-w4-s0.sbatch").read_text()


def test_the_same_run_keeps_its_folder_and_another_gets_its_own(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["slurm.time=60"], ["slurm.time=90", "slurm.cpus_per_task=2"], ["epochs=3"], ["run_dir=runs/sage-sar-w4-s0"]):
        assert sargnn(["slurm", *words]) == 0
    assert sorted(path.name for path in (folder / "runs").iterdir()) == ["sage-sar-w4-s0", "sage-sar-w4-s0-2"]
    assert "--time=" not in (folder / "slurm" / "sage-sar-w4-s0.sbatch").read_text()
    assert sargnn(["slurm", "run_dir=runs/sage-sar-w4-s0", "epochs=5"]) == 1
    assert "holds a run" in capsys.readouterr().err
    finished = Summary(
        "finished", model="sage", dataset="synthetic", mode="sar", world=4, epoch_time_s=1.0, comm_wait_time_s=0.0,
        comm_bytes_per_epoch=1, peak_train_bytes=[1] * 4,
    )  # fmt: skip
    write_summary(folder / "runs" / "sage-sar-w4-s0", finished)
    assert sargnn(["slurm"]) == 0
    assert (folder / "runs" / "sage-sar-w4-s0-3" / "job.json").exists()


def test_scripts_of_other_runs_and_the_template_stay(folder: Path) -> None:
    (folder / "slurm").mkdir()
    (folder / "slurm" / "job.sbatch").write_text(TEMPLATE)
    for words in (["run_name=job"], ["run_dir=a/run"], ["run_dir=b/run"], ["run_dir=a/run", "slurm.time=60"]):
        assert sargnn(["slurm", *words]) == 0
    scripts = {path.name: path.read_text() for path in (folder / "slurm").iterdir()}
    assert sorted(scripts) == ["job-2.sbatch", "job.sbatch", "run-2.sbatch", "run.sbatch"]
    assert scripts["job.sbatch"] == TEMPLATE
    assert f"RUN_DIR={folder}/a/run\n" in scripts["run.sbatch"] and "--time=60" in scripts["run.sbatch"]
    assert f"RUN_DIR={folder}/b/run\n" in scripts["run-2.sbatch"]


def test_going_on_with_a_run_on_another_number_of_workers(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert sargnn(["slurm", "run_name=one"]) == 0
    assert sargnn(["slurm", "resume=runs/one", "world=8", "slurm.nodes=4", "++slurm.time=60"]) == 0
    text = (folder / "slurm" / "one.sbatch").read_text()
    assert "--ntasks=8" in text and "--nodes=4" in text and "--time=60" in text
    assert "world: 8" in (folder / "runs" / "one" / "config.yaml").read_text()
    assert sargnn(["slurm", "resume=runs/one", "seed=7"]) == 1
    assert "its losses" in capsys.readouterr().err


def test_a_job_without_progress_is_not_queued_again(folder: Path) -> None:
    from sargnn.run.job import end
    from sargnn.run.job_files import note_job

    assert sargnn(["slurm", "run_name=one"]) == 0
    run_dir = folder / "runs" / "one"
    (run_dir / "summary.json").write_text('{"status": "interrupted", "losses": [1.0, 0.5]}')
    note_job(run_dir, starts=[{"job": "7", "restarts": 0, "epoch": 0}])
    assert end(run_dir) == 75
    note_job(run_dir, starts=[{"job": "7", "restarts": 1, "epoch": 2}])
    assert end(run_dir) == 1


def test_a_job_is_found_whatever_its_name_is() -> None:
    from sargnn.run.job_files import _fields

    line = (
        "JobId=9 ArrayJobId=7 ArrayTaskId=2 JobName=a JobState=FAILED ArrayTaskId=5 Command=/x WorkDir=/ UserId=root(0) "
        "JobState=RUNNING Command=/home/a folder/run.sbatch WorkDir=/home StdErr=/x"
    )
    fields = _fields(line)
    assert (fields["JobId"], fields["ArrayTaskId"], fields["JobState"]) == ("9", "2", "RUNNING")
    assert fields["Command"] == "/home/a folder/run.sbatch"


@pytest.mark.parametrize(
    "damage",
    [
        {"script": 3},
        {"index": [1]},
        {"jobs": "1"},
        {"starts": [{"job": "1"}]},
        {"starts": [{"epoch": 1, "job": {}}]},
        {"starts": 5},
    ],
)
def test_a_record_of_jobs_of_another_form_counts_as_none(damage: dict[str, object], tmp_path: Path) -> None:
    whole = {"script": "a.sbatch", "index": 1, "jobs": ["1"], "starts": [{"epoch": 1, "job": None}, {"epoch": 2}]}
    (tmp_path / "job.json").write_text(json.dumps(whole))
    assert read_job(tmp_path) == whole
    (tmp_path / "job.json").write_text(json.dumps(whole | damage))
    assert read_job(tmp_path) == {"script": None, "index": None, "jobs": [], "starts": []}


def test_submitting_without_sbatch_is_said(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert sargnn(["slurm", "slurm.submit=true"]) == 1
    assert "no sbatch" in capsys.readouterr().err
    assert sargnn(["slurm", "--status", "runs/sage-sar-w4-s0"]) == 0
    assert "no scontrol" in capsys.readouterr().out


def test_times_are_read_as_slurm_reads_them() -> None:
    known = {"30": 1800, "30:15": 1815, "2:30:15": 9015, "1-2": 93600, "1-2:30": 95400, "1-2:30:15": 95415}
    assert {time: seconds(time) for time in known} == known


def test_directives_are_quoted_where_they_must_be() -> None:
    assert directive("time", "1-00:00:00") == "#SBATCH --time=1-00:00:00"
    assert directive("job-name", 'a "b" \\ $c') == '#SBATCH --job-name="a \\"b\\" \\\\ $c"'
    assert directive("exclusive", None) == "#SBATCH --exclusive"
