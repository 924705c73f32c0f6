"""Remedies that several findings give: each has one text, whoever gives it.

What one finding alone gives stands in its module, beside the numbers by which it is chosen.
"""

GRAPHS = (
    "Launch many kernels at once with CUDA graphs: torch.compile(mode='reduce-overhead') (PyTorch"
    " 2.0) or torch.cuda.make_graphed_callables (1.10)"
)
CUDA_GRAPH = (
    "Launch many kernels at once with a CUDA graph: cudaStreamBeginCapture, cudaGraphLaunch"
    " (CUDA 10)"
)
DIRECTIVES = (
    "OpenACC: async(queue) on kernels and updates, and one wait where the host needs the data;"
    " OpenMP: nowait with depend"
)
LARGER_KERNELS = "Launch fewer, larger kernels: fuse small ones, and give each more to do"
GRAPH_BREAKS = (
    "Let torch.compile take in the kernels that it leaves out: TORCH_LOGS=graph_breaks (PyTorch"
    " 2.1) names what breaks its graphs"
)
DATA_REGION = (
    "Keep the data on the GPU, in one data region around the loop (OpenACC enter data and present,"
    " OpenMP target enter data), as contiguous arrays: most kernels come with an allocation or a"
    " copy of their own here, as where arrays of pointers are copied row by row"
)
LAUNCH_FIRST = (
    "Launch what other streams, GPUs or ranks wait for (a send, an all-gather) before the kernels"
    " that fill the queue, or from a thread of its own"
)
TAKE_OUT = (
    "Take .item(), .cpu(), print(tensor), nonzero() and boolean masks out of the step, or do them"
    " every N steps; torch.cuda.set_sync_debug_mode('warn') (PyTorch 1.10) names the lines"
)
READ_LATE = (
    "Read results late: copy to pinned memory with non_blocking=True, and wait for the event of the"
    " step before"
)
PIN = (
    "Copy from pinned memory without waiting: DataLoader(pin_memory=True) and .to(device,"
    " non_blocking=True); non_blocking alone does nothing for pageable memory"
)
PREFETCH = (
    "Copy the next batch on a stream of its own while this one is computed: from pinned memory with"
    " .to(device, non_blocking=True); let the compute stream wait for its event"
)
LOAD_CHEAPER = (
    "Make loading cheaper: decode and augment on the GPU (NVIDIA DALI), store preprocessed samples,"
    " read from local disks"
)
SLEEPS_FOR = (
    "Find what the launching thread sleeps for (a lock that another thread holds, a file, a socket,"
    " another process), and let a thread that launches nothing wait for it"
)
COLLECT = (
    "Choose when to collect garbage: gc.collect() and gc.freeze() after the first step,"
    " gc.disable(), then gc.collect() every N steps, on all ranks in the same step"
)
EVALUATE_ELSEWHERE = (
    "Evaluate less often, or let another process evaluate the checkpoints: the training waits for"
    " it here"
)
SAVE_BESIDE = (
    "Save in the background, or less often: copy the state to pinned memory and let a thread write"
    " it (PyTorch 2.4: torch.distributed.checkpoint.async_save)"
)
CORES = (
    "Give the job more cores (srun --cpus-per-task, the container's CPU request), and each rank"
    " its own: deepspeed --bind_cores_to_rank, torchrun --numa-binding, numactl, srun"
    " --cpu-bind=cores. `traceprof doctor` counts them"
)
THREADS = (
    "Keep the total number of threads of all ranks below the number of cores: OMP_NUM_THREADS=1 or"
    " a few, and fewer DataLoader(num_workers=…)"
)
MERGE = (
    "Merge small operations, since each has its own latency: one of a flattened buffer"
    " (torch._utils._flatten_dense_tensors), or torch.distributed._coalescing_manager, which"
    " launches many at once"
)
OWN_GROUPS = (
    "Give operations that do not depend on each other process groups of their own"
    " (torch.distributed.new_group, one for each pair of pipeline ranks and one for the"
    " gradients): operations of one communicator run strictly in the order of their calls"
)
HALF_THE_BYTES = (
    "Send half the bytes: torch.distributed.algorithms.ddp_comm_hooks.default_hooks"
    ".bf16_compress_hook"
)
FEWER_REDUCTIONS = (
    "Reduce gradients less often: accumulate those of several micro-batches under DDP's no_sync()"
)
CLOCK_LIMITS = (
    "Find what limits its clock: `nvidia-smi -q -d PERFORMANCE,CLOCK,POWER,TEMPERATURE` lists the"
    " reasons (SW Power Cap, HW Thermal Slowdown, …) while the training runs"
)
OTHERS_ON_GPU = (
    "Look for another process on that GPU (`nvidia-smi pmon`), and for MIG or MPS shares"
)
OTHER_NODE = "Run the job on another node, and see whether the slow rank moves with the GPU"
HELD_UP = (
    "Find what held up the one that was waited for: see its gpu-idle and host-stall, and"
    " nccl-serialization for operations that were queued behind others"
)
