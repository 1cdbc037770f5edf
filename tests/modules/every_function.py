# ruff: noqa: E501 - tables of calls
"""PyTorch's own list of its functions, called in many ways on rows: what each gives on one worker and on several.

Arguments are guessed: a call counts where PyTorch itself takes it. Whoever adds a function to PyTorch adds a case.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import get_overridable_functions

from sargnn.comm.group import Group
from sargnn.errors import ConfigError
from sargnn.modules.functions import length
from sargnn.modules.tag import Count, Mark, Rows, mark_of, tagged
from tests.modules.fake import calls_on

ROWS, WIDTH = 23, 4
_generator = torch.Generator().manual_seed(11)
ORDER = torch.randperm(ROWS, generator=_generator)
CUTS = {1: (0, ROWS), 2: (0, 9, ROWS), 3: (0, 14, 14, ROWS)}
"""The second of three workers has no rows."""
ENDS = torch.randint(1000, (ROWS,), generator=_generator)
ARGUMENTS: dict[str, Callable[[], Tensor]] = {
    "x": lambda: torch.rand(ROWS, WIDTH, generator=_generator, dtype=torch.float64) * 1.6 - 0.8,
    "u": lambda: torch.rand(ROWS, WIDTH, generator=_generator, dtype=torch.float64) * 0.8 + 0.1,
    "v": lambda: torch.rand(ROWS, generator=_generator, dtype=torch.float64) * 0.8 + 0.1,
    "z": lambda: torch.rand(ROWS, 2, 6, generator=_generator, dtype=torch.float64) * 2 - 1,
    "q": lambda: torch.rand(ROWS, 3, 3, generator=_generator, dtype=torch.float64) + torch.eye(3, dtype=torch.float64),
    "k": lambda: torch.randint(3, (ROWS,), generator=_generator),
    "K": lambda: torch.randint(3, (ROWS, WIDTH), generator=_generator),
    "b": lambda: torch.rand(ROWS, WIDTH, generator=_generator) < 0.5,
    "m": lambda: torch.rand(ROWS, generator=_generator) < 0.5,
    "c": lambda: torch.randn(ROWS, WIDTH, generator=_generator, dtype=torch.complex128),
}  # fmt: skip
WHOLE = {name: make() for name, make in ARGUMENTS.items()}
ALIKE = {
    "W": torch.randn(WIDTH, WIDTH, generator=_generator, dtype=torch.float64),
    "w": torch.rand(WIDTH, generator=_generator, dtype=torch.float64),
    "f": torch.randn(2, 2, 3, generator=_generator, dtype=torch.float64),
    "i": torch.tensor([0, 2]),
    "g": torch.randn(3, 1, 2, 2, generator=_generator, dtype=torch.float64),
    "h": torch.randn(16, WIDTH, generator=_generator, dtype=torch.float64),
    "o": torch.rand(2, 2, generator=_generator, dtype=torch.float64),
}
_FLOATS = ("W", "w", "f", "g", "h", "o")
_ONE = ["x", "u", "v", "z", "q", "k", "K", "b", "m", "c"]
CALLS = [
    *_ONE, *(f"{a},{a}" for a in "xuvzqkKbm"), *(f"{a},{d}" for a in "xuzKqv" for d in ("0", "1", "-1", "2", "0.5", "(0,)", "(1,)")),
    "x,W", "W,x", "x,w", "x,u", "u,w", "v,x", "x,k", "u,k", "x,v", "z,f", "z,0", "x,b", "x,m", "b,x,u", "m,v,v", "x,x,x", "x,u,u",
    "u,u,u", "x,x,0", "x,x,1", "x,W,w", "w,x,W", "x,0,1", "x,1,0", "x,0,k", "x,1,K", "x,0,K", "x,0,k,x", "x,1,K,u", "x,0,K,u",
    "x,0,i", "x,1,i", "x,1,i,2.0", "x,0,m", "x,b,1.0", "x,b,v", "x,b,u", "x,(0,1)", "x,(1,0)", "x,(4,)", "x,-1,2", "x,(2,2)",
    "x,[2,2],1", "x,2,1", "x,2,0", "x,1,0,2", "x,0,0,2", "z,1,0,2", "x,-1,2,2", "[x,x]", "[x,u],1", "[x,u],0", "[v,v]", "(x,x)",
    "x,0,x", "x,0,u,1.0", "q,q,q", "z,2", "z,2,2", "z,(3,)", "K,3", "k,3", "x,0.3,True", "x,0.3,False", "x,0.0,1.0", "x,-0.5,0.5",
    "n", "n,3", "3,n", "(n,3)", "0,n", "(n,),2.0", "0,1,n", "k,W", "W,k", "'nd,ne->de',x,x", "'nd->d',x", "'nd,de->ne',x,W",
    "'nd,md->nm',x,x", "x,u,v", "x,2,0,1.0", "x,1,2", "x,1,0", "x,()", "u,0,True", "u,(0,),True", "x,1,True", "x,0.5,0", "x,0.5,1",
    "u,2.0", "u,2,0", "x,x,x,1.0", "z,z,1", "q,x[:,:3]", "x,[0]", "x,[1]", "x,True", "k,k,3", "x,k,w", "u,u,0.1", "K,K,K",
]  # fmt: skip
OTHERS = {
    "addbmm": "o,z,z.transpose(1, 2)", "addbmm_": "o,z,z.transpose(1, 2)", "addmv": "v,x,w", "addmv_": "v,x,w",
    "addmm_": "x,x,W|W,x.T,x", "index_put": "x,(k,),x|x,(m,),w|W,(k,),x", "index_put_": "x,(k,),x|x,(m,),w",
    "index_reduce": "x,1,i,u[:, :2],'mean'|W,0,k,u,'mean'", "index_reduce_": "x,1,i,u[:, :2],'mean'",
    "scatter_reduce": "x,1,K,u,'sum'|x,0,K,u,'sum'|W,0,K,u,'sum'|W,0,K,u,'mean'|W,0,K,u,'amax'",
    "scatter_reduce_": "x,1,K,u,'sum'|W,0,K,u,'sum'", "select_scatter": "x,v,1,0|x,w,0,0", "index_add_": "x,1,i,u[:, :2]|W,0,k,u",
    "index_copy_": "x,1,i,u[:, :2]|x,0,k,u", "conv2d": "z[:, None],g|z[None],f[..., None]", "conv_transpose2d": "z[:, None],g[:1]",
    "conv3d": "z[:, None, None],g[:, :, None]", "conv_transpose3d": "z[:, None, None],g[:1, :, None]", "conv_tbc": "z,f.permute(2, 1, 0),w[:2]",
    "lstm_cell": "x,(x,u),h,h", "gru_cell": "x,u,h[:12],h[:12]", "rnn_tanh_cell": "x,u,W,W", "rnn_relu_cell": "x,u,W,W",
    "batch_norm": "x,None,None,w,w,True|x,w,w,None,None,True,0.1,1e-5,False|x,w,w,w,w,False",
    "instance_norm": "z,None,None,None,None,True,0.1,1e-5,False|x.T[None],None,None,None,None,True,0.1,1e-5,False",
    "embedding_bag": "K,W|W,K,None", "as_strided": "x,(2, 4),(4, 1)", "as_strided_copy": "x,(2, 4),(4, 1)", "broadcast_to": "w[None],(n, 4)",
    "expand_copy": "w[None],(n, 4)|x,(n, 4)", "reshape": "x,(n, 2, 2)|x,(4, n)|x,(-1,)", "unflatten": "x,1,(2, 2)|x,0,(-1, 1)",
    "view_as_complex": "x.view(n, 2, 2)", "view_as_complex_copy": "x.view(n, 2, 2)", "view_copy": "x,(n, 2, 2)", "polygamma": "1,u",
    "poisson_nll_loss": "x,u,True,False,1e-8,1", "stft": "x.T,8,return_complex=True", "nonzero_static": "x,size=3",
    "native_layer_norm": "x,(4,),w,w,1e-5", "native_group_norm": "z,w[:2],w[:2],n,2,6,1,1e-5", "native_batch_norm": "x,w,w,None,None,True,0.1,1e-5",
    "multilabel_margin_loss": "x,K", "grid_sampler_2d": "z[:, None],q[:, :2, :2, None].expand(-1, -1, -1, 2),0,0,False",
    "grid_sample": "z[:, None],q[:, :2, :2, None].expand(-1, -1, -1, 2)", "affine_grid": "q[:, :2],(n, 1, 2, 2)", "as_strided_scatter": "x,W,(4, 4),(4, 1)",
    "affine_grid_generator": "q[:, :2],(n, 1, 2, 2),False", "avg_pool3d": "z[:, None],1", "max_pool3d": "z[:, None],1", "adaptive_max_pool3d": "z[:, None],1",
    "lp_pool3d": "z[:, None],2.0,1", "max_unpool1d": "z,z.argsort(-1),1", "cholesky": "q @ q.mT", "lu_solve": "x[:, :3, None],q,K[:, :3].int().clamp(min=1)",
    "stack": "[x, x[:, [1, 0, 2, 3]]]", "put_": "x,k,v", "type": "x,torch.float32", "item": "x.sum()", "is_nonzero": "v[:1]|x.sum()",
    "tolist": "x", "take": "x,k|W,K", "sparse_mask": "x,x.to_sparse()",
}  # fmt: skip
"""Calls of functions whose arguments nobody would guess, by name."""
NAMED = {
    "": {}, "dim0": {"dim": 0}, "dim1": {"dim": 1}, "keep": {"dim": 0, "keepdim": True}, "sum": {"reduction": "sum"},
    "none": {"reduction": "none"}, "correct": {"correction": 0}, "train": {"training": True},
}  # fmt: skip
_SKIPPED = frozenset(
    """get_default_device set_default_device compile set_printoptions from_dlpack save load export is_storage typename manual_seed
    seed cudnn_is_acceptable register_hook register_post_accumulate_grad_hook retain_grad backward detach_ share_memory_ set_ set_data
    __setstate__ __reduce_ex__ __reduce__ __deepcopy__ __delitem__ module_load resize_ resize_as_ resize resize_as apply_ map_ map2_
    is_shared pin_memory is_pinned untyped_storage storage data_ptr const_data_ptr __dlpack__ __dlpack_device__ cuda xpu ipu hpu mtia storage_type
    record_stream index_put_impl_ requires_grad_ grad empty_permuted empty empty_like new_empty new_empty_strided empty_strided
    empty_quantized unsafe_chunk reinforce to_mkldnn __repr__ __format__ __dir__ __hash__ to_padded_tensor nested_tensor
    _is_view __cuda_array_interface__ q_scale svd_lowrank lobpcg pca_lowrank tensor as_tensor
    pixel_unshuffle fake_quantize_per_tensor_affine _fused_moving_avg_obs_fq_helper""".split()
)


@dataclass(frozen=True)
class Case:
    """One call: the function's place and name, how it is called."""

    space: str
    name: str
    given: str
    named: str
    spelling: str = "plain"

    def __str__(self) -> str:
        return f"{self.space}.{self.name}({self.given} {self.named} {self.spelling})"


