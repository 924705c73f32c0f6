"""Advice about chains of kernels, for the program and for what the chains are made of."""

from __future__ import annotations

_OPTIMIZER = (
    "The optimizer: torch.optim.AdamW(..., fused=True) (PyTorch 2.0; SGD 2.3) updates all"
    " parameters in one pass, foreach=True (the default on GPUs since 2.0) at least in few kernels;"
    " before that NVIDIA apex's FusedAdam, FusedSGD"
)
_COMPILE = (
    "torch.compile(model) (PyTorch 2.0) fuses such chains into Triton"
    " kernels, and those of the optimizer's step if that is compiled, too"
    " (2.2)"
)
_GRAPHS = (
    "The GPU waits for the host between them: torch.compile(model, mode='reduce-overhead') (PyTorch"
    " 2.0) or torch.cuda.make_graphed_callables (1.10) launch them as CUDA graphs"
)
_LAYOUT = (
    "Changes of layout around convolutions:"
    " model.to(memory_format=torch.channels_last) and the same for the"
    " input (channels_last_3d for volumes, PyTorch 1.5) avoid them"
)
_ATTENTION = (
    "Attention in one kernel, which never writes its scores to memory:"
    " torch.nn.functional.scaled_dot_product_attention (PyTorch 2.0; in"
    " Transformers attn_implementation='sdpa'), which uses FlashAttention"
    " for FP16 and BF16; jax.nn.dot_product_attention(...,"
    " implementation='cudnn')"
)
_OTHER = (
    "Fuse them by hand or by a compiler: XLA (jax.jit, tf.function(jit_compile=True)), OpenMP or"
    " OpenACC loops that are joined, one CUDA kernel for all of a chain"
)
ALL_ADVICE = (_ATTENTION, _OPTIMIZER, _COMPILE, _GRAPHS, _LAYOUT, _OTHER)


def advice(
    *,
    has_chains: bool,
    by_attention: float,
    is_pytorch: bool,
    is_launch_bound: bool,
    by_optimizer: float,
    by_layout: float,
) -> tuple[str, ...]:
    """Return what to do, most promising first.

    Args:
        has_chains: whether anything but attention is not fused.
        by_attention: the share of attention, by what could be saved.
        is_pytorch: whether the program is known to use PyTorch.
        is_launch_bound: whether launching takes longer than running.
        by_optimizer: the share of the chains, by what could be saved, that optimizers run.
        by_layout: the share of changes of layout, by time.
    """
    attention = (_ATTENTION,) if by_attention >= _MIN_SHARE else ()
    if not has_chains:
        return attention
    rest = _of_chains(is_pytorch, is_launch_bound, by_optimizer, by_layout)
    return (*attention, *rest) if by_attention >= 0.5 else (*rest, *attention)


def _of_chains(
    is_pytorch: bool, is_launch_bound: bool, by_optimizer: float, by_layout: float
) -> tuple[str, ...]:
    if not is_pytorch:
        return (_OTHER,)
    others = (_GRAPHS,) if is_launch_bound else (_COMPILE,)
    layout = (_LAYOUT,) if by_layout >= _MIN_SHARE else ()
    if by_optimizer < _MIN_SHARE:
        return (*others, *layout)
    if by_optimizer > 1 - _MIN_SHARE:
        return (_OPTIMIZER, *others)
    first = (_OPTIMIZER, *others) if by_optimizer >= 0.5 else (*others, _OPTIMIZER)
    return (*first, *layout)


_MIN_SHARE = 0.1
