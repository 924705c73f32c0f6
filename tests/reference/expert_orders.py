"""What an expert acts on first in public recordings, written down before the order was coded.

Read from the recordings themselves, with what their authors changed next and what it brought where
that is known. Names are those of a folder of recordings (`TRACEPROF_TRACES`).
"""

LOADER = "gpu-idle"
EXPERT_ORDERS: dict[str, tuple[str, ...]] = {
    # name: the findings in the order in which to act, the first one or two
    "a100x4_ddp_baseline_rank0": ("unfused-kernels", "exposed-copy"),
    "a100x4_ddp_nobroadcast_rank0": ("unfused-kernels", "exposed-copy"),
    "a100x4_ddp_bucketcap100mb_2021": ("full-precision-matmul", "unfused-kernels"),
    "a100_single_4workers_dataloader": ("full-precision-matmul", "unfused-kernels"),
    "a100_single_dali_amp_bf16": ("unfused-kernels",),
    "pairs/a100_loader_0_baseline": (LOADER,),
    # DALI came next and brought 43 ms; half precision after it 16 of a limit of 57.
    "pairs/a100_loader_1_8workers": (LOADER, "full-precision-matmul"),
    "pairs/a100_loader_2_dali": ("full-precision-matmul", "unfused-kernels"),
    "pairs/a100_loader_3_dali_amp": (LOADER, "unfused-kernels"),  # it no longer keeps up
    "pairs/h100x2_per_layer_sync": ("host-sync", "unfused-kernels"),
    # A wait in each layer also breaks what a compiler could fuse.
    "h100x2_torchrun_nccl_on_compute_stream": ("host-sync", "unfused-kernels"),
    "pairs/warm_up_and_upload": ("full-precision-matmul", "unfused-kernels"),
    "pairs/v100_mpas_0_noasync": ("host-sync",),
    "pairs/openacc/before": ("gpu-idle",),
    "pairs/kineto_loader/resnet50_w0_a": (LOADER,),
    "pairs/kineto_loader/resnet50_w0_b": (LOADER,),  # half precision brings nothing here
    "small_bwd_3.27.0": ("full-precision-matmul",),
    "gpt2_result_2_7B_3.16.1": ("full-precision-matmul",),
    "inference_no_mangled_names": ("unfused-kernels",),
    "no_metadata_2020_08b5": ("pageable-copy", "gpu-idle"),
    "no_metadata_2021_b": ("host-sync",),
    "h100x2_command_buffer_full": ("exposed-copy",),
    "cloverleaf_3.13.2": ("host-sync", "pageable-copy"),
    "icon_3.17.1": ("gpu-idle", "unified-memory"),
    "jacobi_mpi": ("gpu-idle",),
    "v100x4_mpi_peer_copies": ("gpu-idle",),
    "streams_3.0.0": ("exposed-copy",),
    "kineto/dlrm_8ranks": ("straggler", "host-sync"),
    "kineto/param_resnet": (LOADER,),
    "kineto/b200_host_bound_a": ("gpu-idle",),
    "kineto/b200_training_step": ("gpu-idle",),
    "kineto/h100_timesformer": ("unfused-kernels",),
    "kineto/mi300_owlv2": (LOADER, "unfused-kernels"),
    "kineto/HolisticTraceAnalysis_nccl_parser_config_nccl_data": ("gpu-idle",),
    "kineto/HolisticTraceAnalysis_df_index_resolver_df_index_resolver": ("gpu-idle",),
    "kineto/HolisticTraceAnalysis_trace_diff_test_test": ("full-precision-matmul",),
    "kineto/HolisticTraceAnalysis_esolution_trace_rank-0.Apr_03_18_51_38.1102": (
        "full-precision-matmul",
        "unfused-kernels",
    ),
    "kineto/TraceLens_sts_traces_mi300_ddp_resnet18_no_pool_train_resnet18": ("gpu-idle",),
    "kineto/TraceLens_tests_traces_mi300_resnet_act_checkpoint": ("exposed-communication",),
    "kineto/bytedance_st": ("pipeline-bubble",),  # the last stage has more to do, and is named
    "kineto/bytedance_se": ("uneven-kernels",),  # sequences of unequal length
    "cases/low_before_high": (LOADER,),
}
