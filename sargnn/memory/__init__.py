"""What a run will hold: known before it is launched.

The account of a step (``account_*``) is a recorded one, counted for the real rows. Plans (``plan_*``) say what workers own,
read, compute and send; ``budget`` and ``settle`` what fits; ``runtime`` what only trying shows. A mode states what it holds
(``Mode.held_rows``) and what it sends (``fetches``, ``costs``); a kernel and a reducer what is no tensor's. All else is seen in
the record.
"""
