"""The settings that go to vLLM unchanged."""

from typing import Annotated, Literal

from pydantic import BaseModel, ByteSize, ConfigDict, Field

from server.settings.types import Count, TokenCount


class EngineArguments(BaseModel):
    """vLLM's common arguments under their own names. `None` leaves vLLM's default."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    tokenizer: str | None = Field(None, description="path or id of the tokenizer, if not MODEL's")
    revision: str | None = Field(None, description="branch, tag or commit of MODEL on the hub")
    trust_remote_code: bool | None = Field(None, description="run code that comes with the model")
    download_dir: str | None = Field(None, description="folder for downloaded weights")
    load_format: str | None = Field(None, description="format of the weights")
    quantization: str | None = Field(None, description="quantization method of the weights")
    dtype: Literal["auto", "half", "float16", "bfloat16", "float", "float32"] | None = Field(
        None, description="type of weights and activations (float32 for the demo model)"
    )
    seed: int | None = Field(None, description="seed of the engine's own generator")
    tensor_parallel_size: Count | None = Field(None, description="GPUs that share each layer")
    distributed_executor_backend: Literal["mp", "ray"] | None = Field(
        None, description="where the ranks run: processes of this machine (mp), or actors of Ray"
    )
    data_parallel_size: Count | None = Field(
        None, description="engines, each with a copy of MODEL, that share the requests (1)"
    )
    max_model_len: TokenCount | None = Field(
        None, description="context in tokens, prompt and generation together (2048 for the demo)"
    )
    max_num_seqs: Count | None = Field(None, description="most sequences in one step")
    scheduling_policy: Literal["fcfs", "priority"] | None = Field(
        None, description="order of waiting requests: fcfs, or priority by their field `priority`"
    )
    long_prefill_token_threshold: Annotated[int, Field(ge=0)] | None = Field(
        None,
        description="most tokens of one prompt in a step, twice as many while no other request "
        "runs; 0 sets none (64 for the demo)",
    )
    max_num_batched_tokens: TokenCount | None = Field(None, description="most tokens in one step")
    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1)] | None = Field(
        None, description="share of the device's memory to use, in (0, 1]"
    )
    kv_cache_memory_bytes: Annotated[ByteSize, Field(ge=1)] | None = Field(
        None, description="KV cache in bytes, or as 2GiB (512MiB for the demo model)"
    )
    kv_cache_dtype: str | None = Field(None, description="type of the KV cache's entries")
    block_size: Count | None = Field(None, description="tokens in a KV block")
    enable_prefix_caching: bool | None = Field(None, description="reuse KV of equal prefixes")
    enable_chunked_prefill: bool | None = Field(None, description="read long prompts in parts")
    enforce_eager: bool | None = Field(None, description="no CUDA graphs, no compilation")
    enable_lora: bool | None = Field(None, description="serve LoRA adapters of MODEL")
    max_loras: Count | None = Field(None, description="most LoRA adapters in one step (1)")
    max_lora_rank: Count | None = Field(None, description="largest rank of a LoRA adapter (16)")
    max_cpu_loras: Count | None = Field(
        None, description="most LoRA adapters that are loaded (--max-loras, at least 16)"
    )
