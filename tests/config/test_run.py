"""The configuration's checks, each with the message a person gets."""

from __future__ import annotations

import dataclasses
import inspect
import itertools
from functools import cache
from pathlib import Path

import pytest
import yaml

from sargnn.cli.compose import compose_verb
from sargnn.cli.conf import conf_dir
from sargnn.config.choices import DatasetSettings, ModelSettings
from sargnn.config.fields import DECIDES, FREE, LOSSES, RUN
from sargnn.config.run import RunConfig, differing, fixed_settings, load, parse, save
from sargnn.errors import ConfigError
from sargnn.models import MODELS
from sargnn.resolve import load_attribute
from sargnn.sources import DATASETS
from tests.configs import config
from tests.parity.covering import only

NEEDED = {
    "arrays": ["dataset.root=x"],
    "custom": ["model.target=package.module:Model"],
    "given": ["partitioner.file=x.npy"],
    "ogb_dir": ["dataset.root=x"],
    "model=none": ["task=links"],
    "optim=custom": ["optim.target=torch.optim:SGD"],
    "python": ["dataset.target=package.module:graph"],
    "shared": ["servers=2"],
    "stored": ["dataset.root=x"],
    "tables": ["dataset.root=x.yaml"],
    "triples": ["dataset.root=x"],
}
"""Of an option, the settings that have no default."""


NOT_AS_WRITTEN = {"dataset.version", "partitioner.balance", "name", "target", "file"}
"""Settings whose value in a file is not what an older ``config.yaml`` without them means: a graph's first version; ``stream``
balances both; and what an option is."""


GROUPS = sorted({path.name for path in conf_dir().iterdir() if path.is_dir()} - {"experiment", "slurm", "figure", "race"})


@pytest.mark.parametrize("group", only(["", *GROUPS[::3]], ["", *GROUPS]))
def test_every_option_parses_and_a_default_in_its_file_is_that_of_its_field(group: str) -> None:
    """New runs take what the file says, beside the comment that help shows; an older ``config.yaml`` what the field says."""
    options = [path.stem for path in (conf_dir() / group).glob("[!_]*.yaml")] if group else ["cora"]  # a base is no option
    assert options
    for option in options:
        run = config(f"{group or 'dataset'}={option}", *NEEDED.get(f"{group}={option}", NEEDED.get(option, [])))
        settings = getattr(run, group, run)
        for field in dataclasses.fields(settings) if group != "debug" else ():
            value = getattr(settings, field.name)
            if {field.name, f"{group}.{field.name}"} & NOT_AS_WRITTEN or dataclasses.is_dataclass(value):
                continue
            assert field.default in (dataclasses.MISSING, value), f"{group}.{field.name} of {option}"


EXPERIMENTS = sorted(path.stem for path in (conf_dir() / "experiment").glob("[!_]*.yaml") if "_sweep" not in path.stem)
"""A sweep is several runs."""


