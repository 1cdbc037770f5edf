"""What the arrays of an own graph are called.

| name | | also called |
|---|---|---|
| ``edge_index`` | integers [2, E]: sources, destinations | ``edges`` |
| ``edge_weight`` | numbers [E], in the order of the edges | ``edge_weights``, ``weight``, ``w`` |
| ``edge_attr`` | numbers [E, D] or [E], features of edges | ``edge_attributes``, and those of ``x`` behind ``edge_`` |
| ``x`` | numbers [N, F], features | ``feat``, ``feats``, ``feature``, ``features``, also behind ``node_`` |
| ``y`` | [N] or [N, C], what is to be predicted | ``label``, ``labels``, also behind ``node_`` |
| ``train_mask``, ``val_mask``, ``test_mask`` | bool [N], or [N, k]: k splits | ``valid_mask`` |
| ``train_idx``, ``val_idx``, ``test_idx`` | node numbers | ``..._index``, ``..._nodes``, ``valid_...`` |
| ``num_nodes`` | N, where nothing else says it | |
| ``train_pairs``, ``valid_pairs``, ``test_pairs`` | node numbers [2, P] or [P, 2]: heads, tails of links | ``val_pairs`` |
| ``train_pair_weights`` | numbers [P], of the training loss | |
| ``valid_negatives``, ``test_negatives`` | node numbers [2, Q] or [Q, 2]: pairs that are no links | ``val_negatives`` |
| ``valid_candidates``, ``test_candidates`` | node numbers [P, K]: other tails of each pair | ``val_candidates`` |
| ``edge_y`` | [E] or [E, C], what is to be predicted of edges | ``edge_label``, ``edge_labels`` |
| ``edge_train_mask``, ``edge_val_mask``, ``edge_test_mask`` | bool [E] | ``edge_valid_mask`` |

Letters: N nodes, E edges, F features, D features of edges, C columns of labels, P pairs, Q, K negatives.
"""

from __future__ import annotations

import difflib
from collections.abc import Container, Mapping

from sargnn.errors import DataError

EDGES, WEIGHTS, EDGE_FEATURES, FEATURES, LABELS, COUNT = "edge_index", "edge_weight", "edge_attr", "x", "y", "num_nodes"
EDGE_LABELS = "edge_y"
_SPLIT_WORDS = {"train": ("train",), "valid": ("val", "valid"), "test": ("test",)}
MASKS = {f"{word}_mask": name for name, words in _SPLIT_WORDS.items() for word in words}
"""Name of a mask -> name of the split."""
EDGE_MASKS = {f"edge_{mask}": name for mask, name in MASKS.items()}
"""Name of a mask of edges -> name of the split."""
NUMBERS = {
    f"{word}_{kind}": name for name, words in _SPLIT_WORDS.items() for word in words for kind in ("idx", "index", "nodes")
}
"""Name of an array of node numbers -> name of the split."""
PAIRS = {"train_pairs": ("train", "pairs"), "train_pair_weights": ("train", "weights")} | {
    f"{split}_{what}": (split, what) for split in ("valid", "test") for what in ("pairs", "negatives", "candidates")
}
"""Name of what says something of pairs -> name of the split, and what it says."""
_OF_NODES = {FEATURES: ("feat", "feats", "feature", "features"), LABELS: ("label", "labels")}
ALIASES = {
    EDGES: (EDGES, "edges"),
    WEIGHTS: (WEIGHTS, "edge_weights", "weight", "w"),
    EDGE_FEATURES: (EDGE_FEATURES, "edge_attributes", "edge_attr_dict", *(f"edge_{name}" for name in _OF_NODES[FEATURES])),
    **{used: (used, *names, *(f"node_{name}" for name in names)) for used, names in _OF_NODES.items()},
    EDGE_LABELS: (EDGE_LABELS, *(f"edge_{name}" for name in _OF_NODES[LABELS])),
    COUNT: (COUNT,),
} | {name: (name,) for name in (*MASKS, *EDGE_MASKS, *NUMBERS)}
ALIASES |= {name: (name, *([f"val_{what}"] if split == "valid" else [])) for name, (split, what) in PAIRS.items()}
NAMES = {alias: name for name, aliases in ALIASES.items() for alias in aliases}
"""Every name that is known -> the one that is used here."""
OF_EDGES = (EDGES, WEIGHTS, EDGE_FEATURES, EDGE_LABELS, *EDGE_MASKS, *PAIRS)
"""What a typed graph has by relation; the rest by node type."""
ON_EDGES = {
    WEIGHTS: ALIASES[WEIGHTS],
    EDGE_FEATURES: (*ALIASES[EDGE_FEATURES], *_OF_NODES[FEATURES], "attr"),
    EDGE_LABELS: ALIASES[EDGE_LABELS],
}
"""What edges carry -> what it is called among data of edges."""
ALIKE = 0.8
"""From here on ``difflib`` finds two names alike."""


def unit_of(used: str) -> str:
    """What an entry of the array of this name is of: a node, an edge or a pair."""
    return "pair" if used in PAIRS else "edge" if used in OF_EDGES else "node"


def known_names(
    names: Mapping[str, str] | list[str], whole: str, unread: list[str], without: Container[str] = ()
) -> dict[str, str]:
    """Used name -> given name, for those that are known.

    Args:
        names: as given; a mapping says for each what messages call it.
        unread: gets what messages call the others.
        without: given names that mean nothing here.

    Raises:
        DataError: one that is nearly known, or two that mean the same.
    """
    called = names if isinstance(names, Mapping) else {name: f"'{name}'" for name in names}
    given_names: dict[str, str] = {}
    for name in called:
        known = None if name in without else NAMES.get(name)
        if known is not None and known in given_names:
            raise DataError(
                f"{whole} has {called[given_names[known]]} and {called[name]}, which mean the same.", hint="leave one out"
            )
        if known is not None:
            given_names[known] = name
    others = [name for name in called if name not in NAMES or name in without]
    for name in others:
        alike = difflib.get_close_matches(
            name, [candidate for candidate in NAMES if candidate[:1] == name[:1]], n=1, cutoff=ALIKE
        )
        if alike and name not in without and NAMES[alike[0]] not in given_names:
            raise DataError(f"{whole} has {called[name]}, which is not known.", allowed=alike, hint=f"name it {alike[0]}")
    unread += [called[name] for name in others]
    return given_names
