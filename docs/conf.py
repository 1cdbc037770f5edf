"""The site: ``make docs`` builds it from the pages beside this file, without a network; a warning is an error."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "docs")]

import sargnn  # noqa: E402

project = "sargnn"
author = "the sargnn authors"
copyright = author  # noqa: A001
release = version = sargnn.__version__
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "generated"]
exclude_patterns = ["_build"]
myst_enable_extensions = ["colon_fence", "deflist", "dollarmath", "attrs_inline"]
myst_heading_anchors = 3
nb_execution_mode = "off"  # notebooks are kept with their outputs; the tests run them
nb_merge_streams = True
autodoc_member_order = "bysource"
napoleon_use_ivar = True
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
nitpicky = False
suppress_warnings = ["mystnb.unknown_mime_type"]
html_math_renderer = "mathml"
html_theme = "furo"
html_title = "sargnn"
html_static_path = ["_static"]
html_css_files = ["sargnn.css"]
html_show_sourcelink = False
html_copy_source = False
