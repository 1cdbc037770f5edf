"""``sargnn predict``, ``evaluate``, ``export`` and ``import-model``: what a trained run says about every node, how good that
is, and parameters that leave this project or come into it.
"""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Any

from sargnn.cli.command_line import CommandLine
from sargnn.cli.compose import compose_verb
from sargnn.cli.resume import names_dataset, read_resumed
from sargnn.config.run import load, parse
from sargnn.errors import ConfigError, SargnnError
from sargnn.tracking import files
from sargnn.tracking.find_runs import find_run, run_names
from sargnn.tracking.progress import Steps, say
from sargnn.tracking.tables import score_table


def main(line: CommandLine) -> int:
    settings = line.settings
    run = _run_folder(settings["run"])
    resumed = read_resumed([f"resume={run}", *line.overrides], line.folders, trains=False)
    assert resumed is not None
    config, run_dir = resumed
    from sargnn.run.predict import FOLDER
    from sargnn.run.predict import predict as write

    folder = Path(os.path.expanduser(str(settings["out"] or run_dir / FOLDER)))
    asked: dict[str, Any] = {"embeddings": bool(settings["embeddings"]), "top": _count(settings["top"])}
    asked["relation"] = settings["relation"] or None
    asked["pairs"] = os.path.abspath(os.path.expanduser(str(settings["pairs"]))) if settings["pairs"] else None
    how: dict[str, Any] = {"which": str(settings["checkpoint"]), "form": str(settings["format"])}
    how |= {"other_graph": names_dataset(line.overrides), "new_rows": str(settings["new_rows"])}
    manifest = write(config, run_dir, folder.resolve(), **how, **asked)
    what = f"{manifest['nodes']} nodes of type '{manifest['node_type']}'"
    what = f"{manifest['edges']} edges" if "edges" in manifest else what
    say(f"{what} in {manifest['time_s']:.1f} s")
    for name in [*manifest["files"], *manifest.get("tables", [])]:
        print(folder / name)
    return 0


def _count(given: object) -> int:
    """How many partners are wanted of each node. Raises ``ConfigError`` for what is no number."""
    if isinstance(given, int) and not isinstance(given, bool) and given >= 0:
        return given
    raise ConfigError("'top' is a number of partners.", given=str(given), allowed="1 and more")


def _run_folder(given: object) -> Path:
    """Raises ``ConfigError`` where no run is named, or there is none of that name."""
    if not given:
        names = run_names()
        hint = "its name or its folder: run=NAME" if names else "sargnn train makes one in runs/"
        raise ConfigError("A run must be named.", allowed=names, hint=hint)
    return find_run(str(given))


def evaluate(line: CommandLine) -> int:
    settings = line.settings
    run_dir = _run_folder(settings["run"])
    import numpy as np

    from sargnn.graph.dataset import open_dataset
    from sargnn.run.predict import FOLDER
    from sargnn.sources.prepare import prepare_dataset
    from sargnn.tasks.judge import judge_predictions, judged_of
    from sargnn.training.evaluation import MANIFEST

    folder = Path(os.path.expanduser(str(settings["predictions"] or run_dir / FOLDER)))
    if not (folder / MANIFEST).exists():
        raise ConfigError("There are no predictions.", given=str(folder), hint=f"sargnn predict run={run_dir}")
    try:
        manifest = files.read_json(folder / MANIFEST)
        made_of, node_type_name, written = (manifest[key] for key in ("dataset_hash", "node_type", "files"))
    except (SargnnError, KeyError) as error:
        raise _damaged(folder / MANIFEST, run_dir) from error
    config = load(folder / files.CONFIG)  # the run's, with what predict was told to change
    trained = load(run_dir / files.CONFIG)
    groups = ("model", "optim", "labels", "seed", *(() if manifest.get("other_graph") else ("dataset",)))
    if any(getattr(config, group) != getattr(trained, group) for group in groups):
        hint = f"sargnn predict run={run_dir} out=FOLDER"
        raise ConfigError("The predictions are of another run.", given=str(folder), hint=hint)
    with Steps():
        dataset = open_dataset(prepare_dataset(config.dataset, config.store_dir, config.prepare.bytes), verify=False)
    if dataset.content_hash != made_of:
        raise ConfigError("The predictions are of another dataset.", given=made_of, allowed=dataset.content_hash)
    unit = "edges" if config.predicts_edges else "pairs" if config.predicts_links else "nodes"
    of_nodes, types = not config.predicts_pairs, dataset.schema.node_types
    lacks = node_type_name not in types if of_nodes else unit == "pairs" and "evaluation" not in manifest
    if lacks or not isinstance(written, list):
        raise _damaged(folder / MANIFEST, run_dir)
    first = types.index(node_type_name) if of_nodes else 0
    nodes = slice(*dataset.schema.offsets[first : first + 2]) if of_nodes else None

    def read(name: str, shape: tuple[int, ...]) -> np.ndarray:
        try:
            array: np.ndarray = np.load(folder / name, mmap_mode="r")
        except (OSError, ValueError, EOFError) as error:
            raise _damaged(folder / name, run_dir) from error
        if array.shape != shape:
            raise _damaged(folder / name, run_dir)
        return array

    if config.predicts_links:  # the workers that wrote them have measured them
        content, judge = manifest["evaluation"], "sargnn"
    else:
        content, judge = judge_predictions(judged_of(dataset, nodes), config.metric, read, written)
    files.write_json(folder / "evaluation.json", content)
    score_table(content["metric"], judge, content["scores"], unit, content[unit])
    return 0