_SPACES = {
    "torch": torch, "Tensor": Tensor, "F": F, "linalg": torch.linalg, "special": torch.special, "fft": torch.fft,
}  # fmt: skip


def functions() -> list[tuple[str, str]]:
    """All that PyTorch lets others override, by place and name."""
    listed = []
    overridable = get_overridable_functions()
    for space, module in _SPACES.items():
        for function in overridable.get(module, []):
            name = getattr(function, "__name__", "")
            if name == "__get__":
                continue
            if name.strip("_") and name not in _SKIPPED and not name.startswith("_") and callable(getattr(module, name, None)):
                listed.append((space, name))
    dunder = (
        "__add__ __sub__ __mul__ __truediv__ __floordiv__ __mod__ __pow__ __matmul__ __rmatmul__ __neg__ __abs__ __eq__ __lt__ "
    )
    dunder += (
        "__and__ __or__ __invert__ __getitem__ __radd__ __rsub__ __rmul__ __rtruediv__ __rpow__ __iadd__ __imul__ __isub__"
    )
    return sorted({*listed, *(("Tensor", name) for name in dunder.split())})


def call(case: Case, arguments: dict[str, Any]) -> Any:
    """The call's result."""
    function = getattr(_SPACES[case.space], case.name)
    place = {"len": length, "torch": torch, "got": lambda *args, **named: (args, named)}
    args, named = eval(f"got({case.given})", place | arguments)
    named = {**named, **NAMED[case.named]}  # type: ignore[dict-item]
    if case.spelling == "keyword":
        return (
            function(*args[1:2], **{"input": args[0]}, **named)
            if len(args) < 2
            else function(input=args[0], dim=args[1], **named)
        )
    if case.spelling == "out":
        named["out"] = torch.empty(0, dtype=torch.float64)
    out = function(*args, **named)
    return args[0] if out is None and isinstance(args[0], Tensor) else out


