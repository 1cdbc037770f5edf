"""Scores of pairs of nodes from their embeddings. ``sargnn.config.groups`` lists the names.

Of links, ``DECODERS``, which give [P] for heads and tails [P, F] and relations int64 [P]:

    dot        <h, t>
    cosine     <h, t> / (|h| |t|)
    bilinear   h^T W_r t                                    RESCAL (Nickel et al., 2011)
    distmult   <h, w_r, t>                                  Yang et al., 2015
    complex    Re <h, w_r, conj(t)>                         Trouillon et al., 2016; the first half of a row are real parts
    mlp        W_2 relu(W_1 (h * t) + b_1) + b_2
    transe     g - |h + w_r - t|                            Bordes et al., 2013
    rotate     g - sum_k |h_k exp(i w_rk) - t_k|            Sun et al., 2019; the first half of a row are real parts

All but the last three are products <q(h, r), k(t)> of a query and a key, so that a head is scored with many tails by one matrix
product, and a tail with many heads likewise. A graph with one relation has r = 0 throughout.

Of labelled edges with features e [P, D], ``EDGE_DECODERS``, which give [P, C]:

    concat     W_2 relu(W_1 [h, t, e] + b_r) + b_2          tells the two ends apart
    product    W_2 relu(W_1 [h * t, e] + b_r) + b_2         the same both ways

Letters: P pairs, F width of an embedding, R relations, D features of an edge, C outputs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from sargnn.config.groups import EdgesConfig, LinksConfig
from sargnn.errors import ConfigError, SargnnError
from sargnn.resolve import is_target, place_of, resolve

_ROWS_AT_ONCE = 16
"""Of queries, with all keys of a tile."""
_TRIED_PAIRS = 5
"""What a decoder from outside the package is tried on."""


class Factored(nn.Module, ABC):
    """A decoder whose score is the product of a query and a key."""

    def __init__(self, width: int, relations: int) -> None:
        super().__init__()

    def forward(self, heads: Tensor, tails: Tensor, relation: Tensor) -> Tensor:
        return (self.queries(heads, relation) * self.keys(tails)).sum(1)

    @abstractmethod
    def queries(self, heads: Tensor, relation: Tensor) -> Tensor:
        """Of heads [P, F] that are scored with tails."""

    def head_queries(self, tails: Tensor, relation: Tensor) -> Tensor:
        """Of tails [P, F] that are scored with heads."""
        return self.queries(tails, relation)

    def keys(self, rows: Tensor) -> Tensor:
        """Of the other end, [P, F], whichever that is."""
        return rows


class Dot(Factored):
    def queries(self, heads: Tensor, relation: Tensor) -> Tensor:
        return heads


class Cosine(Factored):
    """0 where an end is 0, and without a gradient there."""

    def queries(self, heads: Tensor, relation: Tensor) -> Tensor:
        squares = heads.square().sum(1, keepdim=True)
        lengths = torch.where(squares > 0, squares, 1.0).sqrt()
        return heads * torch.where(squares > 0, 1 / lengths, 0.0)

    def keys(self, rows: Tensor) -> Tensor:
        return self.queries(rows, torch.zeros(0))


class Bilinear(Factored):
    def __init__(self, width: int, relations: int) -> None:
        super().__init__(width, relations)
        self.weight = nn.Parameter(torch.empty(relations, width, width))
        for matrix in self.weight:
            nn.init.xavier_uniform_(matrix)

    def _map(self, rows: Tensor, relation: Tensor, *, turned: bool) -> Tensor:
        out = torch.zeros_like(rows)
        for r in relation.unique().tolist():
            chosen, matrix = torch.nonzero(relation == r)[:, 0], self.weight[r]
            out = out.index_copy(0, chosen, rows[chosen] @ (matrix.T if turned else matrix))
        return out

    def queries(self, heads: Tensor, relation: Tensor) -> Tensor:
        return self._map(heads, relation, turned=False)

    def head_queries(self, tails: Tensor, relation: Tensor) -> Tensor:
        return self._map(tails, relation, turned=True)


class DistMult(Factored):
    def __init__(self, width: int, relations: int) -> None:
        super().__init__(width, relations)
        self.weight = nn.Parameter(torch.empty(relations, width))
        nn.init.uniform_(self.weight, 0.5, 1.5)

    def queries(self, heads: Tensor, relation: Tensor) -> Tensor:
        return heads * self.weight[relation]


class ComplEx(DistMult):
    def __init__(self, width: int, relations: int) -> None:
        super().__init__(width, relations)
        nn.init.uniform_(self.weight[:, width // 2 :].data, -0.5, 0.5)

    def _turn(self, rows: Tensor, relation: Tensor, sign: float) -> Tensor:
        """Rows times w_r, or with ``sign`` -1 times its conjugate."""
        (a, b), (c, d) = rows.chunk(2, 1), self.weight[relation].chunk(2, 1)
        return torch.cat([a * c - sign * b * d, sign * a * d + b * c], 1)

    def queries(self, heads: Tensor, relation: Tensor) -> Tensor:
        return self._turn(heads, relation, 1.0)

    def head_queries(self, tails: Tensor, relation: Tensor) -> Tensor:
        return self._turn(tails, relation, -1.0)


class Distance(nn.Module, ABC):
    """A decoder whose score is a learned number less the distance of a head, moved as its relation says, from the tail."""

    def __init__(self, width: int, relations: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(relations, self.columns(width)))
        self.margin = nn.Parameter(torch.zeros(()))

    @staticmethod
    def columns(width: int) -> int:
        """Of a relation's row."""
        return width

    @abstractmethod
    def moved(self, rows: Tensor, relation: Tensor, sign: float = 1.0) -> Tensor:
        """Heads [P, F], moved as their relations say; with ``sign`` -1 tails, moved back."""

    @abstractmethod
    def distance(self, apart: Tensor) -> Tensor:
        """[P], of moved heads less tails."""

    @abstractmethod
    def distances(self, queries: Tensor, keys: Tensor) -> Tensor:
        """[B, T], of each of [B, F] from each of [T, F]. Their sizes say how far off that may be (``slack``)."""

    @abstractmethod
    def slack(self, width: int, unit: float) -> float:
        """Times (1 + |g| + |q|) (1 + |g| + |k|): how far off; ``unit``: half the distance of 1 from the next number."""

    def forward(self, heads: Tensor, tails: Tensor, relation: Tensor) -> Tensor:
        return self.margin - self.distance(self.moved(heads, relation) - tails)


