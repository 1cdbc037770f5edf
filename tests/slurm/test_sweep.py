"""``sargnn slurm -m``: a script for each point of a sweep, and one command that submits them all."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from pathlib import Path
from unittest.mock import patch

import pytest

from sargnn.cli.compose import sweep_points
from sargnn.cli.conf import built_in_folder
from sargnn.cli.sweep import plan_sweep
from sargnn.config.run import load
from sargnn.memory.plan_stores import NotPlanned, PlannedMemory
from sargnn.run.job_files import is_under_way, note_job, read_job
from sargnn.run.run_folder import hold_run_dir
from sargnn.run.slurm import _ranges
from sargnn.tracking.find_runs import find_runs, label_of
from sargnn.tracking.summary import Summary, write_summary
from tests.in_process import sargnn_here

WORLDS = ("-m", "world=4,8,16", "slurm.ntasks_per_node=4")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def told(*words: str) -> list[str]:
    """What ``sargnn slurm`` prints: its lines."""
    done = sargnn_here(Path.cwd(), "slurm", *words)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def folder_of_train(*words: str) -> Path:
    """The sweep's folder that ``sargnn train -m`` has for these words."""
    points = sweep_points("train", words, multirun="-m" in words or all("experiment=" not in word for word in words))
    assert points is not None
    return plan_sweep(points, built_in_folder()).folder


def finish(run_dir: Path) -> None:
    """As a run that is over leaves it."""
    run_dir.mkdir(parents=True, exist_ok=True)
    values = Summary(
        "finished", model="sage", dataset="synthetic", mode="sar", world=4, epoch_time_s=1.0, comm_wait_time_s=0.0,
        comm_bytes_per_epoch=1, peak_train_bytes=[1] * 4,
    )  # fmt: skip
    write_summary(run_dir, values)


def directives(script: Path) -> dict[str, str]:
    found = re.findall(r"^#SBATCH --([a-z-]+)=(.*)$", script.read_text(), flags=re.M)
    assert len(dict(found)) == len(found)
    return dict(found)


def submitted(command: str, tools: Path, refuse: str = "no script at all") -> subprocess.CompletedProcess[str]:
    """Run a command with a stand-in for sbatch, which notes what it is given and refuses names with this in them."""
    tools.mkdir(exist_ok=True)
    (tools / "sbatch").write_text(
        "#!/bin/bash\n"
        f'case "$*" in *{shlex.quote(refuse)}*) echo "sbatch: error: no" >&2; exit 1 ;; esac\n'
        f'printf "%s\\n" "$PWD" "$@" >> {shlex.quote(str(tools / "called"))}\n'
        f'wc -l < {shlex.quote(str(tools / "called"))} | sed "s/ *$/;cluster/"\n'
    )
    (tools / "sbatch").chmod(0o755)
    environment = {"PATH": f"{tools}:/usr/bin:/bin"}
    return subprocess.run(shlex.split(command), env=environment, capture_output=True, text=True)


def test_each_point_has_a_script_and_a_folder_of_its_own_and_one_command_submits_all(folder: Path) -> None:
    lines = told(*WORLDS)
    sweep = folder_of_train("world=4,8,16")
    scripts = folder / "slurm" / f"sweep-{sweep.name}"
    assert lines[-1] == f"bash slurm/{scripts.name}/submit.sh"
    assert lines[-2].endswith(f": sargnn slurm --status {sweep}")
    assert [line.split() for line in lines[:3]] == [[f"slurm/{scripts.name}/00{n}.sbatch", f"world={4 << n}"] for n in range(3)]
    assert sorted(path.name for path in scripts.iterdir()) == ["000.sbatch", "001.sbatch", "002.sbatch", "submit.sh"]
    asked = [directives(scripts / f"00{n}.sbatch") for n in range(3)]
    assert [(one["ntasks"], one["nodes"], one["ntasks-per-node"]) for one in asked] == [
        ("4", "1", "4"), ("8", "2", "4"), ("16", "4", "4"),
    ]  # fmt: skip
    assert [one["job-name"] for one in asked] == [f"00{n}-sage-sar-w{4 << n}-s0" for n in range(3)]
    assert "array" not in asked[0]
    runs = find_runs(str(sweep))
    assert [run.name for run in runs] == ["000", "001", "002"]
    for number, run in enumerate(runs):
        script = scripts / f"{run.name}.sbatch"
        assert asked[number]["output"] == f"{run.resolve()}/slurm-%j.out"
        text = script.read_text()
        assert f"\nRUN_DIR={run.resolve()}\n" in text and f"srun --ntasks={4 << number} " in text
        assert f"# Point {run.name} of the sweep {sweep.name}: world={4 << number}\n" in text
        config = load(run / "config.yaml")
        assert (config.world, config.servers, config.run_dir) == (4 << number, [None, 2, 4][number], str(run.resolve()))
        assert label_of(run) == f"world={4 << number}"
        assert read_job(run)["script"] == str(script) and read_job(run)["index"] is None
    done = submitted(lines[-1], folder / "tools")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [f"job {3 * (n + 1)}: world={4 << n}" for n in range(3)]
    called = (folder / "tools" / "called").read_text().splitlines()
    assert called == [word for n in range(3) for word in (str(folder), "--parsable", str(scripts / f"00{n}.sbatch"))]


