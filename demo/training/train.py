"""`python -m demo.training.train`: the recipe, from the standard library's sources to the weights.

Each stage uses the files of the earlier ones in `--out`: `tokenizer` (and the measured prompts),
`target` (resumes from its last checkpoint), `drafts`, `heads`, `export`. `all` runs them in this
order.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from demo import HEADS, MODELS
from demo.tokenizer import load_tokenizer, train_tokenizer
from demo.training.answers import (
    FOR_DRAFTS,
    FOR_HEADS,
    corpus_chats,
    load_chats,
    sample_chats,
    save_chats,
)
from demo.training.corpus import Piece, is_held_out, load_pieces
from demo.training.distil import DRAFTS, distil_drafts, pretrain_drafts
from demo.training.export import export_model
from demo.training.heads.export import export_head
from demo.training.heads.training import new_head, train_heads
from demo.training.heldout import HeldOut
from demo.training.packing import Stream
from demo.training.pretrain import SEED, new_model, train_target
from demo.training.prompt_building import build_more_prompts, build_prompts, save_prompts

STAGES = ("tokenizer", "target", "drafts", "heads", "export")
TARGET_TOKENS = 8_500_000
PLAIN_DRAFT_TOKENS = 1_600_000
DISTILLED_TOKENS = 2_500_000
SAMPLED_CHATS = 512
HEAD_CHATS, HEAD_CORPUS_CHATS = 7168, 6000
HEAD_EPOCHS = 3


def split() -> tuple[list[Piece], list[Piece]]:
    """(training pieces, held-out pieces) of the running interpreter's standard library."""
    pieces = load_pieces()
    return (
        [piece for piece in pieces if not is_held_out(piece.group)],
        [piece for piece in pieces if is_held_out(piece.group)],
    )


def main(argv: list[str] | None = None) -> None:
    """Run the selected stages."""
    options = _parser().parse_args(argv)
    torch.set_num_threads(options.threads)
    out: Path = options.out
    out.mkdir(parents=True, exist_ok=True)
    stages = STAGES if options.stage == "all" else (options.stage,)
    training, held_out = split()
    if "tokenizer" in stages:
        train_tokenizer(piece.text for piece in training).save_pretrained(out / "tokenizer")
        measured = build_prompts(held_out, SEED)
        save_prompts(measured, out / "prompts.json")
        more = build_more_prompts(held_out, measured, SEED)
        save_prompts(more, out / "more-prompts.json")
    tokenizer = load_tokenizer(out / "tokenizer")
    stream = Stream(training, tokenizer, SEED)
    if "target" in stages:
        train_target(stream, options.tokens, out, HeldOut(held_out, tokenizer).report)
    if "drafts" in stages:
        _train_drafts(out, options, stream, tokenizer, training)
    if "heads" in stages:
        _train_heads(out, options, tokenizer, training)
    if "export" in stages:
        for name in MODELS:
            model = _trained(out, name)
            print(name, HeldOut(held_out, tokenizer).report(model), flush=True)
            export_model(model, tokenizer, out / "models" / name)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m demo.training.train", description=__doc__)
    parser.add_argument("--stage", choices=(*STAGES, "all"), default="all")
    parser.add_argument("--out", type=Path, default=Path("demo-training"))
    parser.add_argument("--tokens", type=int, default=TARGET_TOKENS, help="of the target")
    parser.add_argument("--plain-draft-tokens", type=int, default=PLAIN_DRAFT_TOKENS)
    parser.add_argument("--distilled-tokens", type=int, default=DISTILLED_TOKENS)
    parser.add_argument("--sampled-chats", type=int, default=SAMPLED_CHATS)
    parser.add_argument("--head-chats", type=int, default=HEAD_CHATS)
    parser.add_argument("--head-corpus-chats", type=int, default=HEAD_CORPUS_CHATS)
    parser.add_argument("--head-epochs", type=int, default=HEAD_EPOCHS)
    parser.add_argument("--threads", type=int, default=2, help="of the CPU")
    return parser


def _train_drafts(
    out: Path,
    options: argparse.Namespace,
    stream: Stream,
    tokenizer: PreTrainedTokenizerFast,
    training: list[Piece],
) -> None:
    """Pretraining, samples, distillation; results of the first two are saved and reused."""
    plain = {name: out / f"{name}.plain.pt" for name in DRAFTS}
    if not all(path.exists() for path in plain.values()):
        for name, model in pretrain_drafts(stream, options.plain_draft_tokens).items():
            torch.save({"model": model.state_dict()}, plain[name])
    drafts = {name: _loaded(path, name) for name, path in plain.items()}
    target = _trained(out, "target")
    if not (out / "samples.json").exists():
        samples = sample_chats(target, tokenizer, training, options.sampled_chats, FOR_DRAFTS)
        save_chats(samples, out / "samples.json")
    samples = load_chats(out / "samples.json")
    distil_drafts(target, drafts, stream, samples, options.distilled_tokens)
    for name, model in drafts.items():
        torch.save({"model": model.state_dict()}, out / f"{name}.pt")


def _train_heads(
    out: Path,
    options: argparse.Namespace,
    tokenizer: PreTrainedTokenizerFast,
    training: list[Piece],
) -> None:
    """Answers of the target with its served weights, then all heads together.

    The answers are saved and reused. The corpus's answers are added, because the heads overfit to
    the target's answers alone.
    """
    target = _trained(out, "target").bfloat16().float()  # type: ignore[no-untyped-call]
    target.requires_grad_(False)
    if not (out / "answers.json").exists():
        answers = sample_chats(target, tokenizer, training, options.head_chats, FOR_HEADS)
        save_chats(answers, out / "answers.json")
    answers = load_chats(out / "answers.json")
    heads = {name: new_head(name, target, answers) for name in HEADS}
    chats = answers + corpus_chats(tokenizer, training, options.head_corpus_chats)
    train_heads(target, heads, chats, options.head_epochs)
    for name, head in heads.items():
        export_head(head, out / "models" / name)


def _trained(out: Path, name: str) -> LlamaForCausalLM:
    return _loaded(out / f"{name}.pt", name)


def _loaded(path: Path, name: str) -> LlamaForCausalLM:
    model = new_model(name)
    model.load_state_dict(torch.load(path, weights_only=True)["model"])
    return model


if __name__ == "__main__":
    main()
