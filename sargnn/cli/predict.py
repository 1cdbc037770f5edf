"""``sargnn predict`` and ``sargnn evaluate``: what a trained run says about every node, and how good that is."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from sargnn.cli.help import Help, help_text, refuse_sweep, wanted
from sargnn.errors import ConfigError

PREDICT = Help(
    usage="predict run=RUN_DIR [world=N] [mode=MODE] [key=value ...]",
    text="Predict all nodes with a run's model, in the order of original ids: predictions.npy (classes), logits.npy, with "
    "smooth=cs also smoothed.npy. They go to RUN_DIR/predictions or out=FOLDER. world, mode, kernel, partitioner and smooth "
    "may differ from the training's. checkpoint=best takes the one with the best validation accuracy instead of the newest; "
    "embeddings=true also writes what the last layer reads.",
    examples=(
        ("predict run=runs/sage-sar-w4-s0", ""),
        ("predict run=runs/sage-sar-w4-s0 world=8 mode=one_shot embeddings=true", ""),
        ("predict run=runs/sage-sar-w4-s0 smooth=cs out=smoothed", "Correct & Smooth afterwards"),
    ),
)
EVALUATE = Help(
    usage="evaluate run=RUN_DIR [predictions=FOLDER]",
    text="Score the predictions of a run with OGB's evaluator, split by split, and write evaluation.json beside them.",
    examples=(("evaluate run=runs/sage-sar-w4-s0", ""), ("evaluate run=runs/sage-sar-w4-s0 predictions=smoothed", "")),
)
_OWN = ("run", "out", "checkpoint", "embeddings")


def predict(arguments: Sequence[str]) -> int:
    """Write predictions."""
    if wanted(arguments):
        print(help_text(PREDICT))
        return 0
    from sargnn.cli.compose import read_words
    from sargnn.cli.resume import resumed
    from sargnn.cli.settings import read_settings

    words = read_words(arguments)
    refuse_sweep(words)
    if words.show:
        raise ConfigError("A run's configuration is in its folder.", given="--cfg", hint="config.yaml in the run folder")
    own = [one for one in words.overrides if one.partition("=")[0] in _OWN]
    _, settings = read_settings(own, {"run": "", "out": "", "checkpoint": "newest", "embeddings": False})
    if settings["checkpoint"] not in ("newest", "best"):
        raise ConfigError("'checkpoint' has a value that is not known.", given=settings["checkpoint"], allowed="newest, best")
    run = _run(settings["run"])
    found = resumed([f"resume={run}", *(one for one in words.overrides if one not in own)])
    assert found is not None
    config, run_dir = found
    from sargnn.launch.predict import FOLDER
    from sargnn.launch.predict import predict as write
    from sargnn.tracking.progress import say

    folder = Path(str(settings["out"] or run_dir / FOLDER)).expanduser()
    which, embeddings = str(settings["checkpoint"]), bool(settings["embeddings"])
    manifest = write(config, run_dir, folder.resolve(), which=which, embeddings=embeddings)
    say(f"{manifest['nodes']} nodes of type '{manifest['node_type']}' in {manifest['time_s']:.1f} s")
    for name in manifest["files"]:
        print(folder / name)
    return 0


def evaluate(arguments: Sequence[str]) -> int:
    """Score predictions."""
    if wanted(arguments):
        print(help_text(EVALUATE))
        return 0
    from sargnn.cli.settings import read_settings

    plain, settings = read_settings(arguments, {"run": "", "predictions": ""})
    if plain:
        raise ConfigError("This verb takes no such word.", given=plain[0], allowed="run=RUN_DIR")
    run_dir = _run(settings["run"])
    import numpy as np

    from sargnn.config import load
    from sargnn.data.dataset import SPLITS, open_dataset
    from sargnn.data.prepare import prepare_dataset
    from sargnn.interop.ogb import accuracy
    from sargnn.launch.predict import FOLDER
    from sargnn.tracking import files
    from sargnn.tracking.progress import Steps
    from sargnn.tracking.tables import accuracy_table
    from sargnn.training.predict import CLASSES, LOGITS, MANIFEST, SMOOTHED

    folder = Path(str(settings["predictions"] or run_dir / FOLDER)).expanduser()
    if not (folder / MANIFEST).exists():
        raise ConfigError("There are no predictions.", given=str(folder), hint=f"sargnn predict run={run_dir}")
    try:
        manifest = files.read_json(folder / MANIFEST)
        made_of, node_type_name, written = (manifest[key] for key in ("dataset_hash", "node_type", "files"))
    except (ValueError, KeyError, OSError) as error:
        raise _damaged(folder / MANIFEST, run_dir) from error
    config = load(folder / files.CONFIG)  # the run's, with what predict was told to change
    with Steps():
        dataset = open_dataset(prepare_dataset(config.dataset, config.store_dir, config.prepare.bytes), verify=False)
    if dataset.content_hash != made_of:
        raise ConfigError("The predictions are of another dataset.", given=made_of, allowed=dataset.content_hash)
    node_type = dataset.schema.node_types.index(node_type_name)
    nodes = slice(*dataset.schema.offsets[node_type : node_type + 2])
    labels, split = np.asarray(dataset.labels[nodes]), np.asarray(dataset.split[nodes])

    def read(name: str, shape: tuple[int, ...]) -> np.ndarray:
        try:
            array: np.ndarray = np.load(folder / name, mmap_mode="r")
        except (OSError, ValueError, EOFError) as error:
            raise _damaged(folder / name, run_dir) from error
        if array.shape != shape:
            raise _damaged(folder / name, run_dir)
        return array

    classes = {"predictions": read(CLASSES, labels.shape)}
    if SMOOTHED in written:
        logits = read(LOGITS, (len(labels), dataset.num_classes))
        pieces = [logits[first : first + 65536].argmax(1) for first in range(0, len(logits), 65536)]
        classes = {"model": np.concatenate(pieces), "smoothed": classes["predictions"]}
    found = {
        what: {
            name: accuracy(dataset.name, labels[rows], predicted[rows]) if len(rows) else None
            for name, rows in ((name, np.flatnonzero(split == value)) for name, value in SPLITS.items())
        }
        for what, predicted in classes.items()
    }
    counts = {name: int((split == value).sum()) for name, value in SPLITS.items()}
    files.write_json(folder / "evaluation.json", {"accuracy": found, "nodes": counts})
    accuracy_table(found, counts)
    return 0


def _damaged(file: Path, run_dir: Path) -> ConfigError:
    return ConfigError("The predictions are damaged.", given=str(file), hint=f"make them again: sargnn predict run={run_dir}")


def _run(given: object) -> Path:
    run_dir = Path(str(given)).expanduser()
    if not given or not (run_dir / "config.yaml").is_file():
        raise ConfigError("A run folder must be named.", given=str(given) or None, hint="run=RUN_DIR, as a run prints it")
    return run_dir
