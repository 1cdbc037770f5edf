"""docs/FIGURES.md from figures that ``sargnn reproduce`` has drawn: each with its picture, its table, and where it differs.

    python scripts/figures_page.py FIGURES_FOLDER docs

writes FIGURES.md into the second folder and pictures into its img/figures.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from sargnn.cli.conf import built_in_folder
from sargnn.report.figures.spec import place_of, read_spec

_HEAD = """# The papers' figures

Drawn by `sargnn reproduce FIGURE`: each is a sweep of ordinary runs, whose picture and table have the paper's numbers where its
text or tables give any, as dashed outlines. Most bars of the three papers have no numbers in the text; of these only what is
said in words stands here. Scales are small, so that each takes minutes on two cores; `dataset.scale=` and `world=` make them
larger, `launch=slurm` runs them on a cluster:

    sargnn reproduce                                    # what there is, and how long it takes
    sargnn reproduce sar.fig4
    sargnn reproduce sar.fig4 dataset.scale=0.1 world=8
    sargnn reproduce sar.fig6 launch=slurm world=128 dataset.scale=1.0

Graphs are stand-ins drawn at a share of the named graph's size ([DATASETS](DATASETS.md)): ratios can be compared with the
paper's, seconds and gigabytes cannot. A figure is a file, `conf/figure/NAME.yaml`; one of your own in the folder `figure/` of
`--config-dir` is drawn alike.
"""
_PAPERS = {
    "sar": "SAR (Mostafa, 2022)", "betty": "Betty (Yang et al., 2023)", "granndis": "GraNNDis (Song et al., 2024)",
}  # fmt: skip


def order(name: str) -> tuple[int, str, int]:
    """By paper, figures before tables, by number."""
    paper, kind, number = place_of(name)
    return list(_PAPERS).index(paper), kind, number


def main(drawn: Path, docs: Path) -> None:
    pictures = docs / "img" / "figures"
    pictures.mkdir(parents=True, exist_ok=True)
    folder, lines, before = built_in_folder().built_in / "figure", [_HEAD], ""
    for name in sorted((path.stem for path in folder.glob("*.yaml")), key=order):
        page = drawn / f"{name}.md"
        if not page.exists():
            print(f"not drawn: {name}", file=sys.stderr)
            continue
        paper = name.partition(".")[0]
        if paper != before:
            lines.append(f"## {_PAPERS[paper]}\n")
            before = paper
        spec = read_spec(folder / f"{name}.yaml")
        shutil.copy(drawn / f"{name}-8in.png", pictures / f"{name}.png")
        body = page.read_text().split("\n", 2)[2].replace(f"]({name}-8in.png)", f"](img/figures/{name}.png)")
        lines.append(f"### {name}: {spec.title}\n\n{body.strip()}\n")
    (docs / "FIGURES.md").write_text("\n".join(lines))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
