"""``sargnn export-ogb``: a dataset as raw files in one of OGB's layouts."""

from __future__ import annotations

import os

from sargnn.cli.command_line import CommandLine
from sargnn.errors import ConfigError

_SYMMETRIC = ("products_like", "synthetic")


def main(line: CommandLine) -> int:
    """Write raw files."""
    from sargnn.cli.compose import compose_verb
    from sargnn.config.verbs import parse_export

    config = parse_export(compose_verb("export_ogb", line.overrides, folders=line.folders))
    from pathlib import Path

    from sargnn.data.dataset import open_dataset
    from sargnn.data.ogb.export import export
    from sargnn.data.prepare import prepare_dataset
    from sargnn.tracking.progress import Steps

    out = Path(os.path.expanduser(config.out))
    if getattr(config.dataset, "add_inverse_edges", False):
        raise ConfigError(
            "Inverse edges would be there twice when they are read.",
            given="dataset.add_inverse_edges=true",
            allowed="dataset.add_inverse_edges=false",
        )
    with Steps():
        dataset = open_dataset(prepare_dataset(config.dataset, config.store_dir, config.prepare.bytes), verify=False)
        natural = "typed" if dataset.schema.typed else "binary" if "papers" in config.dataset.name else "csv"
        layout = natural if config.layout == "auto" else config.layout
        export(dataset, out, layout, symmetric=config.dataset.name in _SYMMETRIC)
    print(out)
    return 0
