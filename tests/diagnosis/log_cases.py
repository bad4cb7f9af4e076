"""For each rule that reads logs: lines on which it fires, and near misses on which it does not.

Texts are those of vLLM 0.32.0's source with values filled in. A near miss is something a healthy
or differently broken engine prints.
"""

P = "in --kv-transfer-config"
FIRES: dict[str, str] = {
    "CFG01": "Value error, Please specify kv_role when kv_connector is set, supported roles are ()",
    "CFG02": "kv_role\n  Input should be 'kv_producer', 'kv_both' or 'kv_consumer' [type=literal]",
    "CFG03": "kv_ip\n  Unexpected keyword argument [type=unexpected_keyword_argument]",
    "CFG04": "ValueError: Unsupported connector type: PyNcclConnector",
    "CFG05": "kv_load_failure_policy\n  Input should be 'recompute' or 'fail' [type=literal_error]",
    "CFG06": "Using kv_role='kv_both' with NixlConnector is deprecated and will be removed",
    "CFG07": "RuntimeError: NIXL is not available",
    "CFG08": "RuntimeError: cpu with cuda kv_buffer is not supported.",
    "CFG09": "NotImplementedError: NixlConnector (pull) does not support "
    "pipeline_parallel_size > 1",
    "CFG10": "ValueError: Bidirectional KV transfer is not supported for NIXL push",
    "CFG11": "Turning off hybrid kv cache manager because `--kv-transfer-config` selects a KV",
    "CFG12": "ValueError: Connector LMCacheConnectorV1 does not support HMA but HMA is enabled.",
    "CFG13": "--enable-return-routed-experts is incompatible with NixlConnector; PD "
    "auxiliary output "
    "is not supported.",
    "CFG14": "ValueError: KV cache layout mismatch: found 2 different layouts",
    "HYB01": "AssertionError: 3-read Mamba conv transfer requires DS conv state layout. Set "
    "VLLM_SSM_CONV_STATE_LAYOUT=DS",
    "HYB02": "ValueError: Invalid value 'ds' for VLLM_SSM_CONV_STATE_LAYOUT. Valid options: []",
    "HYB03": "ValueError: Failed to promote local KV cache specs to one unified type.",
    "HYB04": "Value error, --mamba-block-size can only be set with --enable-prefix-caching",
    "HYB05": "AssertionError: Chunked prefill is required for mamba cache mode 'align'.",
    "HYB06": "ValueError: max_num_seqs (1024) exceeds available Mamba cache blocks (969). Each",
    "HYB07": "Setting attention block size to 528 tokens to ensure that attention page size is >= "
    "mamba page size.",
    "HYB08": "AssertionError: External KV connector is not verified yet",
    "HYB09": "RuntimeError: Prefix caching with heterogeneous physical_blocks_per_logical is not "
    "supported for Mamba hybrid models. Local: 2, Remote: 4.",
    "HYB10": "ValueError: Conv transfer only supports Mamba1, Mamba2 and GDN",
    "HYB11": "ValueError: --use-replayssm is incompatible with KV connectors",
    "HYB12": "This model does not officially support disabling chunked prefill. Disabling this",
    "HYB13": "    assert self.page_size_padded >= page_size",
    "PAIR01": "RuntimeError: NIXL compatibility hash mismatch. Local: 6b1d0a4f9e, "
    "Remote: 77aa01bb02",
    "PAIR02": "RuntimeError: Remote NIXL agent engine ID mismatch. Expected 5f0d-a, "
    "received 5f0d-b.",
    "PAIR03": "AssertionError: Local block size 16 is not divisible by remote block size "
    "64 or vice",
    "PAIR04": "AssertionError: Local tensor parallel size 4 is not divisible by remote tensor "
    "parallel size 3.",
    "PAIR05": '  File "base_worker.py", line 2449, in _validate_remote_agent_handshake\n'
    "    assert not (",
    "PAIR06": "AssertionError: Different local/remote block sizes are not supported when "
    "P TP > D TP",
    "PAIR07": "RuntimeError: Heterogeneous TP expects same kv_cache_layout (local LBNHC, remote "
    "LBHNC).",
    "PAIR08": "RuntimeError: Heterogeneous TP head-dimension splitting requires "
    "contiguous heads. Use",
    "PAIR09": "AssertionError: Number of KV layers must match between prefill and decode",
    "PAIR10": "AssertionError: KV cache sizes must match between P and D when replicated (region 0",
    "PAIR11": "AssertionError: Heterogeneous block sizes are not supported with host buffer",
    "PAIR12": "NotImplementedError: Attention-HMA push requires identical P/D block sizes.",
    "PAIR14": "RuntimeError: Failed to decode NixlHandshakePayload. This likely indicates",
    "PAIR15": "zmq.error.Again: Resource temporarily unavailable",
    "PAIR17": "ValueError: Decode allocated more KV pages than the prefill worker supplied",
    "PORT01": "zmq.error.ZMQError: Address already in use (addr='tcp://localhost:5600')",
    "PORT02": "zmq.error.ZMQError: Cannot assign requested address (addr='tcp://10.20.0.7:5600')",
    "PORT05": "OSError: [Errno 98] Address already in use",
    "PORT06": "torch.distributed.DistNetworkError: The server socket has failed to listen on any "
    "local network address. port: 29501",
    "CP01": "Value error, Total number of attention heads (40) must be divisible by "
    "tensor parallel "
    "size (16).",
    "CP02": "Value error, World size (16) is larger than the number of available GPUs (8) in this",
    "CP03": "Value error, Decode context parallelism for GQA/MQA requires `--tensor-parallel-size`",
    "CP04": "Value error, `--decode-context-parallel-size` (8) exceeds the maximum supported value "
    "(2) for",
    "CP05": "Value error, tp_size=4 must be divisible by dcp_size=3.",
    "CP06": "Value error, When PCP is enabled, DCP must be disabled, span the PCP axis, "
    "or span the "
    "full TP x PCP group",
    "CP07": "ValueError: Model Runner V1 does not support: prefill context parallel",
    "CP08": "NotImplementedError: MRV2 PCP currently supports MLA models only.",
    "CP09": "NotImplementedError: NixlConnector PCP currently supports kv_producer only. Consumers",
    "CP10": "NotImplementedError: NixlConnector PCP+DCP requires TP1 with DCP spanning "
    "the full PCP",
    "CP11": "AssertionError: decode_context_parallel_size=2 must be 1 or equal to the "
    "NIXL transfer "
    "parallel size=4.",
    "CP13": "AssertionError: PD with decode_context_parallel_size > 1 is only supported "
    "for MLA models",
    "CP14": "NotImplementedError: NixlPushConnector does not support "
    "decode_context_parallel_size > 1",
    "CP15": "AssertionError: DCP sizes must divide one another: local=3, remote=2 (engine x).",
    "CP16": "AssertionError: PCP requires attention backend support, but",
    "CP17": "Value error, Non-MoE models do not support external data parallel mode",
    "CP18": "ValueError: Configuration mismatch detected for engine 1",
    "TOK01": "Value error, User-specified max_model_len (1048576) is greater than the derived "
    "max_model_len (max_position_embeddings=262144.0 or model_max_length=None in model's "
    "config.json). To allow overriding this maximum, set the env var",
    "TOK02": "Value error, max_num_batched_tokens (2048) is smaller than max_model_len "
    "(8192). This",
    "TOK03": "Value error, max_num_batched_tokens (64) must be greater than or equal to "
    "max_num_seqs "
    "(128).",
    "TOK04": "max_num_batched_tokens (8192) exceeds max_num_seqs * max_model_len (4096). This may",
    "TOK05": "Value error, long_prefill_token_threshold (9000) cannot be greater than the "
    "max_model_len (8192).",
    "TOK08": "max_num_scheduled_tokens is set to 2048 based on the speculative decoding settings. "
    "This may lead to suboptimal performance.",
    "TOK09": "Value error, VllmConfig does not have enough slots to schedule a token and "
    "support the",
    "TOK10": "ValueError: The decoder prompt (length 9000) is longer than the maximum "
    "model length of "
    "8192.",
    "TOK11": "Value error, max_num_active_seqs (300) cannot be greater than max_num_seqs (256).",
    "TOK13": "User-specified max_model_len (1048576) is greater than the derived max_model_len "
    "(max_position_embeddings=262144.0 or model_max_length=None in model's config.json). "
    "VLLM_ALLOW_LONG_MAX_MODEL_LEN must be used with extreme caution.",
    "MEM01": "ValueError: To serve at least one request with the model's max seq len (32768), (8.0 "
    "GiB KV cache is needed, which is larger than the available KV cache memory (1.0 GiB).",
    "MEM02": "ValueError: No available memory for the cache blocks. Try increasing",
    "MEM03": "ValueError: Free memory on device cuda:3 (58.30/139.80 GiB) on startup is less than",
    "MEM04": "AssertionError: Error in memory profiling. Initial free memory 70 GiB, current 75",
    "MEM05": "Auto-fit max_model_len: reduced from 262144 to 65536 to fit in available memory",
    "MEM06": "ValueError: Cannot auto-fit max_model_len: not enough memory",
    "MEM07": "Initial free memory 70 GiB, reserved 8 GiB memory for KV Cache as specified by "
    "kv_cache_memory_bytes config and skipped memory profiling. This does not respect the",
    "MEM08": "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 14.00 GiB.",
    "MEM09": "gpu_memory_utilization\n  Input should be less than or equal to 1 [type=less_than]",
    "MEM10": "RuntimeError: No space left on device: '/dev/shm/psm_1234' shm",
    "MEM11": "ValueError: Available memory on node 0 (2.1/8.96 GiB) on kv cache allocation is less "
    "than requested memory for kv (64.0 GiB).",
    "ATTN01": "ValueError: Selected backend FLASHMLA is not valid for this "
    "configuration. Reason: [x]",
    "ATTN02": "ValueError: No valid attention backend found for cuda with head_size 80",
    "ATTN03": "--block-size 64 precluded higher-priority backend(s) FLASH_ATTN",
    "ATTN04": "ValueError: No common block size for 24.",
    "ATTN05": "ValueError: Invalid value 'NHC' for VLLM_KV_CACHE_LAYOUT. Valid options: []",
    "ATTN06": "vllm serve: error: argument --kv-cache-dtype: invalid choice: 'fp16' (choose from",
    "ATTN07": "Value error, nvfp4 KV cache is not supported with MLA (Multi-head Latent Attention)",
    "SPEC01": "NotImplementedError: Unsupported speculative method: 'mtp'",
    "SPEC02": "method `qwen3_next_mtp` is deprecated and replaced with mtp.",
    "SPEC03": "Enabling num_speculative_tokens > 1 will run multiple times of forward on same MTP "
    "layer",
    "SPEC04": "Value error, num_speculative_tokens:3 must be divisible by n_predict=2",
    "SPEC05": "Truncating max_cudagraph_capture_size to 40",
    "SPEC06": "Value error, Currently, async scheduling is only supported with "
    "EAGLE/MTP/Draft Model",
    "ENV01": "Value error, KV connector NixlConnector is incompatible with "
    "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True unless enable_cumem_allocator",
    "ENV03": "Unknown vLLM environment variable detected: VLLM_ATTENTION_BACKEND",
    "ENV04": "vllm: error: unrecognized arguments: --swap-space 4",
    "ENV05": "NIXL was already imported, we can't reset UCX_RCACHE_MAX_UNRELEASED.",
    "ENV07": "Found ulimit of 20000 and failed to automatically increase with error current limit",
    "ENV08": "Enforce eager set, disabling torch.compile, CUDAGraphs, and JIT kernel warmup.",
    "ENV13": "vllm serve: error: argument --compilation-config: 1 validation error for X",
    "ENV11": "vllm serve: error: argument --port: invalid int value: 'http'",
    "RUN01": "Releasing expired KV blocks for request cmpl-7-0 which were retrieved by 0 remote "
    "worker(s) before lease expired",
    "RUN02": "Potentially invalid KV blocks for unrecognized request cmpl-7-0 were retrieved by a "
    "decode worker.",
    "RUN03": "NIXL transfer failure: transfer_setup_failed | Context: {'remote_host': '10.0.0.5', "
    "'remote_port': 5600}",
    "RUN04": "Failing 1 request(s) due to KV load failure (failure_policy=fail, 8192 "
    "tokens affected)",
    "RUN05": "Recovered from KV load failure: 1 request(s) rescheduled",
    "RUN06": "ValueError: block-level load failures (invalid_block_ids) which is not supported for "
    "models with multiple KV cache groups",
    "RUN07": "Got invalid KVTransferParams: {'do_remote_prefill': True}. This request will not "
    "utilize KVTransfer",
    "RUN08": "Worker proc VllmWorker-2 died unexpectedly (exit code: -11), shutting down executor.",
    "RUN09": "TimeoutError: RPC call to sample_tokens timed out.",
    "RUN10": "No available shared memory broadcast block found in 60 seconds. This "
    "typically happens",
    "RUN11": "TimeoutError: Timed out waiting for engine core processes to start. This is often",
    "RUN12": "RuntimeError: Engine core initialization failed. See root cause above. Failed core "
    "proc(s): {'EngineCore': 1}",
    "RUN13": "EngineCore encountered a fatal error.",
    "RUN14": "torch.AcceleratorError: CUDA error: an illegal memory access was encountered",
    "RUN15": "torch.distributed.DistBackendError: NCCL error in: NCCLUtils.cpp:77, "
    "unhandled system",
    "RUN16": "NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.",
    "RUN17": "Local NIXL metadata for remote engine 5f0d was invalidated; a new handshake follows",
    "RUN18": "_do_start_push_kv for cmpl-1 took 312.4ms (slow NIXL submission)",
    "RUN20": "KeyError: 'cmpl-1234-0'",
    "RUN21": "NIXL transfer failure: handshake_failed | Context: {'remote_host': '10.0.0.5'}",
    "RUN25": "OSError: /models/x does not appear to have a file named config.json. Checkout",
    "RUN27": "RuntimeError: Engine core process EngineCore_DP0 died unexpectedly.",
    "RUN26": "Out of memory: Killed process 4711 (VLLM::EngineCor) total-vm:123kB",
}
MISSES: dict[str, str] = {
    "CFG01": "kv_role=kv_producer, kv_connector is set",
    "CFG02": "Input should be 'recompute' or 'fail'",
    "CFG03": "kv_port\n  Unexpected keyword argument",
    "CFG04": "Creating v1 connector with name: NixlConnector and engine_id: 1",
    "CFG05": "Input should be 'kv_producer', 'kv_both' or 'kv_consumer'",
    "CFG06": "kv_role='kv_producer' with NixlConnector",
    "CFG07": "NIXL is available",
    "CFG08": "kv_buffer cuda is supported",
    "CFG09": "NotImplementedError: this model does not support pipeline_parallel_size > 1",
    "CFG10": "Bidirectional KV transfer is enabled",
    "CFG11": "Turning on hybrid kv cache manager",
    "CFG12": "Connector NixlConnector supports HMA",
    "CFG13": "auxiliary output is not supported",
    "CFG14": "Using LBNHC KV cache layout.",
    "HYB01": "Mamba conv transfer uses the DS conv state layout",
    "HYB02": "VLLM_SSM_CONV_STATE_LAYOUT env detected. DS",
    "HYB03": "Promoted local KV cache specs to one unified type",
    "HYB04": "--mamba-block-size 64 with --enable-prefix-caching",
    "HYB05": "Mamba cache mode is set to 'align' for X by default when prefix caching is enabled",
    "HYB06": "max_num_seqs (64), Mamba cache blocks (969)",
    "HYB07": "Setting attention block size to 16 tokens",
    "HYB08": "External KV connector is verified",
    "HYB09": "Prefix caching with physical_blocks_per_logical 1",
    "HYB10": "Conv transfer of Mamba2 state",
    "HYB11": "--use-replayssm is on",
    "HYB12": "This model officially supports chunked prefill",
    "HYB13": "    assert self.page_size_padded is None",
    "PAIR01": "NIXL compatibility check passed (hash: 6b1d0a4f9e)",
    "PAIR02": "Remote NIXL agent engine ID 5f0d-a",
    "PAIR03": "Local block size 64, remote block size 16",
    "PAIR04": "Remote tensor parallel size 4, local tensor parallel size 4",
    "PAIR05": '  File "other.py", line 12, in _other_check\n    assert not (',
    "PAIR06": "Different local/remote block sizes: 64 and 16",
    "PAIR07": "Remote is LBHNC and local is LBNHC, enabled additional permute on local device KV.",
    "PAIR08": "Heterogeneous TP head-dimension splitting enabled",
    "PAIR09": "Number of KV layers: 36",
    "PAIR10": "KV cache sizes match between P and D",
    "PAIR11": "Heterogeneous block sizes: ratio 4",
    "PAIR12": "Attention-HMA push with P/D block sizes 16",
    "PAIR14": "Decoded NixlHandshakePayload",
    "PAIR15": "BlockingIOError: [Errno 11] Resource temporarily unavailable",
    "PAIR17": "Decode allocated 66 KV pages",
    "PORT01": "zmq.error.ZMQError: Cannot assign requested address (addr='tcp://10.20.0.7:5600')",
    "PORT02": "zmq.error.ZMQError: Address already in use (addr='tcp://localhost:5600')",
    "PORT05": "zmq.error.ZMQError: Address already in use (addr='tcp://localhost:5600')",
    "PORT06": "The server socket listens on 29501",
    "CP01": "Total number of attention heads (40), tensor parallel size (8)",
    "CP02": "world_size=8 rank=0 local_rank=0",
    "CP03": "Decode context parallelism is 1",
    "CP04": "--decode-context-parallel-size (2), maximum supported value (2)",
    "CP05": "tp_size=4 dcp_size=2",
    "CP06": "PCP is enabled, DCP is disabled",
    "CP07": "Model Runner V2 requires Triton; using the V1 model runner instead.",
    "CP08": "MRV2 PCP is on",
    "CP09": "NixlConnector PCP on kv_producer",
    "CP10": "NixlConnector PCP on TP1",
    "CP11": "decode_context_parallel_size=4 and the NIXL transfer parallel size=4",
    "CP13": "decode_context_parallel_size > 1 on an MLA model",
    "CP14": "NixlPushConnector with decode_context_parallel_size 1",
    "CP15": "DCP sizes: local=2, remote=2",
    "CP16": "PCP is supported by the attention backend",
    "CP17": "MoE model in external data parallel mode",
    "CP18": "Configuration of engine 1 received",
    "TOK01": "Using max model len 262144",
    "TOK02": "max_num_batched_tokens (8192), max_model_len (8192)",
    "TOK03": "max_num_batched_tokens (2048), max_num_seqs (128)",
    "TOK04": "max_num_batched_tokens (2048), max_num_seqs * max_model_len (1048576)",
    "TOK05": "long_prefill_token_threshold (4096)",
    "TOK08": "max_num_scheduled_tokens is set to 16384",
    "TOK09": "VllmConfig has enough slots",
    "TOK10": "The decoder prompt has length 100",
    "TOK11": "max_num_active_seqs (100), max_num_seqs (256)",
    "TOK13": "User-specified max_model_len (1048576) is greater than the derived max_model_len "
    "(max_position_embeddings=1.0). To allow overriding this maximum, set the env var "
    "VLLM_ALLOW_LONG_MAX_MODEL_LEN=1. VLLM_ALLOW_LONG_MAX_MODEL_LEN must be used with extreme",
    "MEM01": "Maximum concurrency for 32,768 tokens per request: 23.29x",
    "MEM02": "Available KV cache memory: 71.42 GiB",
    "MEM03": "Free memory on device cuda:3 is 130 GiB",
    "MEM04": "Memory profiling takes 3 seconds",
    "MEM05": "Auto-fit max_model_len: full length fits",
    "MEM06": "Auto-fit max_model_len to 4096",
    "MEM07": "memory profiling takes 2.1 seconds. This does respect it",
    "MEM08": "torch.cuda.memory_allocated: 14.00 GiB",
    "MEM09": "block_size\n  Input should be less than or equal to 1",
    "MEM10": "RuntimeError: No space left on device: '/data/cache'",
    "MEM11": "Explicitly set (1.0/8.96) GiB for KV cache on node 0.",
    "ATTN01": "Selected backend FLASHMLA",
    "ATTN02": "Using FLASH_ATTN backend.",
    "ATTN03": "--block-size 16",
    "ATTN04": "common block size for all: 16",
    "ATTN05": "VLLM_KV_CACHE_LAYOUT=HND",
    "ATTN06": "argument --kv-cache-dtype: fp8",
    "ATTN07": "nvfp4 KV cache is used",
    "SPEC01": "speculative method: 'mtp'",
    "SPEC02": "method `mtp` is used",
    "SPEC03": "num_speculative_tokens = 1",
    "SPEC04": "num_speculative_tokens:4, n_predict=2",
    "SPEC05": "max_cudagraph_capture_size is 512",
    "SPEC06": "Asynchronous scheduling is enabled.",
    "ENV01": "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
    "ENV03": "vLLM environment variable VLLM_LOGGING_LEVEL",
    "ENV04": "recognized arguments: --port 8000",
    "ENV05": "Setting UCX_RCACHE_MAX_UNRELEASED to '1024' to avoid a rare memory leak",
    "ENV07": "ulimit of 65535",
    "ENV08": "Enforce eager is off",
    "ENV13": "argument --compilation-config: 1 validation error",
    "ENV11": "argument --port: 8000",
    "RUN01": "Releasing KV blocks for request cmpl-7-0",
    "RUN02": "KV blocks for request cmpl-7-0 were retrieved by a decode worker.",
    "RUN03": "NIXL transfer done",
    "RUN04": "1 request(s) finished",
    "RUN05": "KV load done",
    "RUN06": "block-level loads",
    "RUN07": "Got KVTransferParams: {}",
    "RUN08": "Worker proc VllmWorker-2 exited",
    "RUN09": "RPC call to sample_tokens took 3 s",
    "RUN10": "shared memory broadcast block found",
    "RUN11": "Waiting for engine core processes to start.",
    "RUN12": "Engine core initialized",
    "RUN13": "EngineCore started.",
    "RUN14": "memory access of rank 0",
    "RUN15": "NCCL version 2.27.3",
    "RUN16": "NVRM: loading NVIDIA UNIX x86_64 Kernel Module",
    "RUN17": "Remote engine at 10.0.0.5:5600 answered",
    "RUN18": "_do_start_push_kv for cmpl-1 took 3.1ms",
    "RUN20": "KeyError: 'model'",
    "RUN21": "NIXL handshake done",
    "RUN25": "Loading config.json of /models/x",
    "RUN27": "Engine core process EngineCore_DP0 is ready",
    "RUN26": "process 4711 finished",
}
