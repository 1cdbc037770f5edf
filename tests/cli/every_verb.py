"""Every verb of the command line, also those below others."""

from __future__ import annotations

from sargnn.cli.verb import Verb
from sargnn.cli.verbs import VERBS

EVERY_VERB: list[Verb] = [one for verb in VERBS.values() for one in (verb, *verb.verbs)]