@pytest.mark.parametrize("name", only(EXPERIMENTS[::5], EXPERIMENTS))
def test_every_experiment_parses(name: str) -> None:
    """Without its graph's files."""
    run = config(f"experiment={name}", *(["dataset.root=x"] if name.startswith(("cora_", "tuned_minesweeper_")) else []))
    if name.startswith("cora_"):
        assert config(f"experiment={name}", "dataset=cora").dataset.name == "cora"
    if name.startswith("betty_") and name != "betty_products":
        assert config(f"experiment={name}", "model=gat").model.name == "gat"
    if name.endswith("_gat_32"):
        assert differing(config(f"experiment={name.removesuffix('_32')}"), run) == ["model.hidden: 32 instead of 128"]


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("optim.lr=-1", ["optim.lr", "more than 0"]),
        ("optim.lr=nan", ["optim.lr", "nan"]),
        ("epochs=0", ["epochs", "at least 1"]),
        ("world=-2", ["world", "at least 1"]),
        ("world=2.5", ["world", "whole number"]),
        ("model.dropout=1", ["model.dropout", "less than 1"]),
        ("model.norm=group", ["model.norm", "batch, layer, none"]),
        ("model.hidden=many", ["model.hidden", "whole number"]),
        ("seed=4294967296", ["seed"]),
        ("+model.hiden=3", ["model.hiden", "model.hidden"]),
        ("+wrld=3", ["wrld", "world"]),
        ("+partitioner.file=x.npy", ["reads no file", "partitioner=metis", "partitioner=given"]),
        ("partitioner.name=given", ["'partitioner.file' must name", "FILE.npy"]),
        ("optim.weight_decay_of.first=-1", ["optim.weight_decay_of.first", "at least 0"]),
        ("model=gat model.v2=true model.attn_dst=false", ["model.attn_dst", "GATv2", "model.v2=false"]),
        ("model=gat model.v2=true model.symmetric_norm=true", ["model.symmetric_norm", "GATv2", "model.v2=false"]),
        ("model.num_layers=256 model=gcnii", ["model.num_layers", "at most 255"]),
    ],
)
def test_wrong_values(override: str, words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        config(*override.split())
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_round_trip(tmp_path: Path) -> None:
    run = config("model=gcn", "world=3")
    save(run, tmp_path / "config.yaml")
    assert load(tmp_path / "config.yaml") == run
    assert parse(yaml.safe_load((tmp_path / "config.yaml").read_text())) == run


def test_config_hash_covers_what_decides_the_losses() -> None:
    base = config()
    for same in ("world=8", "mode=one_shot", "kernel=dgl", "partitioner=random", "threads=1", "run_name=x", "comm.timeout_s=9"):
        assert config(same).config_hash == base.config_hash, same
    for other in (
        "seed=1",
        "model.hidden=8",
        "optim.lr=0.1",
        "epochs=7",
        "precision=fp64",
        "dataset.homophily=0.5",
        "optim.weight_decay_of.first=0.1",
    ):
        assert config(other).config_hash != base.config_hash, other


HASHES = {
    "": "89c166dea9577d99",
    "seed=7": "014f39f607f508b7",
    "model=gcn": "1693661cc53a066a",
    "model=gat": "333ea3461312d0b7",
    "model=gat model.v2=true model.attn_dropout=0.2 dataset=products_like dataset.version=1": "8db55b800cdfdbd4",
    "model=rgcn dataset=mag_like dataset.version=1": "cffd891b7bd4f44e",
    "model=rgcn model.order=aggregate_first dataset=mag_like dataset.version=1": "cffd891b7bd4f44e",
    "model=rgcn model.bases=2 dataset=ogbn-mag dataset.root=elsewhere": "049a7d4a86c56dc7",
    "dataset=products_like": "ee0a389d2a97050d",
    "model=mlp": "ac7fe98ed8ee2f69",
    "model=linear": "18a6ebed35cec571",
    "model=label_propagation epochs=1": "b4ca4a1271a643b2",
    "model.aggregator=max precision=fp64": "d243b29ab33a5c5f",
    "dataset=ogb_dir dataset.root=x": "3d84697d510e9b7d",
    "dataset=ogb_dir dataset.root=y dataset.homogenize=false": "3d84697d510e9b7d",
    "dataset=stored dataset.root=x dataset.content=0123456789abcdef": "b9eb587243f590c8",
    "dataset=ogbn-papers100M mfg=true": "bc920eb2beaff1b8",
    "mfg=true model.norm=none": "18c5759dab983ef4",
    "labels=masked": "6c15365fbf1decf8",
    "labels=masked labels.rate=0.3 labels.reuse=1": "8c45f7c69c3a6d9d",
    "labels.rate=0.3": "89c166dea9577d99",
    "optim=adamw optim.clip=1.0 optim.schedule=cosine": "343e2c57851533c6",
    "early_stopping=4 eval_every=2": "741eddebbb22849b",
    "eval_every=2": "89c166dea9577d99",
    "smooth=cs": "89c166dea9577d99",
    "dataset.add_self_loops=true": "908be316cc8921f4",
    "model=gcn dataset.add_self_loops=false": "c9258329f12e62bc",
    "dataset.edge_weights=true": "89c166dea9577d99",
    "dataset.edge_weights=false": "3413feaf57b13dce",
    "experiment=products_gat": "b55413857b8590dd",
    "experiment=mag_rgcn": "94299a45cb33ec54",
    "optim.label_smoothing=0.1 optim.warmup=3": "cfd7609fdea0f409",
    "optim.weight_decay_of=null": "89c166dea9577d99",
    "world=9 mode=one_shot kernel=dgl partitioner=range comm.timeout_s=5 device=cpu": "89c166dea9577d99",
    "partitioner=given partitioner.file=x.npy": "89c166dea9577d99",
    "model=custom model.target=package.module:Model model.content=0123456789abcdef": "64e4c0ef9fc09472",
    "model=custom model.target=m:Model model.content=0123456789abcdef model.args.deep=2 model.embedding=3": "ef0d4d5ba68813ea",
}
"""Runs that exist carry these: a checkpoint is gone on from only where its hash is that of the run's settings."""


@pytest.mark.parametrize("overrides", HASHES)
def test_the_hash_of_a_configuration_never_changes(overrides: str) -> None:
    assert config(*overrides.split()).config_hash == HASHES[overrides]


def test_every_setting_says_what_it_decides() -> None:
    kinds = {kind[DECIDES] for kind in (LOSSES, RUN, FREE)}
    for one in dataclasses.fields(RunConfig):
        assert one.metadata.get(DECIDES) in kinds, one.name


def test_differing_names_what_decides_the_losses() -> None:
    base = config("dataset=ogbn-arxiv", "dataset.root=here")
    other = config(
        "dataset=ogbn-arxiv", "dataset.root=there", "world=2", "mode=one_shot", "eval_every=3", "smooth=cs", "optim.clip=2",
        "model.hidden=8", "seed=1",
    )  # fmt: skip
    assert differing(base, other) == [
        "model.hidden: 8 instead of 256",
        "optim.clip: 2.0 instead of None",
        "seed: 1 instead of 0",
    ]
    assert differing(config("model=rgcn"), config("model=rgcn", "model.order=transform_first")) == []
    stops = config("early_stopping=2", "eval_every=5"), config("early_stopping=2", "eval_every=2")
    assert differing(*stops) == ["eval_every: 2 instead of 5"]


def test_what_stays_between_two_submissions() -> None:
    base = fixed_settings(config())
    free = (
        "threads=3",
        "comm.timeout_s=9",
        "tracking=none",
        "checkpoint.every=1",
        "prepare.buffer=1GB",
        "run_dir=x",
        "profile=true",
    )
    for same in (*free, "store_dir=x"):
        assert fixed_settings(config(same)) == base, same
    for other in (
        "world=2",
        "mode=one_shot",
        "kernel=dgl",
        "partitioner=range",
        "run_name=x",
        "eval_every=1",
        "smooth=cs",
        "seed=1",
    ):
        assert fixed_settings(config(other)) != base, other


@pytest.mark.parametrize("table", [MODELS, DATASETS], ids=["models", "datasets"])
def test_every_entry_is_a_class_of_settings(table: dict[str, str]) -> None:
    base = ModelSettings if table is MODELS else DatasetSettings
    for name, entry in table.items():
        found = load_attribute(entry)
        assert issubclass(found, base) and dataclasses.is_dataclass(found) and not inspect.isabstract(found), name


def test_what_is_known_of_each_model() -> None:
    @cache
    def model(*overrides: str) -> ModelSettings:
        needed = [NEEDED.get(word, NEEDED.get(word.removeprefix("model="), [])) for word in overrides[:1]]
        return config(*overrides, *itertools.chain(*needed)).model

    operations = {name: model(f"model={name}").operations for name in MODELS}
    assert operations == {
        "sage": ("sum",), "gcn": ("sum",), "gat": ("gat",), "sgc": ("sum",), "appnp": ("sum",), "gcnii": ("sum",),
        "gin": ("sum",), "resgcn": ("sum",),
        "rgcn": ("sum",), "rgat": ("gat",), "mlp": (), "linear": (), "none": (),
        "label_propagation": ("sum",), "custom": ("sum",),
    }  # fmt: skip
    assert model("model.aggregator=max").operations == ("max",) and model("model=gat", "model.v2=true").operations == ("gatv2",)
    assert [name for name in MODELS if model(f"model={name}").adds_self_loops] == ["gat", "gcn", "sgc", "appnp", "gcnii"]
    assert [name for name in MODELS if not model(f"model={name}").trains] == ["label_propagation"]
    assert [name for name in MODELS if not model(f"model={name}").has_embeddings] == [
        "linear", "none", "label_propagation", "custom",
    ]  # fmt: skip
    assert model("model.aggregator=pool").operations == ("max",)
    lstm = model("model.aggregator=lstm", "model.dropout=0", "mode=one_shot")
    assert lstm.draws_by_id and not model("model.aggregator=pool", "model.dropout=0").draws_by_id
    assert config("model.aggregator=lstm", "world=1").world == 1
    for weightless, name in ((lstm, "lstm"), (model("model.aggregator=pool"), "pool")):
        assert weightless.no_weights is not None and f"model.aggregator={name}" in weightless.no_weights
    assert model("model=gin").no_weights is None and not model("model=gin").divides_by_weights
    assert not model("model.norm=layer").norms_over_rows and model().norms_over_rows
    assert model("model=custom").draws_by_id and model("model=custom").norms_over_rows
    assert not model("model.dropout=0").draws_by_id and model("model.dropout=0", "model.input_dropout=0.1").draws_by_id
    assert model("model=gat", "model.dropout=0", "model.attn_dropout=0.1").draws_by_id
    assert not model("model=gat", "model.dropout=0").draws_by_id
    assert model("model=gat", "model.dropout=0", "model.edge_dropout=0.1").draws_by_id
    assert not model("model=sgc").draws_by_id and model("model=sgc", "model.input_dropout=0.1").draws_by_id
    assert model("model=appnp", "model.dropout=0", "model.edge_dropout=0.1").draws_by_id


CRAFTED: dict[str, str | bytes] = {
    "deep lists": "dataset: " + "[" * 20_000,
    "deep mappings": "".join(f"{' ' * i}a:\n" for i in range(3000)),
    "aliases": "a: &a [x, x, x]\nb: [*a, *a]",
    "many aliases": "a0: &a0 [x, x]\n"
    + "".join(f"a{i + 1}: &a{i + 1} [*a{i}, *a{i}, *a{i}]\n" for i in range(60))
    + "seed: *a60",
    "a list": "[1, 2]",
    "a text": "hello",
    "nothing": "",
    "no YAML": "a: [",
    "a date that is none": "seed: 2024-13-45",
    "many digits": "seed: " + "9" * 6000,
    "a tag": "seed: !!python/object/apply:os.getcwd []",
    "bytes that are no text": b"\xff\xfe",
}


@pytest.mark.parametrize("kind", CRAFTED)
def test_a_crafted_file_is_answered_in_one_message(kind: str, tmp_path: Path) -> None:
    path, content = tmp_path / "config.yaml", CRAFTED[kind]
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(ConfigError) as caught:
        load(path)
    assert str(path) in str(caught.value) and len(str(caught.value)) < 1000


@pytest.mark.parametrize(
    ("group", "key", "value"),
    [
        ("model", "name", "[sage]"),
        ("model", "target", "[1]"),
        ("model", "name", "{sage: sage}"),
        ("optim", "lr", "1" + "0" * 400),
        ("optim", "lr", "0x" + "f" * 20_000),
        ("model", "hidden", "-0x" + "f" * 20_000),
        ("model", "norm", "x" * 100_000),
        ("model", "norm", "[" * 50 + "]" * 50),
        ("model", "y" * 100_000, "1"),
    ],
)
def test_a_crafted_value_is_answered_in_one_message(group: str, key: str, value: str, tmp_path: Path) -> None:
    path, mapping = tmp_path / "config.yaml", compose_verb("train", [])
    mapping[group] = {**mapping[group], key: "VALUE"}
    path.write_text(yaml.safe_dump(mapping, width=10**6).replace("VALUE", value))
    with pytest.raises(ConfigError) as caught:
        load(path)
    assert str(path) in str(caught.value) and len(str(caught.value)) < 3000


def test_self_loops_follow_the_model() -> None:
    assert config("model=gcn").add_self_loops and not config("model=sage").add_self_loops
    assert config("model=sage", "dataset.add_self_loops=true").add_self_loops
    assert config("model=gcn", "dataset.add_self_loops=false").add_self_loops is False


def test_outputs_are_classes_or_the_embedding_of_what_is_predicted() -> None:
    assert config("model.hidden=24").num_outputs(3) == 3
    for task in ("links", "edges"):
        assert config(f"task={task}", "model.hidden=24").num_outputs(3) == 24
        assert config(f"task={task}", f"{task}.embedding_dim=10").num_outputs(3) == 10


def test_name() -> None:
    assert config("seed=5").name == "sage-sar-w4-s5"
    assert dataclasses.replace(config(), run_name="mine").name == "mine"