def test_bash_and_shellcheck_read_all_that_is_written(folder: Path) -> None:
    told("--multirun", "run_name=\"it's 1\",'$(touch PWNED)'", "seed=0,1")
    told("-m", "seed=7")  # one point
    scripts = [*folder.glob("slurm/*/*")]
    assert len(scripts) == 4 + 1 + 1 + 1
    for script in scripts:
        assert subprocess.run(["bash", "-n", script]).returncode == 0
    for script in folder.glob("slurm/*/submit.sh"):
        assert submitted(f"bash {script}", folder / "tools").returncode == 0
    assert not list(folder.rglob("PWNED"))
    if shutil.which("shellcheck"):
        done = subprocess.run(["shellcheck", *scripts], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout


def test_what_sbatch_refuses_is_named_and_the_others_are_submitted(folder: Path) -> None:
    done = submitted(told(*WORLDS)[-1], folder / "tools", refuse="001.sbatch")
    assert done.returncode == 1 and re.findall(r"world=\d+", done.stdout) == ["world=4", "world=16"]
    assert re.search(r": sbatch \S+/001\.sbatch\n", done.stderr)


@pytest.mark.parametrize(
    ("words", "other"),
    [
        (["-m", "model=sage,gat", "seed=0,1", "slurm.time=60", "slurm.nodes=2"], ["model=sage,gat", "seed=0,1"]),
        (["experiment=scaling_sweep", "slurm.account=graphs"], ["experiment=scaling_sweep"]),
        (["-m", "experiment=scaling_sweep", "world=2,4", "+slurm.additional_parameters.mail-type=END"],
         ["experiment=scaling_sweep", "world=2,4"]),
        (["-m", "seed=range(3)", "slurm.array=true"], ["seed=range(3)"]),
        (["-m", "seed=0,1", "skip_finished=true"], ["seed=0,1"]),
    ],
)  # fmt: skip
def test_a_sweep_has_the_folder_and_the_points_of_train(words: list[str], other: list[str], folder: Path) -> None:
    told(*words)
    multirun = "-m" in words
    points = sweep_points("train", other, multirun=multirun)
    assert points is not None
    plan = plan_sweep(points, built_in_folder())
    assert [path.name for path in (folder / "sweeps").iterdir()] == [plan.folder.name]
    assert [label_of(path) for path in find_runs(str(plan.folder))] == plan.labels
    assert len(plan.labels) == len(points)


def test_what_is_asked_of_the_cluster_can_be_swept(folder: Path) -> None:
    told("-m", "world=4", "slurm.nodes=1,2", "slurm.job_name=wide")
    (scripts,) = (folder / "slurm").iterdir()
    asked = [directives(scripts / f"00{n}.sbatch") for n in range(2)]
    assert [(one["nodes"], one["ntasks-per-node"], one["job-name"]) for one in asked] == [
        ("1", "4", "wide-000"), ("2", "2", "wide-001"),
    ]  # fmt: skip
    (sweep,) = (folder / "sweeps").iterdir()
    assert [label_of(sweep / f"00{n}") for n in range(2)] == ["slurm.nodes=1", "slurm.nodes=2"]
    told("-m", "world=4", "slurm.nodes=2,4", "slurm.job_name=wide")
    assert len(list((folder / "sweeps").iterdir())) == 2  # these are other runs


def test_memory_is_each_points_own_and_planned_once(folder: Path) -> None:
    gib = 2**30
    planned: list[tuple[int, str]] = []

    def plan(config: object) -> PlannedMemory:
        planned.append((config.world, config.model.name))  # type: ignore[attr-defined]
        return PlannedMemory((gib,) * planned[-1][0], preparing=0)

    with patch("sargnn.memory.plan_stores.plan_memory", plan):
        done = sargnn_here(folder, "slurm", "-m", "world=2,6", "seed=0,1", "slurm.ntasks_per_node=4")
    assert done.returncode == 0, done.stderr
    assert planned == [(2, "sage"), (6, "sage")]
    (scripts,) = (folder / "slurm").iterdir()
    found = [directives(path)["mem"] for path in sorted(scripts.glob("*.sbatch"))]
    two, four = (f"{-(-(int(number * gib * 1.1) + 400_000_000) // 1024**2)}M" for number in (2, 4))
    assert found == [two, two, four, four]
    assert f"world=6 seed=1: --mem={four}: " in done.stderr
    unknown = NotPlanned("nothing is known")
    with patch("sargnn.memory.plan_stores.plan_memory", lambda config: unknown):
        done = sargnn_here(folder, "slurm", "-m", "world=2,3")
    assert done.stderr.count("nothing is known") == 1  # said once for all


def test_finished_points_and_those_under_way_are_left_out(folder: Path) -> None:
    told(*WORLDS)
    sweep = folder_of_train("world=4,8,16")
    finish(sweep / "001")
    with hold_run_dir(sweep / "002"):
        done = sargnn_here(folder, "slurm", *WORLDS)
    assert done.returncode == 0, done.stderr
    assert "1 of 3 points" in done.stderr and "skip_finished=false" in done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith(f"{sweep}/001  world=8: finished") and lines[1].startswith(f"{sweep}/002  world=16: under way")
    submit = folder / shlex.split(lines[-1])[1]
    assert re.findall(r"^submit (\S+)", submit.read_text(), flags=re.M) == ["000.sbatch"]
    assert re.findall(r"^submit (\S+)", (told(*WORLDS), submit.read_text())[1], flags=re.M) == ["000.sbatch", "002.sbatch"]
    # Again in a new folder, which is that of its next script too.
    for _ in range(2):
        told(*WORLDS, "skip_finished=false")
        assert re.findall(r"^submit (\S+)", submit.read_text(), flags=re.M) == ["000.sbatch", "001-2.sbatch", "002.sbatch"]
    finish(sweep / "000")
    finish(sweep / "002")
    lines = told(*WORLDS)
    assert len(lines) == 4 and lines[-1].endswith(f": sargnn compare {sweep}/*/")


def test_a_point_goes_on_where_its_job_was_and_not_where_a_local_run_was(folder: Path) -> None:
    sweep = folder_of_train("seed=0,1")
    told("-m", "seed=0,1")
    note_job(sweep / "000", starts=[{"job": "7", "restarts": 0, "epoch": 3}])
    (sweep / "001" / "job.json").unlink()  # as sargnn train leaves one that failed
    told("-m", "seed=0,1", "slurm.time=90")
    assert sorted(path.name for path in sweep.iterdir() if path.is_dir()) == ["000", "001", "001-2"]
    assert len(read_job(sweep / "000")["starts"]) == 1
    (scripts,) = (folder / "slurm").iterdir()
    assert directives(scripts / "000.sbatch")["time"] == directives(scripts / "001-2.sbatch")["time"] == "90"


def test_an_array_has_what_is_left(folder: Path) -> None:
    words = ("-m", "seed=range(6)", "slurm.array=true", "slurm.array_parallelism=2")
    told(*words)
    sweep = folder_of_train("seed=range(6)")
    finish(sweep / "003")
    with hold_run_dir(sweep / "001"):
        lines = told(*words)
    assert [line.rpartition(": ")[2].partition(",")[0] for line in lines[:2]] == ["under way", "finished"]
    text = (folder / "slurm" / f"sweep-{sweep.name}.sbatch").read_text()
    assert "#SBATCH --array=0,2,4-5%2\n" in text and "#     4  seed=4\n" in text and "seed=3" not in text
    assert read_job(sweep / "004")["index"] == 4 and label_of(sweep / "004") == "seed=4"


def test_a_dry_run_says_what_would_be_asked_and_writes_nothing(folder: Path) -> None:
    lines = told(*WORLDS, "--dry-run", "slurm.mem=7G")
    assert lines[0] == f"sweep of 3 points, in {folder_of_train('world=4,8,16')}"
    assert lines[3:5] == ["  001  world=8", "       nodes=2 tasks=8 cpus=1 mem=7G"]
    assert lines[-1].startswith("3 would be submitted; nothing was written")
    assert not list(folder.iterdir())
    finish(folder_of_train("world=4,8,16") / "001")
    lines = told(*WORLDS, "--dry-run")
    assert lines[4].startswith("       finished") and lines[-1].startswith("2 would be submitted")


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["world=4,8", "slurm.nodes=8"], ": world=4\n  There are more nodes"),
        (["world=2,9", "slurm.nodes=2", "slurm.ntasks_per_node=4"], ": world=9\n  9 workers"),
        (["seed=0,1", "epochs=3,0"], ": seed=0 epochs=0\n  'epochs'"),
        (["model=sage,gat", "model.heads=2"], "model=sage"),
        (["slurm.time=60,2"], ": slurm.time=2\n  The time limit"),
        (["seed=0,1", "slurm.setup=['if true']"], ": seed=0\n  bash"),
        (["seed=0,1", "run_dir=runs/one"], "given:   run_dir=runs/one\n  next:    leave run_dir out"),
        (["seed=0,1", "resume=runs/one"], "resumed as one.\n  given:   -m resume=runs/one"),
        (["seed=0,1", "comm.port=29500"], "one port"),
        (["seed=0,1", "comm.max_restarts=1"], "A SLURM job"),
        (["seed=0,1", "skip_finished=perhaps"], "'skip_finished'"),
        (["seed=0,1", "slurm.array_parallelism=2"], "job array"),
        (["seed=0,1", "slurm.array=true,false"], "'slurm.*' cannot be swept"),
        (["seed=0,1", "threads=1,2", "slurm.array=true"], "'threads' cannot be swept.\n  given:   threads=1 and threads=2"),
        (["seed=0,1", "comm.port=1,2", "slurm.array=true"], "one port"),
        (["seed=0,1", "world=auto"], "world=auto"),
    ],
)
def test_what_cannot_be_is_refused_in_one_message_before_anything_is_written(words: list[str], what: str, folder: Path) -> None:
    done = sargnn_here(folder, "slurm", "-m", *words)
    assert done.returncode == 1 and what in done.stderr and "Traceback" not in done.stderr
    assert done.stderr.count("sargnn: ") == 1 and not done.stdout
    assert not list(folder.iterdir())


