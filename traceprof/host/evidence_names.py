"""Patterns of the names of host calls and ranges: set-up, allocation, MPI, sleep, data loading.

Names of API calls are without their version, such as `cudaLaunchKernel`.
"""

from __future__ import annotations

import re

from traceprof.patterns import lazy

SETUP_CALL = lazy(
    # contexts, and access to other devices
    r"cuInit|cu(?:da)?Ctx(?:Create|Destroy|EnablePeer)"
    r"|cuDevicePrimaryCtx(?:Retain|Reset|Release)"
    r"|cuda(?:SetDevice|InitDevice|DeviceReset|DeviceEnablePeerAccess)\Z"
    # loading of modules and libraries, compilation, graphs
    r"|cu(?:da)?(?:Module|Library|Link)[A-Z]|cuKernelGetFunction|cuFuncLoad|cuFuncIsLoaded"
    r"|cudaFuncGetAttributes|cudaGetFuncBySymbol|cuGetProcAddress|cudaGetDriverEntryPoint"
    r"|hipModule(?:Load|GetFunction)|__(?:cuda|hip)Register|nvrtc"
    # streams, events, graphs
    r"|(?:cuda|cu|hip)(?:Ext)?(?:Stream|Event|Graph)Create|(?:cuda|cu|hip)Graph(?:Instantiate|Upload|Add)"
    r"|(?:cuda|cu|hip)Stream(?:Begin|End)Capture"
    # registration of memory, also of other processes' memory
    r"|cu(?:da)?(?:Mem)?Host(?:Register|Unregister)|cu(?:da)?Ipc(?:Open|Close)"
)
"""API calls, matched from their beginning, that prepare something once."""

SETUP_RANGE = lazy(
    r"\Anccl(?:CommInit|CommSplit|CommShrink|CommRegister|CommWindowRegister|GetUniqueId)"
    r"|\A(?:cublas|cublasLt|cudnn|cusolver\w*|cusparse|cufft)Create"
    r"|\b(?:init_process_group|compile_fx|nvrtc)\b|dynamo_timed"
    r"|(?i:\bwarm[ _-]?up\b|\b(?:jit[ _-]?)?(?:compile|compilation|compiling)\b)"
)
"""Ranges and library calls for set-up: communicators, handles, compilation, warm-up."""

SETUP_WORK = lazy(r"Module Loading|Function Loading|JIT", re.IGNORECASE)
"""Work inside a call, as CUDA reports it, that is set-up."""

ALLOCATION_CALL = lazy(
    r"(?:cuda|hip)(?:Malloc|Free|HostAlloc|HostMalloc|HostFree)"
    r"|cuMem(?:Alloc|Free|HostAlloc|Create|Release|Map|Unmap|Address|SetAccess)"
    r"|cu(?:da)?MemPool|cuArray(?:3D)?(?:Create|Destroy)|cuMipmappedArray(?:Create|Destroy)"
)
"""API calls, matched from their beginning, that allocate, free, map or unmap memory."""

MPI_RANGE = lazy(r"\AMPI_[A-Z]|\Agloo:|\Auc[pxc]_")
"""Ranges that MPI, PyTorch's Gloo and UCX open around their calls."""

BLOCKING_SYSTEM_CALL = lazy(
    r"(?:futex|sem_(?:timed|clock)?wait|p?poll|p?select|epoll_p?wait2?|(?:clock_)?nanosleep"
    r"|u?sleep|pause|pthread_(?:cond_(?:timed|clock)?wait|mutex_(?:(?:timed|clock)?lock)|join"
    r"|barrier_wait|rwlock_(?:timed|clock)?(?:rd|wr)lock)|sigwait\w*|sigsuspend"
    r"|wait(?:id|pid|[34])?|flock|lockf|p?(?:read|write)v?(?:64|2|64v2)?"
    r"|f(?:read|gets|getc|write|sync|datasync|flush)|f?getc(?:har)?|recv(?:from|m?msg)?"
    r"|send(?:to|m?msg|file)?|accept4?|connect|msg(?:rcv|snd)|semop|io_getevents)\Z"
)
"""System calls in which a thread sleeps; others, such as `ioctl` and `mmap`, work in the kernel."""

OVER_BY_ITSELF = lazy(
    r"(?:(?:clock_)?nanosleep|u?sleep|p?writev?(?:64|2|64v2)?|f(?:write|sync|datasync|flush))\Z"
)
"""System calls, matched from their beginning, that nobody else ends: sleeps, writing of files."""

# Names that people and frameworks give a range in which the training thread waits for its batch:
# `dataloader next`, `data_loading`, `load_batch`, `get_batch`, `next(loader)`, PyTorch's
# `enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__`, Lightning's
# `[_TrainingEpochLoop].train_dataloader_next`, Megatron's `batch-generator`, and DALI's readers.
DATA_LOADING = lazy(
    r"data[ _-]?load|load[ _-]?(?:data|batch)"
    r"|(?:fetch|get|next|load)[ _-]?batch|batch[ _-]?(?:fetch|load|generator|wait)"
    r"|fetch[ _-]?data|data[ _-]?(?:fetch|wait|iter|next)|\bnext\(|\Adata\Z"
    r"|\A\[DALI\]\[(?:Loader|DataReader)\]",
    re.IGNORECASE,
)
"""Ranges in which data is loaded."""

PYTHON_LOADING = lazy(
    r"(?:\A|/)(?:[^/(]*(?:data|loader)[^/(]*\.py|(?:dali|datapipes|torchdata|webdataset)/[^(]*)"
    r"\(\d+\): __next__"
)
"""Functions of Python that return the next item of a data loader."""

PYTHON_SETUP = lazy(
    r"(?:\A|/)torch/(?:distributed/(?:distributed_c10d|device_mesh)\.py\(\d+\): init_\w+"
    r"|_inductor/compile_fx\.py\(\d+\): compile_fx\w*)\Z"
    r"|(?:\A|/)triton/compiler/compiler\.py\(\d+\): compile\Z"
)
"""Functions of Python that create communicators or compile."""

PYTHON_SLEEP = lazy(
    r"<(?:built-in )?(?:method|function) '?(?:sleep|acquire|select|poll|epoll|wait|waitpid|recv\w*"
    r"|accept)\b"
)
"""Functions of Python in C that wait: for time, a lock, a socket, another process."""

GARBAGE_COLLECTION = lazy(
    r"\APython GC\b|\bgc[ _.-]collect|\bgarbage[ _-]?collect"
    r"|\A<built-in (?:function|method) collect\b"
)
"""Ranges and functions of garbage collection."""

HOST_WORK = lazy(
    GARBAGE_COLLECTION.pattern
    + r"|(?i:(?<![a-z])(?:save|write|store|stage)[ _-]?(?:checkpoint|state_dict)"
    r"|(?<![a-z])checkpoint[ _-]?(?:sav|writ|stor|stag))|\btorch\.save\b"
    r"|torch/serialization\.py\(\d+\): save\Z"
    r"|distributed/checkpoint/\w+\.py\(\d+\): (?:async_)?save\Z"
)
"""Ranges and functions of garbage collection and of checkpoints that are written."""

LOADER_STAGE = lazy(r"\A(?:\[DALI\])?\[Executor\] Run(CPU|Mixed|GPU)\Z")
"""What a stage of a pipeline of NVIDIA DALI does for one batch, on a thread of its own."""

HOST_RANGE = lazy(
    "|".join(
        (SETUP_RANGE.pattern, MPI_RANGE.pattern, HOST_WORK.pattern, f"(?i:{DATA_LOADING.pattern})")
    )
)
"""Ranges of any of these kinds."""
