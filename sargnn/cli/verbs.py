"""What each verb is: one record, which the command line, the help and the completion all read.

A new verb is a file with its entry function and a record here. This module imports next to nothing, so that ``sargnn --help``
and completion answer at once.
"""

from __future__ import annotations

from sargnn.cli.verb import Setting, Verb

STORE_DIR = Setting("store_dir", "stores", "where stores are kept", names="folder")
TRACKING_URI = Setting("tracking.uri", None, "MLflow's store; without it that of the working folder")
RUN = Setting("run", "", "the run: its name in runs/, or its folder", names="run")
CHECKPOINT = Setting("checkpoint", "newest", "newest, or best: that validates best", allowed=("newest", "best"))

_TRAIN = Verb(
    "train",
    "train a model on local workers; with -m a sweep",
    usage="[key=value ...] [group=option ...] [-m] [--dry-run]",
    text="Train a model on local worker processes: prepare the stores where they are missing, start one process per worker, "
    "follow their figures, end with a table. With -m every list of values is a sweep; --dry-run says what would be done.",
    entry="sargnn.cli.train:main",
    examples=(
        ("train", "the embedded graph, 4 workers"),
        ("train model=gat mode=sar world=8", ""),
        ("train dataset=products_like dataset.scale=0.02 epochs=10", ""),
        ("train experiment=laptop_tour", "a graph that takes a minute"),
        ("train dataset=arrays dataset.root=FOLDER", "a graph of your own"),
        ("train -m model=sage,gat mode=sar,domain_parallel", "a sweep: all four"),
        ("train -m 'model=glob(g*)' seed=0,1 --dry-run", "the points of a sweep; nothing runs"),
        ("train model=gat --help", "the settings of that model"),
    ),
    config="train",
    sweeps=True,
    previews=True,
)
_SLURM = Verb(
    "slurm",
    "the run as a SLURM job: writes an sbatch script",
    usage="[key=value ...] [group=option ...] [-m] | --status RUN",
    text="Write an sbatch script for a training run into slurm/: one task per worker, stores prepared once, a checkpoint and a "
    "new start at the time limit; --mem as planned where the dataset is prepared here. Takes what train takes, and slurm.*; "
    "conf/slurm/ holds the defaults of a site. With -m (--multirun) every list of values is a sweep: a script for each point, "
    "with nodes and memory of its own, and one command that submits them, the last line printed; finished points are left out. "
    "slurm.array=true makes one job array of it, whose points all ask for the same. --dry-run prints the script, or a sweep's "
    "points. --status shows a job's state and its last epoch.",
    entry="sargnn.cli.slurm:main",
    examples=(
        ("slurm model=gat world=32 slurm.nodes=8", ""),
        ("slurm world=8 slurm.time=120 slurm.submit=true", "write it and submit it"),
        ("slurm -m world=4,8,16 slurm.ntasks_per_node=4", "on 1, 2 and 4 nodes"),
        ("slurm -m seed=0,1,2 slurm.array=true", "one job array of three"),
        ("slurm resume=sage-sar-w4-s0", "go on with a run that was begun"),
        ("slurm --status sage-sar-w4-s0", "its job, its last epoch"),
    ),
    config="slurm",
    sweeps=True,
    previews=True,
    instead={"--status": "sargnn.cli.slurm:status"},
)
_PREPARE = Verb(
    "prepare",
    "make a dataset's store",
    usage="[key=value ...] [dataset=option]",
    text="Make a dataset's store: raw files, or a generator's draws, become memory-mapped arrays with checksums. Training does "
    "this by itself; here it can be done once, before many runs.",
    entry="sargnn.cli.stores:prepare",
    examples=(("prepare dataset=products_like dataset.scale=1.0", ""), ("prepare dataset=ogb_dir dataset.root=FOLDER", "")),
    config="prepare",
)
_CHECK = Verb(
    "check",
    "look a graph over, or a model: is it exact?",
    text="Look a graph over before training: degrees, isolated nodes, self-loops, repeated and one-way edges, homophily, "
    "classes and split, features, sizes; then what of it matters for training, and which setting helps. Makes the store "
    "where it is missing. Advice is no error: the exit code is 0. With model=... the model is checked instead: three steps of "
    "training on one worker and on two, in fp64, at most 20,000 nodes of the graph; the first tensor that differs is named "
    "with the line of your file, and the exit code is 1. Groups and settings are those of train; world and epochs "
    "do not matter.",
    entry="sargnn.cli.check:main",
    examples=(
        ("check dataset=ogb_dir dataset.root=FOLDER", ""),
        ("check dataset=products_like json=true", "for scripts"),
        ("check model=custom model.target=net.py:Net mode=sar", "is it exact?"),
    ),
    config="check",
)
_PLAN = Verb(
    "plan",
    "what a run will hold and send, before it is launched",
    text="Does it fit, and on how many workers? Plans the memory and the traffic of a run's workers by mode and number of "
    "workers: whole resident memory at its peak, in which phase, and the bytes of an epoch. "
    "what=fit prints commands that fit memory_budget, or this machine, the fastest first. Takes the settings of 'train'."
    " Where the partition is there its halo is exact, else it is that of a quick streamed cut (~). OGB's graphs are planned by "
    "their published sizes where their files are not there. What a worker takes by itself is measured once on each machine.",
    entry="sargnn.cli.plan:main",
    examples=(
        ("plan dataset=products_like model=gat", ""),
        ("plan dataset=products_like model=gat what=fit memory_budget=4GB", "what fits?"),
        ("plan dataset=ogbn-papers100M model=gat picture=plan.png", "without its files"),
    ),
    config="plan",
)
_PARTITION = Verb(
    "partition",
    "cut a dataset into the workers' parts",
    text="Cut a dataset into the parts of 'world' workers and say how good the cut is. Training does this by itself. With "
    "compare=... several partitioners are tried and set side by side, each with its own settings, for the run that model=..., "
    "mode=..., precision=... and other settings of 'train' describe; no parts are made then.",
    entry="sargnn.cli.stores:partition",
    examples=(
        ("partition dataset=products_like world=8", ""),
        ("partition dataset=products_like world=8 partitioner=kaminpar", "less memory than METIS"),
        ("partition dataset=products_like world=8 compare=metis,kaminpar,stream", "who cuts best?"),
        ("partition dataset=products_like world=8 compare=metis,random model=gat", "for a GAT"),
    ),
    config="partition",
    config_with={"compare": "partition_compare"},
)
_EXPORT_OGB = Verb(
    "export-ogb",
    "a dataset as raw files in OGB's layouts",
    usage="out=FOLDER [dataset=option] [key=value ...]",
    text="Write a dataset as raw files in one of OGB's layouts, gzip CSV or deflated arrays, which OGB's own readers and this "
    "one read: to try the way of the real files at any size. Leave inverse relations out of typed graphs: "
    "dataset.add_inverse_edges=false.",
    entry="sargnn.cli.stores:export_ogb",
    examples=(
        ("export-ogb dataset=products_like out=data/ogbn_products", ""),
        ("export-ogb dataset=papers_like out=data/ogbn_papers100M", ""),
        ("export-ogb dataset=mag_like dataset.add_inverse_edges=false out=mag", ""),
    ),
    config="export_ogb",
)
_IMPORT_DGL = Verb(
    "import-dgl",
    "a partition that DGL wrote, as stores with its parts",
    usage="NAME.json [key=value ...]",
    text="Read what dgl.distributed.partition_graph wrote, homogeneous or typed, into a dataset store and a partition store "
    "that keeps DGL's assignment, and print the command that trains on them. Original ids are taken from node data orig_id, "
    "orig_nids.dgl or mapping=FILE; where there are none, the ids that DGL gave are kept.",
    entry="sargnn.cli.stores:import_dgl",
    examples=(
        ("import-dgl parts/cora.json", ""),
        ("import-dgl parts/cora.json mapping=orig_nids.pt", "what return_mapping=True gave"),
        ("import-dgl parts/mag.json label=paper/label val= inverse=true", "typed; no validation"),
    ),
    settings=(
        Setting("feat", "feat", "node data: features"),
        Setting("label", "label", "node data: labels, [N] or [N, 1] classes"),
        Setting("train", "train_mask", "node data: training nodes"),
        Setting("val", "val_mask", "validation nodes; empty: none"),
        Setting("test", "test_mask", "test nodes; empty: none"),
        Setting("orig", "orig_id", "original ids; empty: keep DGL's ids"),
        Setting("mapping", "", "original ids: .npy, or by torch.save", names="folder"),
        Setting("inverse", False, "every edge also the other way round"),
        Setting("name", "", "of the dataset; without it DGL's name of the graph"),
        STORE_DIR,
        Setting("prepare.buffer", "8GB", "memory for edges being sorted"),
    ),
    takes="one file",
)
_PREDICT = Verb(
    "predict",
    "a run's predictions for all nodes, as .npy",
    usage="RUN [world=N] [mode=MODE] [key=value ...]",
    text="Predict all nodes with a run's model, in the order of original ids: predictions.npy (classes, 0/1 labels or "
    "values), logits.npy, with "
    "smooth=cs also smoothed.npy. They go to RUN_DIR/predictions or out=FOLDER. world, mode, kernel, partitioner and smooth "
    "may differ from the training's. A dataset that is named is another graph, whose nodes are predicted. Of task=edges these "
    "are of edges, in the order in which they were given. Of task=links it "
    "writes embeddings.npy, with pairs=FILE pair_scores.npy, with top=K partners.npy and partner_scores.npy.",
    entry="sargnn.cli.predict:main",
    examples=(
        ("predict sage-sar-w4-s0", "its name in runs/, or its folder; run=... is the same"),
        ("predict run=runs/sage-sar-w4-s0 world=8 mode=one_shot embeddings=true", ""),
        ("predict run=runs/sage-sar-w4-s0 smooth=cs out=smoothed", "Correct & Smooth afterwards"),
        ("predict sage-sar-w4-s0 dataset.root=FOLDER out=new", "nodes of another graph"),
        ("predict run=runs/links top=10", "of task=links: each node's best ten partners"),
    ),
    config="train",
    changes_a_run=True,
    settings=(
        RUN,
        Setting("out", "", "the folder to write; without it RUN_DIR/predictions", names="folder"),
        CHECKPOINT,
        Setting(
            "format", "npy", "parquet or csv: also as tables, with the ids of your tables", allowed=("npy", "parquet", "csv")
        ),
        Setting(
            "new_rows",
            "refuse",
            "of another graph: nodes without a learned row; mean: their neighbours'",
            allowed=("refuse", "mean"),
        ),
        Setting("embeddings", False, "also write what the last layer reads"),
        Setting("pairs", "", "task=links, edges: a .npy of pairs [2, P], whose scores are written", names="folder"),
        Setting("top", 0, "task=links: each node's best K partners, known links left out"),
        Setting("relation", "", "task=links, typed: of these"),
    ),
    takes="one run",
)
_EXPORT = Verb(
    "export",
    "a run's model as plain PyTorch with PyG's layers",
    usage="RUN [out=FOLDER] [checkpoint=best]",
    text="Write model.py, which needs PyTorch, PyG and safetensors and not sargnn, and parameters.safetensors: load() there "
    "gives the trained module. They go to RUN_DIR/export or out=FOLDER.",
    entry="sargnn.cli.predict:export",
    examples=(
        ("export sage-sar-w4-s0", "its name in runs/, or its folder"),
        ("export run=runs/sage-sar-w4-s0 checkpoint=best out=model", "that validates best"),
    ),
    settings=(
        RUN,
        Setting("out", "", "the folder to write; without it RUN_DIR/export", names="folder"),
        CHECKPOINT,
    ),
    takes="one run",
)
_IMPORT_MODEL = Verb(
    "import-model",
    "parameters of PyG's or DGL's layers, to start a run from",
    usage="FILE [key=value ...] [group=option ...] [out=FOLDER]",
    text="Read a state_dict that was trained elsewhere, of PyG's or DGL's layers, of your own module (model=custom) or of what "
    "export writes, and write it as a checkpoint that init_from=FOLDER starts from. Dataset and model are those of the run.",
    entry="sargnn.cli.predict:import_model",
    examples=(
        ("import-model net.pt model=sage model.hidden=64 out=start", "made by torch.save(net.state_dict(), ...)"),
        ("import-model parameters.safetensors model=gat out=start", ""),
    ),
    config="train",
    settings=(Setting("out", "imported", "the folder to write", names="folder"),),
    takes="one file",
)
_EVALUATE = Verb(
    "evaluate",
    "score predictions, with OGB's evaluator where it has the metric",
    usage="RUN [predictions=FOLDER]",
    text="Score the predictions of a run by its metric, split by split, and write evaluation.json beside them. Accuracy and "
    "rocauc come from OGB's evaluator. Links are measured by predict, as while they were trained.",
    entry="sargnn.cli.predict:evaluate",
    examples=(
        ("evaluate sage-sar-w4-s0", "its name in runs/, or its folder"),
        ("evaluate run=runs/sage-sar-w4-s0 predictions=smoothed", ""),
    ),
    settings=(RUN, Setting("predictions", "", "where predict wrote; without it RUN_DIR/predictions", names="folder")),
    takes="one run",
)
_COMPARE = Verb(
    "compare",
    "runs side by side: a table, plots, a report",
    usage="[RUN ...] [out=FOLDER] [baseline=RUN] [--json|--csv]",
    text="A table of runs with the settings in which they differ, and plots in FOLDER, or all of it in one page that needs "
    "nothing else. A RUN is a name, a run folder, a sweep or a pattern; without one all of runs/. Runs that differ in the seed "
    "alone are drawn as their mean with its spread; a mean is taken over nothing else. seeds=true: these means as a table. "
    "losses=equal: also how far each run's losses are from the first one's, in each epoch that both have; exit code 1 beyond "
    "1e-4 of the first loss in fp32, or 1e-8 of each in fp64.",
    entry="sargnn.cli.compare:main",
    examples=(
        ("compare", "everything in runs/"),
        ("compare sage-sar-w4-s0 'gat-*' out=report.html", ""),
        ("compare KEY seeds=true", "a sweep over seed=range(5)"),
        ("compare 'w*' baseline=w1", "also bars of ratios"),
        ("compare before after losses=equal", "does a change keep every loss?"),
    ),
    settings=(
        Setting("out", "", "folder of the plots, or a page .html; else compare", names="folder"),
        Setting("baseline", "", "a run that the others are set against", names="run"),
        Setting("seeds", False, "also a table of means over seeds"),
        Setting("losses", "any", "equal: compare every loss with the first run's", allowed=("any", "equal")),
        Setting("json", False, "or --json: print runs, groups, all that is drawn", flag=True),
        Setting("csv", False, "or --csv: print a row per run", flag=True),
    ),
    takes="run folders",
)
_UI = Verb(
    "ui",
    "MLflow's pages in the browser",
    usage="[port=5000] [tracking.uri=URI]",
    text="MLflow's pages on 127.0.0.1, for this machine only, on the store of the working folder. Prints the address of the "
    "runs of the experiment that has the newest one: a table with loss, accuracy, epoch, peak, mode and world, and charts "
    "that begin with these. Ctrl-C ends it.",
    entry="sargnn.cli.compare:ui",
    examples=(("ui", ""), ("ui port=8080 tracking.uri=sqlite:///other.db", "")),
    settings=(Setting("port", 5000, "of the pages", low=1, high=65535), TRACKING_URI),
)
_TRACK = Verb(
    "track",
    "send runs to MLflow later, or elsewhere",
    usage="RUN [RUN ...] [tracking.uri=URI] | --follow RUN",
    text="Send the figures of runs that are over to MLflow: those that could not be sent while they ran, or to another store. "
    "A run is sent to a store once; what was begun there is completed. --follow sends one run's figures while workers that "
    "sargnn train has not started, such as those of a SLURM job, train it, and ends with it.",
    entry="sargnn.cli.compare:track",
    examples=(
        ("track sage-sar-w4-s0", ""),
        ("track runs/* tracking.uri=sqlite:///other.db", ""),
        ("track --follow runs/sage-sar-w4-s0", "what the script of sargnn slurm calls"),
    ),
    settings=(Setting("tracking.uri", None, "MLflow's store; without it the one that each run names"),),
    takes="run folders",
    instead={"--follow": "sargnn.cli.compare:follow"},
)
_REPRODUCE = Verb(
    "reproduce",
    "a paper's figure from runs of your own",
    usage="[FIGURE] [key=value ...] [launch=slurm] [--dry-run]",
    text="Draw a figure of the SAR, Betty or GraNNDis paper again: run what is not finished of the runs that it needs, then "
    "write pictures (PNG 8 and 4 inches wide, SVG) and a table, with the paper's numbers if there are any. Without a name: "
    "all figures. Settings are train's, of all runs; world is the largest number of workers. Runs are a sweep, in MLflow under "
    "the figure's name. launch=slurm writes jobs; the same command without it then draws.",
    entry="sargnn.cli.studies:reproduce",
    examples=(("reproduce sar.fig4 dataset.scale=0.1 world=8", ""), ("reproduce sar.fig4 launch=slurm world=128", "as jobs")),
    config="train",
    previews=True,
    settings=(
        Setting("launch", "local", "where runs run", allowed=("local", "slurm")),
        Setting("figures_dir", "figures", "where pictures and tables go", names="folder"),
    ),
    takes="one of a few",
    choices_in="figure",
    config_with={"launch": "slurm"},
)
_RACE = Verb(
    "race",
    "ways to train, by the time to the same accuracy",
    usage="[RACE] [key=value ...] [--dry-run]",
    text="Train in several ways, each with the same budget of time, or epochs, and the same seeds. Draw the validation metric "
    "against seconds and against optimizer steps, with a table of the time to targets. What is raced stands in "
    "conf/race/RACE.yaml, or in a file of your own, before anything runs; ways that lose are shown. Without a name: all races. "
    "Settings are train's, of all runs. Runs are a sweep; the same command goes on with what is not finished.",
    entry="sargnn.cli.studies:race",
    examples=(("race products", ""), ("race products --dry-run", ""), ("race mine.yaml world=2", "a file of your own")),
    config="train",
    previews=True,
    settings=(Setting("races_dir", "races", "where tables and pictures go", names="folder"),),
    takes="one of a few",
    choices_in="race",
)
_BENCH = Verb(
    "bench",
    "measure against stock DGL and PyG, in one run",
    usage="WHAT [key=value ...] [group=option ...]",
    text="Measure how fast this machine is with it, interleaved in one process or in one run. Each has its own settings: "
    "sargnn bench WHAT --help.",
    examples=(
        ("bench epoch model=gat world=4 model.dropout=0", ""),
        ("bench table 'models=[sage]' 'worlds=[4,8]'", ""),
    ),
    verbs=(
        Verb(
            "bench epoch",
            "where an epoch's time goes, and how near each part is to the machine's limit",
            text="A training run, profiled: of every part of an epoch the seconds, the work, and how near it is to what all "
            "cores of this machine can do (matrix products, gathered rows, copies, loopback), measured before and after in "
            "the same run.",
            entry="sargnn.cli.bench:epoch",
            examples=(("bench epoch", ""), ("bench epoch model=gat world=4 model.dropout=0", "")),
            config="bench_epoch",
        ),
        Verb(
            "bench gpu",
            "a GPU's kernels, checked and timed",
            usage="[key=value ...] [dataset=option]",
            text="On a GPU: every kernel beside the reference on the CPU, sums and attention against the speed of a copy, "
            "and an attention layer against PyG's, in seconds and memory; some minutes, a page of figures. Whole epochs "
            "beside PyG's: sargnn bench table device=cuda 'worlds=[1]'.",
            entry="sargnn.cli.bench:gpu",
            examples=(("bench gpu", ""), ("bench gpu dataset.scale=0.05 'heads=[8]'", "")),
            config="bench_gpu",
        ),
        Verb(
            "bench table",
            "models, modes and worlds beside stock DGL and PyG in one process",
            text="Runs of this project beside stock DGL and stock PyG in one process: for each model, rounds of stock DGL as "
            "it comes, stock PyG on an edge index and on a CSR matrix (the better is shown), the modes on the worlds, stock "
            "DGL with huge pages on; a stock process that takes all free memory is ended. Epochs (median, smallest, largest), "
            "ratios, each worker's peak and waiting, as a table and JSON. What is measured already is kept: the same command "
            "goes on where it was interrupted. Other settings and groups are those of train and hold for all rows.",
            entry="sargnn.cli.bench:table",
            examples=(
                ("bench table", "SAGE, GAT and R-GCN on four workers"),
                ("bench table 'models=[gat]' 'worlds=[2,4,8]' 'modes=[sar,one_shot]'", ""),
                ("bench table dataset=ogb_dir dataset.root=FOLDER 'models=[sage,gat]'", ""),
                ("bench table stock=false limits=false rounds=1", ""),
            ),
            config="bench_table",
        ),
    ),
)
_INFO = Verb(
    "info",
    "versions, devices, kernels, stores",
    usage="[store_dir=FOLDER] [tracking.uri=URI]",
    text="Versions, cores, memory and devices, the kernels that can run here and why others cannot, the MLflow store, and the "
    "dataset and partition stores with their sizes.",
    entry="sargnn.cli.stores:info",
    examples=(("info", ""),),
    settings=(STORE_DIR, TRACKING_URI),
)
_CLEAN = Verb(
    "clean",
    "remove stores, after asking",
    usage="[what=all|datasets|partitions] [store_dir=FOLDER] [yes=true]",
    text="Remove stores. Says what would go and asks first; yes=true does not ask. Runs and MLflow's store stay. What was "
    "removed is made again when a run needs it.",
    entry="sargnn.cli.stores:clean",
    examples=(("clean what=partitions", ""),),
    settings=(
        Setting("what", "all", "all, datasets or partitions", allowed=("all", "datasets", "partitions")),
        STORE_DIR,
        Setting("yes", False, "do not ask"),
    ),
)
_COMPLETION = Verb(
    "completion",
    "completion for bash, zsh or fish",
    usage="bash|zsh|fish",
    text="Print a script that teaches the shell to complete verbs, groups, options and settings.",
    entry="sargnn.cli.help:completion",
    examples=(
        ("completion bash > ~/.sargnn.bash", "then: source ~/.sargnn.bash"),
        ("completion zsh > ~/.sargnn.zsh", "then: source ~/.sargnn.zsh"),
        ("completion fish > ~/.config/fish/completions/sargnn.fish", ""),
    ),
    takes="one of a few",
    choices=("bash", "zsh", "fish"),
)

_OF_RUNS = (
    _TRAIN,
    _PLAN,
    _SLURM,
    _PREPARE,
    _CHECK,
    _PARTITION,
    _IMPORT_DGL,
    _EXPORT_OGB,
    _PREDICT,
    _EVALUATE,
    _EXPORT,
    _IMPORT_MODEL,
)
_OTHERS = (_COMPARE, _UI, _TRACK, _REPRODUCE, _RACE, _BENCH, _INFO, _CLEAN, _COMPLETION)
VERBS: dict[str, Verb] = {verb.name: verb for verb in (*_OF_RUNS, *_OTHERS)}
"""In the order of ``sargnn --help``."""
