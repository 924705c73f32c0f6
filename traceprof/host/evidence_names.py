"""Patterns of the names of host calls and ranges: set-up, allocation, MPI, sleep, data loading.

Names of API calls are without their version, such as `cudaLaunchKernel`.
"""

from __future__ import annotations

import re

SETUP_CALL = re.compile(
    # contexts, and access to other devices
    r"cuInit|cu(?:da)?Ctx(?:Create|Destroy|EnablePeer)"
    r"|cuDevicePrimaryCtx(?:Retain|Reset|Release)"
    r"|cuda(?:SetDevice|InitDevice|DeviceReset|DeviceEnablePeerAccess)\Z"
    # loading of modules and libraries, compilation, graphs
    r"|cu(?:da)?(?:Module|Library|Link)[A-Z]|cuKernelGetFunction|cuFuncLoad|cuFuncIsLoaded"
    r"|cudaFuncGetAttributes|cudaGetFuncBySymbol|cuGetProcAddress|cudaGetDriverEntryPoint"
    r"|hipModule(?:Load|GetFunction)|__(?:cuda|hip)Register|nvrtc|cu(?:da)?Graph(?:Instantiate|Upload)"
    # registration of memory, also of other processes' memory
    r"|cu(?:da)?(?:Mem)?Host(?:Register|Unregister)|cu(?:da)?Ipc(?:Open|Close)"
)
"""API calls, matched from their beginning, that prepare something once."""

SETUP_RANGE = re.compile(
    r"\Anccl(?:CommInit|CommSplit|CommShrink|CommRegister|CommWindowRegister|GetUniqueId)"
    r"|\A(?:cublas|cublasLt|cudnn|cusolver\w*|cusparse|cufft)Create"
    r"|\b(?:init_process_group|compile_fx|nvrtc)\b|dynamo_timed"
    r"|(?i:\bwarm[ _-]?up\b|\b(?:jit[ _-]?)?(?:compile|compilation|compiling)\b)"
)
"""Ranges and library calls for set-up: communicators, handles, compilation, warm-up."""

SETUP_WORK = re.compile(r"Module Loading|Function Loading|JIT", re.IGNORECASE)
"""Work inside a call, as CUDA reports it, that is set-up."""

ALLOCATION_CALL = re.compile(
    r"(?:cuda|hip)(?:Malloc|Free|HostAlloc|HostMalloc|HostFree)"
    r"|cuMem(?:Alloc|Free|HostAlloc|Create|Release|Map|Unmap|Address|SetAccess)"
    r"|cu(?:da)?MemPool|cuArray(?:3D)?(?:Create|Destroy)|cuMipmappedArray(?:Create|Destroy)"
)
"""API calls, matched from their beginning, that allocate, free, map or unmap memory."""

MPI_RANGE = re.compile(r"\AMPI_[A-Z]|\Agloo:|\Auc[pxc]_")
"""Ranges that MPI, PyTorch's Gloo and UCX open around their calls."""

BLOCKING_SYSTEM_CALL = re.compile(
    r"(?:futex|sem_(?:timed|clock)?wait|p?poll|p?select|epoll_p?wait2?|(?:clock_)?nanosleep"
    r"|u?sleep|pause|pthread_(?:cond_(?:timed|clock)?wait|mutex_(?:(?:timed|clock)?lock)|join"
    r"|barrier_wait|rwlock_(?:timed|clock)?(?:rd|wr)lock)|sigwait\w*|sigsuspend"
    r"|wait(?:id|pid|[34])?|flock|lockf|p?(?:read|write)v?(?:64|2|64v2)?"
    r"|f(?:read|gets|getc|write|sync|datasync|flush)|f?getc(?:har)?|recv(?:from|m?msg)?"
    r"|send(?:to|m?msg|file)?|accept4?|connect|msg(?:rcv|snd)|semop|io_getevents)\Z"
)
"""System calls in which a thread sleeps; others, such as `ioctl` and `mmap`, work in the kernel."""

# Names that people and frameworks give a range in which the training thread waits for its batch:
# `dataloader next`, `data_loading`, `load_batch`, `get_batch`, `next(loader)`, PyTorch's
# `enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__`, Lightning's
# `[_TrainingEpochLoop].train_dataloader_next`, Megatron's `batch-generator`, and DALI's readers.
DATA_LOADING = re.compile(
    r"data[ _-]?load|load[ _-]?(?:data|batch)"
    r"|(?:fetch|get|next|load)[ _-]?batch|batch[ _-]?(?:fetch|load|generator|wait)"
    r"|fetch[ _-]?data|data[ _-]?(?:fetch|wait|iter|next)|\bnext\(|\Adata\Z"
    r"|\A\[DALI\]\[(?:Loader|DataReader)\]",
    re.IGNORECASE,
)
"""Ranges in which data is loaded."""

HOST_RANGE = re.compile(
    "|".join((SETUP_RANGE.pattern, MPI_RANGE.pattern, f"(?i:{DATA_LOADING.pattern})"))
)
"""Ranges of any of these kinds."""