def test_an_array_cannot_run_finished_points_again(folder: Path) -> None:
    words = ("slurm", "-m", "seed=0,1", "slurm.array=true", "skip_finished=false")
    finish(folder_of_train("seed=0,1") / "000")
    done = sargnn_here(folder, *words)
    assert done.returncode == 1 and all(word in done.stderr for word in ("skip_finished=false", "slurm.array=false"))


def test_ports_of_their_own_are_taken(folder: Path) -> None:
    told("-m", "comm.port=29500,29501")
    (scripts,) = (folder / "slurm").iterdir()
    assert "MASTER_PORT=29501\n" in (scripts / "001.sbatch").read_text()


def test_submitting_at_once_notes_the_jobs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    submitted("true", folder / "tools")
    monkeypatch.setenv("PATH", f"{folder / 'tools'}:/usr/bin:/bin")
    lines = told("-m", "seed=0,1", "slurm.submit=true")
    (sweep,) = (folder / "sweeps").iterdir()
    assert [line.partition(":")[0] for line in lines[:2]] == ["job 3", "job 6"] and "--status" in lines[-1]
    assert [read_job(sweep / f"00{n}")["jobs"] for n in range(2)] == [["3"], ["6"]]


def test_a_folder_is_under_way_while_its_lock_is_held(folder: Path) -> None:
    assert not is_under_way(folder) and not list(folder.iterdir())
    with hold_run_dir(folder):
        assert is_under_way(folder)
    assert not is_under_way(folder)


def test_numbers_of_tasks_are_written_as_sbatch_reads_them() -> None:
    assert [_ranges(one) for one in ([0], [0, 1, 2], [0, 2], [0, 1, 5, 7, 8])] == ["0", "0-2", "0,2", "0-1,5,7-8"]
