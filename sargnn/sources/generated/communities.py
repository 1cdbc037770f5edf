"""Labels and features on which methods differ: version 2 of the stand-ins' content, on the edges of version 1.

A graph's nodes lie in communities, most edges inside one, and nodes of a community are exchangeable: a neighbourhood tells
about its community, and about nothing finer. Classes k belong to groups g(k) of alike classes. Every second group is open, the
others are closed. A community c has

    main_c      its class; communities of one run are of one group, each with a class of its own
    minor_c     a class of the same group, that of a share s_c of its nodes
    known_c     whether training nodes are drawn from it; from the others only where these have too few nodes

and a node v of it, f_v being the class that its features show, F their number and m_k = 1 in open groups, 0 in closed ones,

    y_v = minor_c with probability s_c, else main_c; with probability ``LABEL_NOISE`` any class instead
    f_v = main_c with probability ``CLEAR``, else any class
    x_v = ``SCALE`` (GROUP_SIGNAL mu_g(f) + CLASS_SIGNAL m_f delta_f + e_v),    mu, delta ~ N(0, I / F), e ~ N(0, I)

So each method has what the one before lacks:

- a node's own features often show another class, and of closed groups never the class: an MLP is weak;
- a mean over neighbours shows the group of the community, and in open groups its class: GraphSage and GAT gain;
- in closed groups only labels tell the class: labels as input gain. Features are small, for so are means of few labels;
- what is wrong is so for a whole community: spreading residuals and predictions repairs it, and Correct & Smooth gains;
- in communities without training nodes only features tell: label propagation stays behind.

``known_c`` is true for the first community of each class, so that every class has training nodes where there are enough. A
network can learn communities by heart, from the noise of their nodes, the better the fewer they are: so accuracies depend on
the scale.

Draws of a node are Philox words of (seed, its original id), those of a community come from one generator over all of them. So
the content depends on neither chunks nor threads.

Letters: N nodes of a chunk, K communities, F features, C classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from sargnn.graph.schema import SPLITS
from sargnn.native import Entry
from sargnn.rng import Purpose

CLASSES_PER_GROUP = 4
LARGEST_MINOR, KNOWN = 0.25, 0.6
"""The largest s_c (they are uniform from 0), and the share of communities with training nodes."""
LABEL_NOISE, CLEAR = 0.02, 0.6
GROUP_SIGNAL, CLASS_SIGNAL, SCALE = 4.0, 3.0, 0.15
_TAG = int(Purpose.CONTENT) << 24
_draw_nodes = Entry(
    "draw_nodes",
    "ids l N, community * N, seed int, tag int, main i K, minor i K, share d K, cumulative d C, noise float, clear float",
    "labels l N, shown l N",
)


@dataclass(frozen=True)
class Communities:
    """What is drawn for each community.

    Attributes:
        main, minor: classes int32 [K].
        minor_share: float64 [K].
        known: bool [K].
        cumulative: float64 [C], of the classes' shares.
    """

    main: np.ndarray
    minor: np.ndarray
    minor_share: np.ndarray
    known: np.ndarray
    cumulative: np.ndarray

    @classmethod
    def draw(cls, rng: np.random.Generator, count: int, per_run: int, num_classes: int) -> Communities:
        """K = ``count`` of them, ``per_run`` neighbouring ones of one group."""
        weights, group = class_shares(num_classes), _groups(num_classes)
        of_run = classes_of_runs(rng, -(-count // per_run), weights)
        main = _in_group(of_run[np.arange(count) // per_run], group, weights, rng)
        minor = _in_group(main, group, weights, rng)
        share = LARGEST_MINOR * rng.random(count)
        known = rng.random(count) < KNOWN
        known[np.unique(main, return_index=True)[1]] = True
        return cls(main.astype(np.int32), minor.astype(np.int32), share, known, np.cumsum(weights))

    def nodes(self, ids: np.ndarray, community: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
        """Labels y and classes f that the features show, int64 [N] each, of nodes with these original ids, int64 [N]."""
        labels, shown = np.empty(len(ids), np.int64), np.empty(len(ids), np.int64)
        drawn = self.main, self.minor, self.minor_share, self.cumulative
        _draw_nodes(ids, community, seed, _TAG, *drawn, LABEL_NOISE, CLEAR, labels, shown)
        return labels, shown


def class_shares(num_classes: int) -> np.ndarray:
    """float64 [C]: the share of the k-th class goes with 1 / (k + 4)."""
    weights = 1.0 / (np.arange(num_classes) + 4.0)
    return weights / weights.sum()


def classes_of_runs(rng: np.random.Generator, runs: int, shares: np.ndarray) -> np.ndarray:
    """The class of each run of communities, drawn by their shares; each class has one where there are enough."""
    of_run = rng.choice(len(shares), size=runs, p=shares)
    each_once = rng.permutation(runs)[: len(shares)]
    of_run[each_once] = np.arange(len(each_once))
    return of_run


def split_in_order(order: np.ndarray, sizes: Mapping[str, int], scale: float) -> np.ndarray:
    """uint8 [N]: the parts of a split, by name, one behind the other in the order of a permutation of the nodes.

    ``sizes`` of the parts are multiplied by ``scale``; each has a node at least.
    """
    split, start = np.zeros(len(order), np.uint8), 0
    for name, size in sizes.items():
        end = min(len(order), start + max(1, round(size * scale)))
        split[order[start:end]] = SPLITS[name]
        start = end
    return split


def class_signals(rng: np.random.Generator, num_classes: int, num_features: int) -> np.ndarray:
    """float32 [C, F]: what features of nodes that show a class have beside noise, before they are scaled."""
    group = _groups(num_classes)
    of_group = rng.standard_normal((group.max() + 1, num_features)) / np.sqrt(num_features)
    of_class = rng.standard_normal((num_classes, num_features)) / np.sqrt(num_features)
    is_open = (group % 2 == 0)[:, None]
    return (GROUP_SIGNAL * of_group[group] + CLASS_SIGNAL * is_open * of_class).astype(np.float32)


def training_first(order: np.ndarray, may_train: np.ndarray, count: int) -> np.ndarray:
    """``order``, a permutation of [0, N), with ``count`` nodes first: those that may train (bool [N]), others if too few
    may."""
    chosen = np.flatnonzero(may_train[order])[:count]
    if len(chosen) < count:
        chosen = np.concatenate([chosen, np.flatnonzero(~may_train[order])[: count - len(chosen)]])
    rest = np.ones(len(order), bool)
    rest[chosen] = False
    return np.concatenate([order[chosen], order[rest]])


def _groups(num_classes: int) -> np.ndarray:
    """int64 [C], of each class: large classes and small ones in each."""
    return np.arange(num_classes) % max(1, round(num_classes / CLASSES_PER_GROUP))


def _in_group(classes: np.ndarray, group: np.ndarray, weights: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """For each of ``classes`` one of its group, by weight; perhaps itself."""
    by_group = np.argsort(group, kind="stable")
    ends = np.cumsum(weights[by_group])
    first = np.searchsorted(group[by_group], np.arange(group.max() + 2))
    bounds = np.concatenate([[0.0], ends])[first]
    wanted = group[classes]
    at = bounds[wanted] + rng.random(len(classes)) * (bounds[wanted + 1] - bounds[wanted])
    place = np.searchsorted(ends, at, side="right")
    chosen: np.ndarray = by_group[np.clip(place, first[wanted], first[wanted + 1] - 1)]
    return chosen
