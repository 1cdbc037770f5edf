"""What a run will hold, and how long it takes: known before it is launched.

- account (``account_trace``, ``account_record``, ``account_step``): what a step holds. Two epochs on a small made-up graph are
  recorded, tensor by tensor, and replayed with the counts of the real rows: the code that allocates is the account.
- plan: what each worker owns and reads (``plan_parts``), what its views compute (``plan_reach``, ``plan_views``), what travels
  (``plan_traffic``); from these its memory, phase by phase (``plan_worker``), of a run (``plan_run``), from stores and for jobs
  (``plan_stores``), and an epoch's time (``plan_time``).
- budget: how many micro-batches and kept layers fit (``budget``); which mode and which ways of training do (``settle``).
- trials (``trials``, ``trials_outline``): what only trying shows, in small runs that are measured once on a machine.

Who asks, and for what:

- before a run: ``settle.settle`` chooses its mode and budget, or refuses it;
- its workers: ``budget.chooser``, handed to ``training.build.make_trainer``, which knows only ``training.fit.Choose``;
- ``sargnn plan`` and its like: ``plan_stores.Plans`` and ``plan_run.plan_published``; what fits: ``settle.find_ways``;
- jobs: ``plan_stores.plan_memory`` and ``node_bytes`` for ``--mem``.

A mode states what it holds (``Mode.held_rows``) and what it sends (``fetches``, ``costs``); a kernel and a reducer what
is no tensor's. All else is seen in the record.
"""