def cases_of(space: str, name: str) -> Iterator[Case]:
    """The ways to call a function that PyTorch takes, and whose results are numbers that can be compared."""
    spellings = ["plain", "keyword", "out"] if space == "torch" else ["plain"]
    seen: set[Any] = set()
    for spelling in spellings:
        for named in NAMED:
            guesses = CALLS if not named else ("x", "u", "v", "x,u", "u,u", "x,x", "x,k", "u,k", "x,2", "z")
            for given in [*OTHERS.get(name, "").split("|"), *guesses]:
                case = Case(space, name, given, named, spelling)
                if spelling == "plain" or given in ("x", "u", "x,0", "x,1", "x,W"):
                    with warnings.catch_warnings():
                        warnings.simplefilter("ignore")
                        try:
                            found = leaves(call(case, whole_arguments()))
                        except Exception:
                            continue
                    key = spelling, tuple(_fingerprint(leaf) for leaf in found)
                    if key not in seen and found:
                        seen.add(key)
                        yield case


def _fingerprint(leaf: Any) -> Any:
    if isinstance(leaf, Tensor):
        dense = leaf.to_dense() if leaf.layout != torch.strided else leaf
        return tuple(leaf.shape), str(leaf.dtype), float(torch.nan_to_num(dense.detach().to(torch.complex128).abs()).sum())
    return repr(leaf)