def export(line: CommandLine) -> int:
    run_dir, settings = _run_folder(line.settings["run"]), line.settings
    from sargnn.export.write import MODEL, PARAMETERS
    from sargnn.export.write import export as write
    from sargnn.graph.dataset import open_dataset
    from sargnn.run.other_graph import labelled_of, trained_store
    from sargnn.run.predict import choose_checkpoint
    from sargnn.training.checkpoint import open_checkpoint

    config = load(run_dir / files.CONFIG)
    folder = Path(os.path.expanduser(str(settings["out"] or run_dir / "export")))
    if not config.model.trains:
        raise ConfigError(f"'{config.model.name}' has no parameters that could be exported.", given=str(run_dir))
    checkpoint = open_checkpoint(choose_checkpoint(run_dir, str(settings["checkpoint"])), verify=True)
    dataset = open_dataset(trained_store(config, checkpoint.meta["dataset_hash"]), verify=False)
    write(config, dataset, labelled_of(dataset), checkpoint, folder)
    for name in (MODEL, PARAMETERS):
        print(folder / name)
    return 0


def import_model(line: CommandLine) -> int:
    """Write parameters that were trained elsewhere as a checkpoint, and print what starts from them."""
    config = parse(compose_verb("train", line.overrides, folders=line.folders))
    given, out = " ".join(line.words), Path(os.path.expanduser(str(line.settings["out"])))
    file = Path(os.path.expanduser(given))
    if len(line.words) != 1:
        raise ConfigError("One file with parameters must be named.", given=given or "none", allowed=".pt or .safetensors")
    if not file.is_file():
        raise ConfigError("There is no such file.", given=given, hint="torch.save(net.state_dict(), FILE)")
    if out.exists():
        raise ConfigError("The folder is there already.", given=str(out), hint="out=FOLDER, a new one")
    if not config.model.trains:
        raise ConfigError(f"'{config.model.name}' has no parameters.", given=f"model={config.model.name}")
    from sargnn.export.read import read
    from sargnn.graph.dataset import open_dataset
    from sargnn.graph.store import StoreWriter
    from sargnn.run.check import check_graph
    from sargnn.sources.prepare import prepare_dataset
    from sargnn.training.checkpoint import FORMAT_VERSION

    with Steps():
        store = prepare_dataset(config.dataset, config.store_dir, config.prepare.bytes)
        model = check_graph(config, store)
        dataset = open_dataset(store, verify=False)
        arrays = read(config, dataset, model, file)
        with StoreWriter(out, "checkpoint", FORMAT_VERSION) as writer:
            for name, array in arrays.items():
                writer.put(name, array)
            writer.meta = {"epoch": 0, "dataset_hash": store.name, "schema": dataset.schema.to_json()}
    print(out)
    say(f"start from it: sargnn train {shlex.join((*line.overrides, f'init_from={out}'))}")
    return 0


def _damaged(file: Path, run_dir: Path) -> ConfigError:
    return ConfigError("The predictions are damaged.", given=str(file), hint=f"make them again: sargnn predict run={run_dir}")
