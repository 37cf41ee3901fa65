"""For processes of tests on a machine with AMX: vLLM's engine as on a machine without."""

import torch


def hide_amx() -> None:
    """From now on vLLM takes the machine of this process for one without AMX."""
    torch.cpu._is_amx_tile_supported = lambda: False


def hide_amx_and_mend_rotary_embeddings() -> None:
    """The same for stock vLLM, whose rotary embedding of latent attention is wrong on a CPU."""
    from engine_adapter.vllm_engine.patches.rotary_embedding import patch_rotary_embedding

    hide_amx()
    patch_rotary_embedding()
