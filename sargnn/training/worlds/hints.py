"""What to do about a tensor that differs between worlds, by how it was made."""

from __future__ import annotations

from sargnn.training.worlds.record import Entry
from sargnn.training.worlds.recorder import BUFFER, GRADIENT, LOSS, OUTPUT, PARAMETER

_RANDOM = frozenset(
    "rand randn randint randperm normal bernoulli multinomial poisson rand_like randn_like uniform_ normal_ bernoulli_ random_ "
    "exponential_ dropout alpha_dropout".split()
)
_NUMBERS = frozenset("arange linspace tensor as_tensor full zeros ones empty eye new_zeros new_ones new_full new_empty".split())
_ORDERED = frozenset(
    "softmax log_softmax softmin cumsum cumprod cummax cummin logcumsumexp sort argsort topk msort unique unique_consecutive "
    "searchsorted normalize conv1d conv2d conv3d lstm gru rnn_tanh rnn_relu multi_head_attention_forward "
    "scaled_dot_product_attention instance_norm group_norm batch_norm diff roll flip nonzero".split()
)
BRANCHES = (
    "workers call different functions from here on: the way taken depends on a worker's rows; let it depend on the graph's "
    "num_nodes() and num_edges() == 0, or on any(), all(), max() of rows, which are answered for all workers"
)
_RANDOM_HINT = (
    "random numbers for a worker's rows come out otherwise on each worker: use nn.Dropout or F.dropout, drawn by original id, "
    "or draw numbers of a fixed shape"
)
_REDUCED_HINT = (
    "a worker has only its own rows, so that a sum, mean or product over them is not that of the graph: take it through the "
    "graph (update_all), or use nn.BatchNorm1d, whose statistics are over all workers"
)
_ORDERED_HINT = (
    "it works along the rows, and a worker has only its own, in an order of its own: work along dim 1, through the graph "
    "(edge_softmax, update_all), or with nn.BatchNorm1d"
)
_NUMBERS_HINT = (
    "it is made for the number or the order of a worker's rows: make it from rows of the graph, such as x[:, :1] * 0, or from "
    "the original ids in graph.ndata['_ID']"
)
_OUTSIDE_HINT = (
    "what it is made from agrees, so that something outside of PyTorch steers it: random numbers of numpy or Python, the time, "
    "the rank, a counter of calls, or the number of a worker's rows"
)
_STATE_HINT = (
    "the steps before agree: state that is kept between calls, or random numbers of numpy or Python, can make such a "
    "difference; keep state in parameters, or in buffers that every worker computes alike"
)
_OF_RESULTS = {
    OUTPUT: "forward's own results agree, so that the output was changed outside of PyTorch's functions, such as through numpy",
    LOSS: "the output agrees: report this, the loss is not computed by the module",
    GRADIENT: "forward agrees: a hook (register_hook), an own autograd.Function, autograd.grad or a write to .data in forward "
    "works on this worker's rows alone",
    BUFFER: "forward writes a number of this worker's rows into a buffer: use nn.BatchNorm1d's running statistics, or a number "
    "that all workers have",
    PARAMETER: "gradients agree: forward writes to the parameter itself, from this worker's rows",
}


def hint_for(entry: Entry, *, earlier: bool) -> str:
    """One sentence.

    Args:
        earlier: the same call agrees in a step before.
    """
    if entry.during in _OF_RESULTS:
        return _OF_RESULTS[entry.during]
    if entry.what in _RANDOM:
        return _RANDOM_HINT
    if entry.what in _NUMBERS and entry.kind == "same":
        return _NUMBERS_HINT
    if entry.what in _ORDERED:
        return _ORDERED_HINT
    if earlier:
        return _STATE_HINT
    return _REDUCED_HINT if entry.kind == "same" and entry.of_rows else _OUTSIDE_HINT
