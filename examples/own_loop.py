"""GraphSage with a training loop of one's own, on any number of processes:

    torchrun --nproc-per-node 4 examples/own_loop.py

Each process has a part of the graph. Sums over neighbours reach into the other parts; everything else is plain PyTorch. The
losses are the same on one process, python examples/own_loop.py, and on many.
"""

import os
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import sargnn


class Sage(nn.Module):
    """h'_i = W_self h_i + W_neigh mean of h_j over edges j -> i, with ReLU and dropout between layers."""

    def __init__(self, widths: list[int]) -> None:
        super().__init__()
        self.own = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(widths))
        self.neigh = nn.ModuleList(nn.Linear(a, b, bias=False) for a, b in pairwise(widths))

    def forward(self, part: sargnn.GraphShard, x: Tensor) -> Tensor:
        for layer, (own, neigh) in enumerate(zip(self.own, self.neigh, strict=True)):
            x = own(x) + neigh(part.mean(x))
            if layer < len(self.own) - 1:
                x = part.dropout(x.relu(), 0.5 if self.training else 0.0, layer)
        return x


def main(epochs: int = 10) -> None:
    if "RANK" in os.environ:  # started by torchrun
        torch.distributed.init_process_group("gloo")
    part = sargnn.shard("synthetic")  # or a graph of your own: docs/howto/own-function.md

    torch.manual_seed(0)  # the same parameters on every rank
    model = Sage([part.features.shape[1], 64, part.num_classes])
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    labelled = part.total(part.train_mask.sum())

    for epoch in range(epochs):
        part.engine.epoch = epoch  # other dropout masks in every epoch
        logits = model(part, part.features)
        rows = part.train_mask
        loss = F.cross_entropy(logits[rows], part.labels[rows], reduction="sum") / labelled  # this rank's share
        optimizer.zero_grad()
        loss.backward()
        part.sum_gradients(model.parameters())
        optimizer.step()
        total = part.total(loss)
        if part.rank == 0:
            print(f"epoch {epoch + 1}  loss {total:.6f}")

    model.eval()
    with torch.no_grad():
        right = model(part, part.features).argmax(1) == part.labels
    accuracy = part.total(right[part.test_mask].sum()) / part.total(part.test_mask.sum())
    if part.rank == 0:
        print(f"test accuracy {accuracy:.4f}")
    if part.world > 1:
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