def leaves(out: Any) -> list[Any]:
    """Tensors and numbers of a result, flat."""
    if isinstance(out, (tuple, list)):
        return [leaf for item in out for leaf in leaves(item)]
    return [out] if isinstance(out, (Tensor, bool, int, float, complex)) else []


def whole_arguments() -> dict[str, Any]:
    """On one worker, as PyTorch gets them."""
    given: dict[str, Any] = {name: tensor.clone() for name, tensor in WHOLE.items()}
    for name in "xuvzq":
        given[name].requires_grad_()
        given[name] = given[name] * 1.0
    return given | {name: tensor.clone() for name, tensor in ALIKE.items()} | {"n": ROWS}


def alone(case: Case, seed: int = 1) -> list[Any]:
    """PyTorch's own answer: of each result its numbers; then the gradients of all arguments."""
    given: dict[str, Any] = {name: tensor.clone() for name, tensor in WHOLE.items()}
    given |= {name: tensor.clone() for name, tensor in ALIKE.items()} | {"n": ROWS}
    sources = {name: given[name].requires_grad_() for name in ("x", "u", "v", "z", "q", *_FLOATS)}
    torch.manual_seed(seed)
    found = leaves(call(case, given | {name: source * 1.0 for name, source in sources.items()}))
    numbers = [leaf.detach().clone() if isinstance(leaf, Tensor) else leaf for leaf in found]
    loss = sum((_cosines(leaf) for leaf in found if isinstance(leaf, Tensor) and leaf.requires_grad), torch.zeros(()))
    grads = (
        torch.autograd.grad(loss, list(sources.values()), allow_unused=True) if loss.requires_grad else [None] * len(sources)
    )
    return [*numbers, dict(zip(sources, grads, strict=True))]


def _cosines(leaf: Tensor) -> Tensor:
    return (leaf.abs() if leaf.is_complex() else leaf).cos().sum()


def on_workers(group: Group, cases: list[Case], kind: str) -> list[Any]:
    """What this worker gets of each call: results with the ids of their rows, and gradients; or what was refused."""
    own = ORDER[CUTS[group.world][group.rank] : CUTS[group.world][group.rank + 1]]
    rows = Rows(kind)  # type: ignore[arg-type]
    answers: list[Any] = []
    for case in cases:
        given: dict[str, Any] = {name: tensor[own].clone() for name, tensor in WHOLE.items()}
        alike = {name: tensor.clone() for name, tensor in ALIKE.items()}
        sources = {name: given[name].requires_grad_() for name in "xuvzq"} | {
            name: alike[name].requires_grad_() for name in _FLOATS
        }
        for name in given:
            tagged(given[name], rows)
        count = Count(len(own), ROWS, "nodes", rows)
        torch.manual_seed(1)
        with warnings.catch_warnings(), calls_on(own, group=group, edges=(own, ENDS[own]), total=ROWS):
            warnings.simplefilter("ignore")
            try:
                ready = given | alike | {name: source * 1.0 for name, source in sources.items()} | {"n": count}
                found = leaves(call(case, ready))
            except ConfigError as error:
                answers.append(str(error))
                continue
            except Exception as error:
                answers.append(f"{type(error).__name__}: {error}")
                continue
        loss = torch.zeros(())
        for leaf in found:
            if isinstance(leaf, Tensor) and leaf.requires_grad:
                loss = loss + _cosines(leaf) / (1 if mark_of(leaf) is not None else group.world)
        grads = (
            torch.autograd.grad(loss, list(sources.values()), allow_unused=True)
            if loss.requires_grad
            else [None] * len(sources)
        )
        numbers = [(leaf.detach(), mark_of(leaf)) if isinstance(leaf, Tensor) else (leaf, None) for leaf in found]
        answers.append((own, numbers, dict(zip(sources, grads, strict=True))))
    return answers