class TransE(Distance):
    def __init__(self, width: int, relations: int) -> None:
        super().__init__(width, relations)
        nn.init.xavier_uniform_(self.weight)

    def moved(self, rows: Tensor, relation: Tensor, sign: float = 1.0) -> Tensor:
        return rows + sign * self.weight[relation]

    def distance(self, apart: Tensor) -> Tensor:
        return torch.linalg.vector_norm(apart, dim=1)

    def distances(self, queries: Tensor, keys: Tensor) -> Tensor:
        squares = torch.addmm(keys.square().sum(1)[None], queries, keys.T, alpha=-2).add_(queries.square().sum(1)[:, None])
        return squares.clamp_min_(0).sqrt_()

    def slack(self, width: int, unit: float) -> float:
        # Squares are within (2 F + 8) u (|q| + |k|)^2 of the real ones, and roots within the root of that.
        return float(((2 * width + 8) * unit) ** 0.5)


class RotatE(Distance):
    """``weight`` has angles."""

    def __init__(self, width: int, relations: int) -> None:
        super().__init__(width, relations)
        nn.init.uniform_(self.weight, -torch.pi, torch.pi)

    @staticmethod
    def columns(width: int) -> int:
        return width // 2

    def moved(self, rows: Tensor, relation: Tensor, sign: float = 1.0) -> Tensor:
        (a, b), angle = rows.chunk(2, 1), sign * self.weight[relation]
        cos, sin = angle.cos(), angle.sin()
        return torch.cat([a * cos - b * sin, a * sin + b * cos], 1)

    def distance(self, apart: Tensor) -> Tensor:
        a, b = apart.chunk(2, 1)
        squares = a.square() + b.square()
        is_apart = squares > 0
        return torch.where(is_apart, torch.where(is_apart, squares, 1.0).sqrt(), 0.0).sum(1)

    def distances(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Column by column, a few rows at a time, so that what is added to stays in the processor's cache."""
        totals = queries.new_zeros(len(queries), len(keys))
        real, imaginary = ([rows.T.contiguous() for rows in ends.chunk(2, 1)] for ends in (queries, keys))
        for first in range(0, len(queries), _ROWS_AT_ONCE):
            run = slice(first, first + _ROWS_AT_ONCE)
            for a, b, c, d in zip(*real, *imaginary, strict=True):
                apart = (a[run, None] - c).square_().addcmul_(other := b[run, None] - d, other)
                totals[run] += apart.sqrt_()
        return totals

    def slack(self, width: int, unit: float) -> float:
        # Each length is within 4 u (|q_k| + |k_k|); F/2 of them are added up.
        return (width + 8) * width**0.5 * unit


class Perceptron(nn.Module, ABC):
    """A decoder with maps of its own, which expect numbers of size 1 while a model's outputs are of any size.

    Attributes:
        scale: what it reads is divided by it; NaN: it is still to be chosen; None: it is 1.
    """

    scale: Tensor | None

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", None)

    @abstractmethod
    def joined(self, heads: Tensor, tails: Tensor) -> Tensor:
        """What it reads of both ends, [P, F] each."""

    def read(self, heads: Tensor, tails: Tensor) -> Tensor:
        rows = self.joined(heads, tails)
        return rows if self.scale is None else rows / self.scale


class ReadSquares(nn.Module):
    """In a perceptron's place: the mean square of what that reads of each pair, before it is divided."""

    def __init__(self, decoder: Perceptron) -> None:
        super().__init__()
        self._joined = decoder.joined

    def forward(self, heads: Tensor, tails: Tensor, relation: Tensor) -> Tensor:
        return self._joined(heads, tails).square().mean(1)


class Mlp(Perceptron):
    """The same for all relations. ``hidden``: rows of W_1."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, 1))

    def forward(self, heads: Tensor, tails: Tensor, relation: Tensor) -> Tensor:
        scores: Tensor = self.layers(self.read(heads, tails))[:, 0]
        return scores

    def joined(self, heads: Tensor, tails: Tensor) -> Tensor:
        return heads * tails


DECODERS: Mapping[str, type[Factored] | type[Distance]] = {
    "dot": Dot,
    "cosine": Cosine,
    "bilinear": Bilinear,
    "distmult": DistMult,
    "complex": ComplEx,
    "transe": TransE,
    "rotate": RotatE,
}


class EdgeMlp(Perceptron):
    """With ``product`` of the ends' product, else of both ends. ``hidden``: rows of W_1."""

    def __init__(self, *, product: bool, width: int, relations: int, features: int, outputs: int, hidden: int) -> None:
        super().__init__()
        self.product = product
        self.first = nn.Linear((1 if product else 2) * width + features, hidden, bias=False)
        self.bias = nn.Parameter(torch.zeros(relations, hidden))
        self.second = nn.Linear(hidden, outputs)

    def forward(self, heads: Tensor, tails: Tensor, relation: Tensor, features: Tensor | None = None) -> Tensor:
        read = [self.read(heads, tails), *(() if features is None else (features,))]
        hidden = self.first(torch.cat(read, 1)) + self.bias[relation]
        out: Tensor = self.second(hidden.relu())
        return out

    def joined(self, heads: Tensor, tails: Tensor) -> Tensor:
        return heads * tails if self.product else torch.cat([heads, tails], 1)


def make_decoder(config: LinksConfig, width: int, relations: int, seed: int, *, alone: bool = False) -> nn.Module:
    """The decoder in fp32, initialised from the seed: the same on every rank and for every precision. ``alone``: for rows that
    are learned, and no model's.

    Raises ``ConfigError`` where it cannot be made, or is no module.
    """
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(seed)
        if config.decoder in DECODERS:
            decoder = DECODERS[config.decoder](width, relations)
            if alone and isinstance(decoder, DistMult):
                # Near 1 a model's rows are scored by their product at first. Rows alone learn less of relations that are alike.
                nn.init.xavier_uniform_(decoder.weight)
            return decoder
        if not is_target(config.decoder):
            return Mlp(width, config.mlp_hidden or width)
        return _from_outside("links.decoder", config.decoder, "(width, relations)", width, relations)


def make_edge_decoder(config: EdgesConfig, width: int, relations: int, features: int, outputs: int, seed: int) -> nn.Module:
    """The decoder of labelled edges, as ``make_decoder``."""
    sizes = {"width": width, "relations": relations, "features": features, "outputs": outputs}
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(seed)
        if is_target(config.decoder):
            return _from_outside("edges.decoder", config.decoder, f"({', '.join(sizes)})", *sizes.values())
        return EdgeMlp(product=config.decoder == "product", hidden=config.mlp_hidden or width, **sizes)


def _from_outside(key: str, target: str, made_with: str, *sizes: int) -> nn.Module:
    made = resolve("decoder", {}, target)
    with _blame(target, "cannot be made"):
        decoder = made(*sizes) if isinstance(made, type) else made
    if not isinstance(decoder, nn.Module):
        rows = "head rows, tail rows and relations" + (", and features" if key == "edges.decoder" else "")
        raise ConfigError(
            f"'{key}' names no module.",
            given=target,
            allowed=f"a torch.nn.Module, made with {made_with}, whose forward takes {rows}",
        )
    return decoder


def check_decoder(config: LinksConfig, width: int, relations: int, seed: int) -> None:
    """Make the decoder, and let one from outside the package score a few pairs, there and back. Raises ``ConfigError``."""
    decoder = make_decoder(config, width, relations, seed)
    if is_target(config.decoder):
        _try("links.decoder", config.decoder, decoder, width, relations, seed)


def check_edge_decoder(config: EdgesConfig, width: int, relations: int, features: int, outputs: int, seed: int) -> None:
    """As ``check_decoder``, of labelled edges."""
    decoder = make_edge_decoder(config, width, relations, features, outputs, seed)
    if is_target(config.decoder):
        _try("edges.decoder", config.decoder, decoder, width, relations, seed, features, (outputs,))


def _try(
    key: str,
    target: str,
    decoder: nn.Module,
    width: int,
    relations: int,
    seed: int,
    features: int = 0,
    shape: tuple[int, ...] = (),
) -> None:
    with torch.random.fork_rng(devices=()), _blame(target, "failed"):
        torch.manual_seed(seed)
        ends = [torch.randn(_TRIED_PAIRS, width, requires_grad=True) for _ in range(2)]
        given = [*ends, torch.arange(_TRIED_PAIRS) % relations]
        given += [torch.randn(_TRIED_PAIRS, features)] if features else []
        scores = decoder(*given)
        if not isinstance(scores, Tensor) or scores.shape != (_TRIED_PAIRS, *shape):
            shown = list(scores.shape) if isinstance(scores, Tensor) else type(scores).__name__
            raise ConfigError(
                f"'{key}' does not give {'a score' if not shape else 'the numbers'} for each pair.",
                given=f"{target}: {shown} for {_TRIED_PAIRS} pairs",
                allowed=f"a tensor {[_TRIED_PAIRS, *shape]}",
            )
        scores.sum().backward()
        alone = torch.cat([decoder(*(rows[p : p + 1] for rows in given)) for p in range(_TRIED_PAIRS)])
        if not torch.allclose(alone, scores, rtol=1e-3, atol=1e-4):
            raise ConfigError(
                f"A pair's score from '{key}' is another one beside other pairs, or another time.",
                given=target,
                allowed="what depends on the pair's rows and relation alone: workers score pairs in pieces, and again backward",
                hint="leave batch norm and dropout out of it",
            )


@contextmanager
def _blame(target: str, what: str) -> Iterator[None]:
    """Turn what a decoder from outside the package raises into one ``ConfigError``; ``what`` it did ("failed")."""
    try:
        yield
    except (SargnnError, MemoryError):
        raise
    except Exception as error:
        text = f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}"
        raise ConfigError(
            f"The decoder {what}: {text}",
            given=place_of(error, target.rpartition(":")[0]),
            hint="SARGNN_FULL_ERROR=1 shows the whole traceback",
        ) from error
