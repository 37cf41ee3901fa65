"""On CPU a row without an adapter gets nothing of one that its batch holds."""

import pytest
import torch

from engine_adapter.vllm_engine.patches.lora_cpu import patch_lora_masking

pytestmark = pytest.mark.needs_vllm

SLOTS, WIDTH, RANK = 3, 6, 2


def test_rows_without_an_adapter_stay_as_they_were() -> None:
    from engine_adapter.vllm_engine import compat

    patch_lora_masking()
    patch_lora_masking()
    torch.manual_seed(0)
    weights = torch.randn(SLOTS, 1, WIDTH, RANK)
    inputs, slots = torch.randn(4, RANK), torch.tensor([-1, 2, 0, -1])
    for module in (compat.lora_ops, compat.punica_cpu):
        output = torch.zeros(4, WIDTH)
        module.bgmv_expand(inputs, weights, output, slots, True)
        sliced = torch.zeros(4, WIDTH + 2)
        module.bgmv_expand_slice(inputs, weights, sliced, slots, 2, WIDTH, True)
        torch.testing.assert_close(sliced[:, 2:], output)
        assert not output[[0, 3]].any()
        for row, slot in ((1, 2), (2, 0)):
            torch.testing.assert_close(output[row], weights[slot, 0] @ inputs[row])


def test_vllms_own_operation_has_the_defect() -> None:
    """In a release that mends it, `DEFECTS` names the release."""
    from engine_adapter.vllm_engine import compat

    for name in ("bgmv_expand", "bgmv_expand_slice"):
        operation = getattr(compat.lora_ops, name)
        own = getattr(operation, "__wrapped__", operation)
        output, slots = torch.zeros(1, WIDTH), torch.tensor([-1])
        where = (0, WIDTH) if name == "bgmv_expand_slice" else ()
        own(torch.ones(1, RANK), torch.ones(SLOTS, 1, WIDTH, RANK), output, slots, *where, True)
        assert bool(output.any()) is compat.has_defect("lora_without_adapter"), name


def test_the_same_holds_where_rows_come_in_sequences() -> None:
    from engine_adapter.vllm_engine import compat

    patch_lora_masking()
    inputs, output = torch.randn(3, RANK), torch.zeros(3, WIDTH)
    starts, lengths = torch.tensor([0, 2]), torch.tensor([2, 1])
    weights, slots = torch.randn(SLOTS, 1, WIDTH, RANK), torch.tensor([-1, 1])
    compat.lora_ops.sgmv_expand(inputs, weights, output, starts, lengths, slots, 2, 2, 3, True)
    assert not output[:2].any()
    assert output[2].all()
