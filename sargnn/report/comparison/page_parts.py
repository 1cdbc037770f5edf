"""The page's style and script, which are part of the page."""

STYLE = """
:root { color-scheme: light dark; --line: #d4d4d4; --soft: #f4f4f4; --text: #1a1a1a; --back: #ffffff; --mark: #0072b2; }
@media (prefers-color-scheme: dark) {
  :root { --line: #444; --soft: #242424; --text: #e6e6e6; --back: #161616; --mark: #56b4e9; }
}
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 1500px; padding: 1rem; color: var(--text); background: var(--back);
  font: 15px/1.45 system-ui, sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
.note { color: #b35900; margin: .2rem 0; }
.wide { overflow-x: auto; max-width: 100%; border: 1px solid var(--line); border-radius: 6px; }
table { border-collapse: collapse; font-size: .86rem; font-variant-numeric: tabular-nums; width: 100%; }
th, td { padding: .3rem .6rem; text-align: right; white-space: nowrap; border-bottom: 1px solid var(--line);
  overflow-wrap: normal; }
th { background: var(--soft); vertical-align: bottom; }
td:first-child { position: sticky; left: 0; background: var(--back); white-space: normal; overflow-wrap: anywhere;
  min-width: 6.5rem; max-width: 22rem; }
.word, .word button { text-align: left; }
tbody tr:hover { background: var(--soft); }
th button { all: unset; cursor: pointer; width: 100%; text-align: inherit; }
th button:focus-visible { outline: 2px solid var(--mark); }
th[aria-sort] { color: var(--mark); }
th[aria-sort=ascending] button::after { content: " \\2191"; } th[aria-sort=descending] button::after { content: " \\2193"; }
.pictures { display: grid; gap: 1rem; grid-template-columns: repeat(auto-fit, minmax(min(100%, 560px), 1fr)); }
figure { margin: 0; min-width: 0; } figcaption { font-weight: 600; margin-bottom: .3rem; }
figure.broad { grid-column: 1 / -1; }
figure .wide { background: #ffffff; } img { display: block; min-width: 540px; max-width: 100%; height: auto; }
.broad img { min-width: 1000px; }
.command { margin: .5rem 0; } .command span { display: block; font-weight: 600; }
code { display: block; padding: .4rem .6rem; background: var(--soft); border-radius: 4px; font-size: .82rem; user-select: all; }
"""

SCRIPT = """
for (const head of document.querySelectorAll("th button")) head.addEventListener("click", () => {
  const cell = head.parentElement, rows = cell.closest("table").tBodies[0];
  const up = cell.getAttribute("aria-sort") !== "ascending", at = cell.cellIndex;
  const key = row => row.cells[at].dataset.value;
  const order = (a, b) => {
    const [x, y] = [key(a), key(b)];
    if (x === undefined || y === undefined) return (x === undefined) - (y === undefined);
    const both = x !== "" && y !== "" && !isNaN(x) && !isNaN(y);
    return (up ? 1 : -1) * (both ? x - y : x.localeCompare(y, undefined, {numeric: true}));
  };
  for (const other of cell.parentElement.cells) other.removeAttribute("aria-sort");
  cell.setAttribute("aria-sort", up ? "ascending" : "descending");
  rows.append(...[...rows.rows].sort(order));
});
"""
