"""Session options, their thread pools (own or shared by the process), and run options of a model."""

import re
import threading
from collections.abc import Mapping
from functools import cache

import msgspec
import onnxruntime as ort

from tpx.errors import LoadError
from tpx.processors import schedulable_processors
from tpx.protocol.messages import ModelConfig
from tpx.serving.backends.contract import InstanceSpec, ModelFiles
from tpx.serving.backends.onnxruntime.providers import CUDA_PARAMETERS
from tpx.serving.backends.onnxruntime.signature import ORT_ERRORS
from tpx.serving.backends.parameters import GivenParameters, find_library, instance_specs

INTRA, INTER, GLOBAL = "intra_op_thread_count", "inter_op_thread_count", "enable-global-threadpool"
COMMAND_LINE = "--backend-config onnxruntime"
_making = threading.Lock()


class Threads(msgspec.Struct, frozen=True, kw_only=True):
    """Thread counts of a session's pools or of the shared pools; 0 leaves the count to ONNX Runtime."""

    intra_op: int
    inter_op: int
    common: bool = False

    @classmethod
    def of(cls, config: ModelConfig, settings: Mapping[str, str]) -> "Threads":
        """Return the counts set by the model or by --backend-config, or this instance's share of the cores.

        Raises ConfigError, or LoadError if the shared pools cannot be as --backend-config says.
        """
        server_settings = GivenParameters(where=COMMAND_LINE, values=settings)
        model = GivenParameters.of_model(config)
        if server_settings.switch(GLOBAL, default=False):
            for key in {INTRA, INTER} & model.values.keys():
                model.warn(key, f"has no effect: {COMMAND_LINE},{GLOBAL} gives all models the same threads")
            threads = cls(
                intra_op=server_settings.threads(INTRA), inter_op=server_settings.threads(INTER), common=True
            )
            with _making:
                _make_pools_once(threads)
            return threads
        share = max(1, schedulable_processors() // max(1, len(instance_specs(config))))
        return cls(
            intra_op=model.threads(INTRA) or server_settings.threads(INTRA) or share,
            inter_op=model.threads(INTER) or server_settings.threads(INTER) or 1,
        )


@cache
def _make_pools_once(threads: Threads) -> None:
    """Create the shared pools, which belong to the process and cannot be changed."""
    if not hasattr(ort, "set_global_thread_pool_sizes"):
        raise LoadError(
            f"--backend-config onnxruntime,{GLOBAL}: ONNX Runtime {ort.__version__} has no Python API "
            "for shared threads: pip install --upgrade onnxruntime"
        )
    try:
        ort.set_global_thread_pool_sizes(threads.intra_op, threads.inter_op)
    except ORT_ERRORS as exc:
        raise LoadError(
            f"--backend-config onnxruntime,{GLOBAL}: the process's shared threads already exist with "
            f"other counts: {exc}"
        ) from exc


DIRECTORIES = "op-library-directories"
"""--backend-config key with further directories for operator libraries, separated by colons."""
_FIELD = "model_operations.op_library_filename"


PREFIXES = ("session.", "optimization.", "ep.", "mlas.")
"""Prefixes of model parameters that are passed on unchanged."""

_SESSION = """
allow_released_opsets_only collect_node_memory_stats_to_file compile_only debug_layout_transformation
disable_aot_function_inlining disable_cpu_ep_fallback disable_double_qdq_remover disable_model_compile
disable_prepacking disable_qdq_constant_folding disable_quant_qdq dynamic_block_base
enable_dq_matmulnbits_fusion enable_quant_qdq_cleanup fail_on_suboptimal_compiled_model
force_spinning_stop graph_optimizations_loop_level inter_op.allow_spinning inter_op.spin_backoff_max
inter_op.spin_duration_us intra_op.allow_spinning intra_op.spin_backoff_max intra_op.spin_duration_us
intra_op_thread_affinities load_model_format model_external_initializers_file_folder_path
node_partition_config_file optimized_model_external_initializers_file_name
optimized_model_external_initializers_min_size_in_bytes prepack.enable_parallel
qdq_matmulnbits_accuracy_level qdq_matmulnbits_block_size qdqisint8allowed record_ep_graph_assignment_info
resource_cuda_partitioning_settings save_external_prepacked_constant_initializers save_model_format
set_denormal_as_zero strict_shape_type_inference use_device_allocator_for_initializers use_env_allocators
use_memory_mapped_ort_model use_ort_model_bytes_directly use_ort_model_bytes_for_initializers
x64quantprecision
"""
_OTHERS = """
ep.context_embed_mode ep.context_enable ep.context_file_path
ep.context_model_external_initializers_file_name ep.context_node_name_prefix ep.share_ep_contexts
ep.stop_share_ep_contexts mlas.enable_gemm_fastmath_arm64_bfloat16 mlas.use_lut_gemm
optimization.constant_folding_max_output_size_in_bytes optimization.disable_specified_optimizers
optimization.enable_cast_chain_elimination optimization.enable_gelu_approximation
optimization.minimal_build_optimizations
"""
ENTRIES = (*(f"session.{name}" for name in _SESSION.split()), *_OTHERS.split())


SHRINKAGE = "memory.enable_memory_arena_shrinkage"
_OWN = (INTRA, INTER, "execution_mode", "enable_mem_arena", "enable_mem_pattern", SHRINKAGE)
_SETTINGS = (GLOBAL, INTRA, INTER, DIRECTORIES, "default-max-batch-size")
"""Keys of --backend-config; `default-max-batch-size` is read where configurations are completed."""
_DEVICE = re.compile(r"(cpu|gpu):(\d+)")

_GRAPH_LEVELS = {
    -1: ort.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    1: ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
    2: ort.GraphOptimizationLevel.ORT_DISABLE_ALL,
}


def warn_of_unknown(config: ModelConfig, settings: Mapping[str, str], *, on_gpu: bool) -> None:
    """Log a warning for each unknown parameter or key of --backend-config.

    Session entries that ONNX Runtime may not know are passed on with a warning.
    """
    GivenParameters(where=COMMAND_LINE, values=settings).warn_of_others(_SETTINGS, "has no effect")
    given = GivenParameters.of_model(config)
    for key in given.values:
        if key in _OWN or key in ENTRIES:
            continue
        if key in CUDA_PARAMETERS:
            if not on_gpu:
                given.warn(key, "has no effect: no instance is on a GPU")
        elif key.startswith(PREFIXES):
            given.warn(key, "is passed on to ONNX Runtime, but tpx does not know it", (*ENTRIES, *_OWN))
        else:
            given.warn(key, "has no effect", (*_OWN, *CUDA_PARAMETERS, *ENTRIES))


def session_options(config: ModelConfig, threads: Threads, files: ModelFiles) -> ort.SessionOptions:
    """Return session options from the configuration and --backend-config. Raises ConfigError, LoadError."""
    given = GivenParameters.of_model(config)
    options = ort.SessionOptions()
    if threads.common:
        options.use_per_session_threads = False
    else:
        options.intra_op_num_threads = threads.intra_op
        options.inter_op_num_threads = threads.inter_op
    options.graph_optimization_level = _GRAPH_LEVELS.get(
        config.optimization.graph.level, ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    )
    if given.switch("execution_mode", default=False):
        options.execution_mode = ort.ExecutionMode.ORT_PARALLEL
    options.enable_cpu_mem_arena = given.switch("enable_mem_arena", default=True)
    options.enable_mem_pattern = given.switch("enable_mem_pattern", default=True)
    options.log_severity_level = 3
    # spinning while idle doubles the CPU time of small models
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.add_session_config_entry("session.inter_op.allow_spinning", "0")
    for key, word in given.values.items():
        if key.startswith(PREFIXES):
            try:
                options.add_session_config_entry(key, word)
            except ORT_ERRORS as exc:
                raise given.refuse(key, f"parameter '{key}' of {given.where}: {exc}") from exc
    for name in config.model_operations.op_library_filename:
        library = find_library(files, name, field=_FIELD, option=f"onnxruntime,{DIRECTORIES}")
        try:
            options.register_custom_ops_library(str(library.absolute()))
        except ORT_ERRORS as exc:
            raise LoadError(
                f"model '{config.name}': the library of operators '{library}' ({_FIELD}) cannot be used: "
                f"{exc}"
            ) from exc
    return options


def shrinking_options() -> ort.RunOptions:
    """Return the options for a run that returns the free memory of the CPU's arena to the system."""
    options = ort.RunOptions()
    options.log_severity_level = 3
    options.add_run_config_entry(SHRINKAGE, "cpu:0")
    return options


def run_options(config: ModelConfig, spec: InstanceSpec) -> ort.RunOptions:
    """Return the options for each run of an instance. Raises ConfigError."""
    options = ort.RunOptions()
    options.log_severity_level = 3
    given = GivenParameters.of_model(config)
    text = given.values.get(SHRINKAGE, "")
    arenas = []  # those of this instance; their free memory is returned to the system after each run
    for item in text.split(";") if text else ():
        found = _DEVICE.fullmatch(item)
        if found is None:
            raise given.wrong(SHRINKAGE, "devices such as cpu:0;gpu:0")
        kind, device = found[1], int(found[2])
        if kind == "cpu" and (device or not given.switch("enable_mem_arena", default=True)):
            raise given.refuse(
                SHRINKAGE,
                f"parameter '{SHRINKAGE}' of {given.where} names {item}, which has no arena: the CPU's "
                "is cpu:0, unless enable_mem_arena is 0",
            )
        if kind == "cpu" or (spec.kind == "KIND_GPU" and spec.device_id == device):
            arenas.append(item)
    if arenas:
        options.add_run_config_entry(SHRINKAGE, ";".join(arenas))
    return options
