"""The table of settings that make no sense together: every row refuses something, and says it with what was given."""

from __future__ import annotations

from sargnn.cli.compose import compose_verb
from sargnn.config.combinations import RUN
from sargnn.config.fields import build
from sargnn.config.run import RunConfig
from sargnn.errors import ConfigError

_REVERSIBLE = "model=gcn model.blocks=reversible"
_OWN = "model=custom model.target=package.module:M"
_LINKS = "task=links dataset.link_split=[0.8,0.1,0.1]"
_QUERIES = f"{_OWN} task=queries dataset.link_split=[0.8,0.1,0.1]"
_SERVED = "preload=shared servers=2 preload.max_hop=1"
REFUSED = [
    "model=rgcn model.residual=linear",
    *(f"{_REVERSIBLE} model.{own}" for own in ("residual=true", "pre_norm=true", "input_linear=true", "head=linear")),
    f"{_REVERSIBLE} model.jumping=sum",
    f"{_REVERSIBLE} model.hidden=9",
    f"{_REVERSIBLE} precision=bf16",
    f"{_REVERSIBLE} engine.keep_layers=sqrt",
    *(f"{_REVERSIBLE} {step}" for step in ("mfg=true", "batches.steps=3", "batches.count=2", "sample.fanouts=[3]")),
    f"{_REVERSIBLE} preload=auto",
    "model.pre_norm=true model.norm=none",
    "model.aggregator=lstm",
    "model=gat model.residual=linear model.linear_residual=true",
    "model=gat model.v2=true model.attn_dst=false",
    "model=gat model.v2=true model.symmetric_norm=true",
    "model=resgcn model.residual=true",
    *(f"model=label_propagation {key}" for key in ("mfg=true", "batches.count=2", "batches.steps=2", "sample.fanouts=[3]")),
    "model=label_propagation labels=masked",
    "model=custom model.target=null",
    f"{_OWN} precision=bf16",
    f"{_OWN} engine.keep_layers=sqrt",
    "optim=custom optim.target=null",
    "optim=adam +optim.args={a:1}",
    "optim=custom optim.target=torch.optim:SGD optim.args.lr=3",
    "optim=custom optim.target=torch.optim:SGD optim.args.weight_decay=3",
    "labels.reuse=2",
    "+init_digest=abc",
    "comm.wire=bf16 precision=fp64",
    "comm.rate=1GB comm.aggregate=post",
    "comm.aggregate=pre mode=one_shot",
    "mode=no_remat mode.keep=all mode.name=sar",
    "world=2 processes=3",
    "world=4 processes=3 spill=all",
    "comm.backend=nccl",
    "world=4 processes=2 comm.backend=nccl device=cuda",
    "world=4 processes=2 comm.backend=mpi",
    "world=4 processes=2 mode=domain_parallel",
    "world=4 processes=2 memory_budget=6GB",
    "mode=domain_parallel spill=all",
    "spill=auto",
    "device=cuda spill=all",
    "device=cuda memory_budget=6GB",
    "dataset.link_relations=[a]",
    "dataset.link_split=[0.5,0.5]",
    f"{_LINKS} dataset.link_relations=[]",
    "dataset.link_split=[0.5,0.3,0.2]",
    *(f"{_LINKS} {key}" for key in ("labels=masked", "smooth=cs", "preload=auto", "mfg=true", "eval=sampled")),
    f"{_LINKS} batches.count=auto",
    "model=none",
    f"{_LINKS} memory_budget=6GB",
    f"{_LINKS} model=label_propagation",
    f"{_LINKS} links.decoder=complex links.embedding_dim=9",
    f"{_LINKS} links.mlp_hidden=4",
    f"{_LINKS} links.shared=true links.corrupt=both",
    f"{_LINKS} links.shared=true links.strict=true",
    f"{_LINKS} select=val_loss",
    f"{_LINKS} optim.label_smoothing=0.1",
    f"{_LINKS} optim.class_weights=balanced",
    f"{_LINKS} optim.loss=a.b:c",
    f"{_LINKS} metric=accuracy",
    f"{_LINKS} links.negatives=0",
    f"{_LINKS.replace('links', 'queries', 1)} model=sage",
    *(
        f"{_QUERIES} {key}"
        for key in (
            "links.loss=bce links.negatives=0",
            "links.decoder=mlp",
            "links.embedding_dim=8",
            "links.decoder=mlp links.mlp_hidden=8",
            "links.mlp_hidden=8",
            "links.temperature=2",
            "links.corrupt=head",
            "links.shared=true links.strict=false",
            "batches.steps=2",
            "sample.fanouts=[3]",
            "metric=auc",
        )
    ),
    "servers=3",
    "preload=none preload.max_hop=1 servers=2",
    "preload=auto preload.max_hop=1 servers=2",
    "preload=shared",
    f"{_SERVED} partitioner=auto",
    f"{_SERVED} eval=sampled",
    f"{_SERVED} memory_budget=6GB",
    "store_dir=''",
]


def test_every_row_refuses_what_it_says() -> None:
    """A row whose setting is misspelt would never meet."""
    met: set[int] = set()
    for words in REFUSED:
        run = build(RunConfig, compose_verb("train", words.split()), "")
        for number, row in enumerate(RUN):
            try:
                row.check(run)
            except ConfigError as error:
                met.add(number)
                assert "  given:   " in str(error) and ("  allowed: " in str(error) or "  next:    " in str(error)), str(error)
    assert [RUN[number].meet for number in range(len(RUN)) if number not in met] == []


def test_what_makes_sense_is_let_through() -> None:
    for words in ("", "model=gat model.v2=true", _LINKS, _QUERIES, _SERVED, _REVERSIBLE, _OWN, "memory_budget=6GB spill=auto"):
        run = build(RunConfig, compose_verb("train", words.split()), "")
        for row in RUN:
            row.check(run)
