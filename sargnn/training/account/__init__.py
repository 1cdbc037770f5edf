"""What a step will hold, known before it runs: its allocations are recorded on a made-up graph, then counted for the real rows.

Betty (Yang et al., ASPLOS 2023) writes a formula for each kind of tensor. Here the code that allocates is the account: one step
on a graph of a few thousand nodes, whose numbers of rows and edges are all different, shows of every tensor when it comes, when
it goes, and which rows it has. Nothing can be allocated without being accounted for.
"""
