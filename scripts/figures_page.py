"""Pages of docs/figures from figures that ``sargnn reproduce`` has drawn: pictures, tables, and where they differ.

    python scripts/figures_page.py FIGURES_FOLDER docs

writes a page a paper, sar.md, granndis.md and betty.md, into figures/ of the second folder and pictures into its img/figures.
"""

from __future__ import annotations

import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from sargnn.cli.conf import built_in_folder
from sargnn.report.study import FigureSpec, place_of, read_spec


@dataclass(frozen=True)
class Paper:
    """A paper's page.

    Attributes:
        title: the page's.
        about: which paper, what its figures are of, and what to expect of them here.
        commands: examples that the page shows.
    """

    title: str
    about: str
    commands: str


_PAPERS = {
    "sar": Paper(
        "SAR's figures",
        """SAR (Mostafa, 2022) is "Sequential Aggregation and Rematerialization". Its figures compare it with domain-parallel
training: time and memory of GraphSage, GAT and R-GCN by number of workers, and the accuracy of its recipe.
Figures 2 to 9 and table 1 are drawn here.""",
        """sargnn reproduce sar.fig4
sargnn reproduce sar.fig4 dataset.scale=0.1 world=8
sargnn reproduce sar.fig6 launch=slurm world=128 dataset.scale=1.0  # on a cluster""",
    ),
    "granndis": Paper(
        "GraNNDis's figures",
        """GraNNDis (Song et al., 2024) trains deep networks on servers with slow links between them. Each server computes all
that it needs (shared preloading), or samples the border of its part.
Figures 4, 8, 9, 10, 11, 12 and 17 are drawn here. Both servers are one machine with fast links, so that preloading
saves bytes but little time. [Here](../maintainers/measured.md#servers-granndis) are servers on slow links.""",
        "sargnn reproduce granndis.fig8",
    ),
    "betty": Paper(
        "Betty's figures",
        """Betty (Yang et al., 2023) trains in micro-batches: the full batch's gradients, computed for one group of nodes at a
time. Its figures show memory, time and repeated rows by number of groups and by how groups are made.
Figures 2, 4 and 10 to 16 and tables 5 to 7 are drawn here.""",
        "sargnn reproduce betty.fig12",
    ),
}
_HEAD = """# {title}

{about}

```bash
sargnn reproduce  # what there is, and how long it takes
{commands}
```

Each figure is a sweep of ordinary runs. Where the paper's text or tables give numbers, the picture has them as dashed
outlines and the table in a column of its own. Most bars of the paper have no numbers.

Graphs are [stand-ins](../howto/stand-ins.md), drawn at a share of the named graph's size, so that a figure takes minutes
on two cores. Compare ratios with the paper's, not seconds or gigabytes.
[Draw a paper's figure](../howto/paper-figures.md) says how to draw one larger, and how to draw your own.

In the tables, memory is the peak of what training adds, in the largest worker. A number of workers in brackets is the
paper's.
"""
_MANY_RUNS = 4
"""From so many runs on, a table has a column for each."""


def order(name: str) -> tuple[str, int]:
    """Figures before tables, by number."""
    _, kind, number = place_of(name)
    return kind, number


def widened(table: str) -> str:
    """A table whose second column is "run", with a column for each run where there are many: shorter, and easier to compare."""
    head, _, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in table.split("\n"))
    if head[1] != "run" or len(runs := list(dict.fromkeys(row[1] for row in rows))) < _MANY_RUNS:
        return table
    cells: dict[str, dict[str, str]] = {}
    for x, run, *values in rows:
        cells.setdefault(x, {})[run] = "; ".join(values)
    lines = [[f"{head[0]} (cells: {'; '.join(head[2:])})", *runs], ["---"] * (len(runs) + 1)]
    lines += [[x, *(of_run.get(run, "") for run in runs)] for x, of_run in cells.items()]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines).replace("| --- ", "|---").replace("--- |", "---|")


def section(name: str, drawn: Path, folder: Path) -> str:
    """A figure's part of its page, from the page that was drawn with it."""
    body = (drawn / f"{name}.md").read_text().split("\n", 2)[2].strip()
    shows, picture, table, runs, differs = body.split("\n\n")
    picture = picture.replace(f"]({name}-8in.png)", f"](../img/figures/{name}.png)")
    for page in ("results.md", "maintainers/measured.md"):
        differs = differs.replace(f"docs/{page}", f"[{Path(page).stem}](../{page})")
    title = f"## {name}: {read_spec(folder / f'{name}.yaml', FigureSpec).title}"
    return "\n\n".join([title, f"{shows} Runs: {runs}", picture, widened(table), differs]) + "\n"


def main(drawn: Path, docs: Path) -> None:
    pictures, folder = docs / "img" / "figures", built_in_folder().built_in / "figure"
    for place in (pictures, docs / "figures"):
        place.mkdir(parents=True, exist_ok=True)
    for key, paper in _PAPERS.items():
        sections = [_HEAD.format(title=paper.title, about=paper.about, commands=paper.commands)]
        for name in sorted((path.stem for path in folder.glob(f"{key}.*.yaml")), key=order):
            if not (drawn / f"{name}.md").exists():
                print(f"not drawn: {name}", file=sys.stderr)
                continue
            shutil.copy(drawn / f"{name}-8in.png", pictures / f"{name}.png")
            sections.append(section(name, drawn, folder))
        (docs / "figures" / f"{key}.md").write_text("\n".join(sections))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