def verdict(wanted: list[Any], answers: list[Any]) -> str:
    """``same``, ``refused``, or what is wrong.

    Args:
        wanted: as ``alone`` has them.
        answers: of each worker.
    """
    if any(isinstance(answer, str) for answer in answers):
        if not all(isinstance(answer, str) for answer in answers):
            return f"some workers refuse, others don't: {answers}"
        return "refused" if "given:" in answers[0] else f"fails: {answers[0]}"
    *numbers, grads = wanted
    for number, leaf in enumerate(numbers):
        parts = [answer[1][number] if number < len(answer[1]) else (None, None) for answer in answers]
        if (wrong := _compared(leaf, parts, [answer[0] for answer in answers])) is not None:
            return f"result {number}: {wrong}"
    for name, grad in grads.items():
        got = [answer[2][name] for answer in answers]
        whole = torch.zeros_like((WHOLE | ALIKE)[name])
        for answer, part in zip(answers, got, strict=True):
            if part is not None and name in WHOLE:
                whole[answer[0]] += part
            elif part is not None:
                whole += part
        single = any(isinstance(leaf, Tensor) and leaf.dtype in _SINGLE for leaf in numbers)
        whole = whole.float() if single else whole
        if not _close(whole, torch.zeros_like(whole) if grad is None else grad.to(whole.dtype)):
            return f"gradient of {name}: {grad} {whole}"
    return "same"


_SINGLE = (torch.float32, torch.complex64, torch.float16, torch.bfloat16, torch.complex32)


def _compared(leaf: Any, parts: list[tuple[Any, Mark | None]], ids: list[Tensor]) -> str | None:
    values, marks = [value for value, _ in parts], [mark for _, mark in parts]
    if not isinstance(leaf, Tensor):
        totals = [value.total if isinstance(value, Count) else value for value in values]
        same = all(
            total == leaf or (total != total and leaf != leaf) or _close(*map(torch.tensor, (total, leaf))) for total in totals
        )
        return None if same else f"{leaf} alone, {totals}"
    if not all(isinstance(value, Tensor) for value in values):
        return None if all(value is None for value in values) else f"no tensors: {values}"
    if any((mark is None) != (marks[0] is None) for mark in marks):
        return f"rows on some workers alone: {marks}"
    mark = marks[0]
    if mark is None:
        return None if all(_close(value, leaf) for value in values) else f"{leaf} alone, {values}"
    if any(part is not None and part.numbered for part in marks):
        return None
    if mark.rows is None:
        moved = [value.movedim(part.dim, 0) for value, part in zip(values, marks, strict=True) if part is not None]
        joined, whole = torch.cat([rows.double() for rows in moved]), leaf.movedim(mark.dim, 0).double()
        sums = [
            torch.nan_to_num(rows, 3.0).reshape(len(rows), -1).sum(1).sort()[0] if rows.numel() else rows.flatten()
            for rows in (joined, whole)
        ]
        return None if sums[0].shape == sums[1].shape and _close(*sums) else f"{whole} alone, {joined}"
    whole = mark._replace(number=ROWS).split(leaf).movedim(mark.dim + 1, 0)
    for value, part, own in zip(values, marks, ids, strict=True):
        assert part is not None
        rows = part.split(value).movedim(part.dim + 1, 0)
        if not _close(rows, whole[own]):
            return f"{whole[own]} alone, {rows}"
    return None


def _close(a: Tensor, b: Tensor) -> bool:
    if a.shape != b.shape:
        return False
    exact = a.dtype in (torch.float64, torch.complex128) or not (a.is_floating_point() or a.is_complex())
    a, b = (torch.nan_to_num(t.to(torch.complex128 if t.is_complex() else torch.float64), 0.123) for t in (a, b))
    tolerance = 1e-10 if exact else 1e-5
    return torch.allclose(a, b, rtol=tolerance, atol=tolerance * max(1.0, float(a.abs().max()) if a.numel() else 1.0))


def refused_functions() -> list[str]:
    """Of which no call on rows is computed on three workers, by name."""
    from tests.pool import pool

    names: dict[str, bool] = {}
    for space, name in functions():
        cases = []
        for case in cases_of(space, name):
            try:
                alone(case)
            except RuntimeError:
                continue
            cases.append(case)
        answers = pool(3)(on_workers, cases, "nodes") if cases else [[]]
        if cases:
            refused = all(isinstance(answer, str) for answer in answers[0])
            plain = name.strip("_")
            names[plain] = names.get(plain, True) and refused
    return sorted(name for name, refused in names.items() if refused)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    print(", ".join(f"`{name}`" for name in refused_functions()))
