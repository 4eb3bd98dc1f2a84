"""One tiny model of every text architecture of transformers, saved as its users save it, and what becomes of each.

Tokenizers are trained on a few sentences with the library the real ones come from (SentencePiece, WordPiece, byte-level
pairs) and read by the model's own class. ``FAMILIES`` is the table: a family is deployed, or refused with a reason.
"""

from __future__ import annotations

import base64
import functools
import io
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
import transformers
from safetensors.torch import load_file
from sentencepiece import sentencepiece_model_pb2

from deploy.bundles.sentences import SENTENCES
from deploy.laptop.demo.minilm import packaged_model

from . import tiny

Write = Callable[[Path], None]
NARROW = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48,
          "max_position_embeddings": 130, "initializer_range": 0.3}  # fmt: skip
NO_PAD_POSITIONS = {**NARROW, "max_position_embeddings": 132}
LAYERS = {"d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 2,
          "decoder_attention_heads": 2, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48,
          "max_position_embeddings": 130, "init_std": 0.3}  # fmt: skip
T5 = {"decoder_start_token_id": 0, "d_model": 32, "d_kv": 16, "d_ff": 48, "num_layers": 2, "num_heads": 2,
      "initializer_factor": 1.0}  # fmt: skip
CAUSAL = {**NARROW, "num_key_value_heads": 2}


@functools.cache
def sentencepiece(*controls: str, unk: int = 0, bos: int = 1, eos: int = 2, pad: int = -1, **names: str) -> bytes:
    """A SentencePiece model with the normaliser real ones have (nmt_nfkc)."""
    import sentencepiece as spm

    model = io.BytesIO()
    spm.SentencePieceTrainer.train(
        sentence_iterator=iter(SENTENCES * 3), model_writer=model, vocab_size=700, hard_vocab_limit=False,
        character_coverage=0.98, model_type="unigram", unk_id=unk, bos_id=bos, eos_id=eos, pad_id=pad,
        control_symbols=list(controls), minloglevel=2, **names,
    )  # fmt: skip
    return model.getvalue()


def pieces(file: str, model: Callable[[], bytes], kind: str, *, also_fast: bool = True, **config: Any) -> Write:
    """A SentencePiece tokenizer read by the class ``kind``; without ``also_fast`` its ``.model`` is the only file."""

    def write(folder: Path) -> None:
        (folder / file).write_bytes(model())
        finish(folder, kind, also_fast, config)

    return write


def words(kind: str = "BertTokenizer", *, also_fast: bool = True, **config: Any) -> Write:
    """A WordPiece tokenizer."""

    def write(folder: Path) -> None:
        vocabulary = tiny.word_piece().get_vocab()
        (folder / "vocab.txt").write_text("\n".join(sorted(vocabulary, key=lambda word: vocabulary[word])) + "\n")
        finish(folder, kind, also_fast, config)

    return write


def byte_pairs(kind: str, specials: list[str] = tiny.ROBERTA, *, also_fast: bool = True, **config: Any) -> Write:
    """A byte-level tokenizer."""

    def write(folder: Path) -> None:
        start, end = ("[CLS]", "[SEP]") if "[CLS]" in specials else ("<s>", "</s>")
        tokenizer = tiny.byte_pairs(specials, start, end)
        if kind != "PreTrainedTokenizerFast":
            tokenizer.model.save(str(folder))
            return finish(folder, kind, also_fast, config)
        tokenizer.save(str(folder / "tokenizer.json"))
        names = tiny.BERT_TOKENS if "[CLS]" in specials else tiny.ROBERTA_TOKENS
        return finish(folder, kind, False, {**names, **config})

    return write


def finish(folder: Path, kind: str, also_fast: bool, config: Mapping[str, Any]) -> None:
    """Write the configuration; transformers itself writes ``tokenizer.json``."""
    text = json.dumps({"tokenizer_class": kind, "model_max_length": 128, **config})
    (folder / "tokenizer_config.json").write_text(text)
    if also_fast:
        transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True).save_pretrained(folder)


def as_transformers_4(write: Write, model: Callable[[], bytes]) -> Write:
    """The same with the normalizer that transformers 4 put into ``tokenizer.json``, which is SentencePiece's own."""

    def rewrite(folder: Path) -> None:
        write(folder)
        proto = sentencepiece_model_pb2.ModelProto.FromString(model())
        table = base64.b64encode(proto.normalizer_spec.precompiled_charsmap).decode()
        path = folder / "tokenizer.json"
        described = json.loads(path.read_text())
        described["normalizer"] = {"type": "Sequence", "normalizers": [
            {"type": "Strip", "strip_left": True, "strip_right": True},
            {"type": "Precompiled", "precompiled_charsmap": table},
            {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "},
        ]}  # fmt: skip
        path.write_text(json.dumps(described))

    return rewrite


DEBERTA = functools.partial(sentencepiece, "[MASK]", pad=0, bos=1, eos=2, unk=3, pad_piece="[PAD]", bos_piece="[CLS]",
                            eos_piece="[SEP]", unk_piece="[UNK]")  # fmt: skip
ALBERT = functools.partial(sentencepiece, "[CLS]", "[SEP]", "[MASK]", pad=0, unk=1, bos=-1, eos=-1)
XLNET = functools.partial(sentencepiece, "<cls>", "<sep>", "<pad>", "<mask>", "<eod>", "<eop>")
T5_PIECES = functools.partial(sentencepiece, pad=0, eos=1, unk=2, bos=-1)


@dataclass(frozen=True)
class Family:
    """A model: its class, its configuration, its tokenizer."""

    kind: str
    config: Mapping[str, Any]
    tokenizer: Write


def make(family: Family, folder: Path) -> Path:
    """Save the family's model with random weights, always the same."""
    folder.mkdir(parents=True)
    family.tokenizer(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
    kind = getattr(transformers, family.kind)
    torch.manual_seed(7)
    ids = {
        f"{name}_token_id": getattr(tokenizer, f"{name}_token_id", None) for name in ("pad", "bos", "eos", "cls", "sep")
    }
    config = kind.config_class(
        **{"vocab_size": len(tokenizer), **{k: v for k, v in ids.items() if v is not None}, **family.config}
    )
    if not family.kind.endswith(("Model", "MaskedLM", "QuestionAnswering")):
        config.id2label = dict(enumerate(tiny.LABELS))
        config.label2id = {label: i for i, label in enumerate(tiny.LABELS)}
    kind(config).eval().save_pretrained(folder)
    return folder


DEBERTA_1 = {**NARROW, "relative_attention": True, "pos_att_type": ["p2c", "c2p"], "type_vocab_size": 0}
DEBERTA_V2 = {
    **NARROW, "relative_attention": True, "position_buckets": 16, "pos_att_type": ["p2c", "c2p"], "type_vocab_size": 0,
    "share_att_key": True, "norm_rel_ebd": "layer_norm",
}  # fmt: skip
MODERN = {**NARROW, "local_attention": 16, "global_attn_every_n_layers": 2}
XL = {"d_model": 32, "n_layer": 2, "n_head": 2, "d_inner": 48, "initializer_range": 0.3}
GPT2 = {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 130, "initializer_range": 0.3}
BLOOM = {"hidden_size": 32, "n_layer": 2, "n_head": 2, "initializer_range": 0.3}
DISTILLED = {"dim": 32, "hidden_dim": 48, "n_layers": 2, "n_heads": 2, "max_position_embeddings": 130,
             "initializer_range": 0.3}  # fmt: skip
SPARSE = {**NARROW, "max_position_embeddings": 1024, "attention_type": "block_sparse", "block_size": 8,
          "num_random_blocks": 1}  # fmt: skip
CONVOLVED = {**NARROW, "embedding_size": 24, "num_attention_heads": 4, "conv_kernel_size": 3}
CHARACTERS = {**NARROW, "num_hash_buckets": 64, "local_transformer_stride": 32, "max_position_embeddings": 512}
BERT_PAIRS = ["[CLS]", "[PAD]", "[SEP]", "[UNK]", "[MASK]"]
PLAIN_PAIRS = byte_pairs("PreTrainedTokenizerFast", pad_token="<pad>")
QWEN_PAIRS = byte_pairs("Qwen2Tokenizer", pad_token="<pad>")
MODERN_PAIRS = byte_pairs("PreTrainedTokenizerFast", BERT_PAIRS, mask_token="[MASK]")
DEBERTA_TOKENS = pieces("spm.model", DEBERTA, "DebertaV2Tokenizer")
T5_TOKENS = pieces("spiece.model", T5_PIECES, "T5Tokenizer", extra_ids=0)
XLMR_TOKENS = pieces("sentencepiece.bpe.model", sentencepiece, "XLMRobertaTokenizer")
BIG_BIRD = functools.partial(sentencepiece, "[SEP]", "[CLS]", "[MASK]", pad=0, eos=1, bos=2, unk=3)
XLMR_ALONE = pieces("sentencepiece.bpe.model", sentencepiece, "XLMRobertaTokenizer", also_fast=False)
CLASSIFIERS: Mapping[str, tuple[str, Mapping[str, Any], Write]] = {
    "DeBERTa-v2": ("DebertaV2", DEBERTA_V2, DEBERTA_TOKENS),
    "DeBERTa-v2 of transformers 4": ("DebertaV2", DEBERTA_V2, as_transformers_4(DEBERTA_TOKENS, DEBERTA)),
    "DeBERTa": ("Deberta", DEBERTA_1, byte_pairs("DebertaTokenizer", BERT_PAIRS)),
    "BART": ("Bart", LAYERS, byte_pairs("BartTokenizer")),
    "T5 classifier": ("T5", T5, T5_TOKENS),
    "ModernBERT": ("ModernBert", MODERN, MODERN_PAIRS),
    "XLM-R": ("XLMRoberta", NO_PAD_POSITIONS, XLMR_TOKENS),
    "XLM-R, .bpe.model only": ("XLMRoberta", NO_PAD_POSITIONS, XLMR_ALONE),
    "Longformer": ("Longformer", {**NO_PAD_POSITIONS, "attention_window": 16}, byte_pairs("LongformerTokenizer")),
    "XLNet": ("XLNet", XL, pieces("spiece.model", XLNET, "XLNetTokenizer")),
    "MPNet": ("MPNet", NO_PAD_POSITIONS,
              words("MPNetTokenizer", bos_token="[CLS]", eos_token="[SEP]", **tiny.BERT_TOKENS)),
    "DistilBERT": ("DistilBert", DISTILLED, words()),
    "ELECTRA": ("Electra", {**NARROW, "embedding_size": 24}, words("ElectraTokenizer")),
    "ALBERT": ("Albert", {**NARROW, "embedding_size": 24}, pieces("spiece.model", ALBERT, "AlbertTokenizer")),
    "RoBERTa": ("Roberta", NO_PAD_POSITIONS, byte_pairs("RobertaTokenizer")),
    "RoBERTa, vocab.json only": ("Roberta", NO_PAD_POSITIONS, byte_pairs("RobertaTokenizer", also_fast=False)),
    "BERT": ("Bert", NARROW, words()),
    "BERT, vocab.txt only": ("Bert", NARROW, words(also_fast=False)),
    "BERT cased, vocab.txt only": ("Bert", NARROW, words(also_fast=False, do_lower_case=False)),
    "BigBird, sparse": ("BigBird", SPARSE, pieces("spiece.model", BIG_BIRD, "BigBirdTokenizer", model_max_length=512)),
    "ConvBERT": ("ConvBert", CONVOLVED, words("ConvBertTokenizer")),
    "MRA": ("Mra", NARROW, byte_pairs("RobertaTokenizer")),
    "CANINE": ("Canine", CHARACTERS, words("CanineTokenizer", also_fast=False)),
    "ERNIE": ("Ernie", {**NARROW, "use_task_id": True}, words()),
    "MegatronBERT": ("MegatronBert", NARROW, words()),
    "RoFormer": ("RoFormer", NARROW, words()),
    "Data2Vec": ("Data2VecText", NO_PAD_POSITIONS, byte_pairs("RobertaTokenizer")),
    "EuroBERT": ("EuroBert", CAUSAL, PLAIN_PAIRS),
    "GPT-2": ("GPT2", GPT2, byte_pairs("GPT2Tokenizer", pad_token="<pad>")),
    "GPT-2 without pad": ("GPT2", {**GPT2, "pad_token_id": None}, byte_pairs("GPT2Tokenizer")),
    "Llama": ("Llama", CAUSAL, PLAIN_PAIRS),
    "Qwen2": ("Qwen2", CAUSAL, QWEN_PAIRS),
    "Qwen3": ("Qwen3", {**CAUSAL, "head_dim": 16}, QWEN_PAIRS),
    "Mistral": ("Mistral", CAUSAL, PLAIN_PAIRS),
    "Gemma": ("Gemma", {**CAUSAL, "head_dim": 16}, PLAIN_PAIRS),
    "Bloom": ("Bloom", BLOOM, PLAIN_PAIRS),
}  # fmt: skip
"""What stands before ``ForSequenceClassification``, its configuration and its tokenizer."""
FAMILIES: Mapping[str, Family] = {
    **{name: Family(f"{kind}ForSequenceClassification", config, tokenizer)
       for name, (kind, config, tokenizer) in CLASSIFIERS.items()},
    "T5 encoder": Family("T5EncoderModel", T5, T5_TOKENS),
    "T5 encoder, spiece.model only": Family(
        "T5EncoderModel", T5, pieces("spiece.model", T5_PIECES, "T5Tokenizer", also_fast=False, extra_ids=0)),
    "Nomic BERT": Family("NomicBertModel", NARROW, words()),
    "GTE": Family("GteModel", NARROW, words()),
    "BLOOM embeddings": Family("BloomModel", BLOOM, PLAIN_PAIRS),
    "Qwen3 embeddings": Family("Qwen3Model", {**CAUSAL, "head_dim": 16}, QWEN_PAIRS),
    "Mamba": Family("MambaModel", {"hidden_size": 32, "num_hidden_layers": 2, "state_size": 4}, PLAIN_PAIRS),
    **{f"ModernBERT {task}": Family(f"ModernBertFor{kind}", MODERN, MODERN_PAIRS) for task, kind in (
        ("NER", "TokenClassification"), ("QA", "QuestionAnswering"), ("mask", "MaskedLM"))},
    "BERT QA": Family("BertForQuestionAnswering", NARROW, words()),
    "T5 generation": Family("T5ForConditionalGeneration", T5, T5_TOKENS),
}  # fmt: skip


def changed(place: Path, **how: Any) -> Path:
    """A classifier saved in another way."""
    tiny.make(place, seed=12)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(place)
    (place / "model.safetensors").unlink()
    if how.pop("half", False):
        model = model.half()
    model.save_pretrained(place, **how)
    (shard, *others) = sorted(place.glob("*.safetensors"))
    assert bool(others) == ("max_shard_size" in how)
    assert {model.dtype} == {one.dtype for one in load_file(shard).values()}
    return place


OWN_CODE = """
import torch
from transformers import PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import SequenceClassifierOutput


class OwnConfig(PretrainedConfig):
    model_type = "own-words"

    def __init__(self, vocab_size=600, hidden_size=16, **kwargs):
        super().__init__(**kwargs)
        self.vocab_size, self.hidden_size = vocab_size, hidden_size


class OwnForSequenceClassification(PreTrainedModel):
    config_class = OwnConfig

    def __init__(self, config):
        super().__init__(config)
        self.words = torch.nn.Embedding(config.vocab_size, config.hidden_size)
        self.head = torch.nn.Linear(config.hidden_size, config.num_labels)
        self.post_init()

    def forward(self, input_ids, attention_mask=None, **kwargs):
        mask = attention_mask.unsqueeze(-1).to(self.words.weight.dtype)
        mean = (self.words(input_ids) * mask).sum(1) / mask.sum(1)
        return SequenceClassifierOutput(logits=self.head(mean))
"""


def own_code(place: Path) -> Path:
    """A model that only its own Python code can run."""
    tiny.make(place, seed=13)
    (place / "modeling_own.py").write_text(OWN_CODE)
    torch.manual_seed(13)
    scope: dict[str, Any] = {"__name__": "modeling_own"}
    exec(OWN_CODE, scope)
    config = scope["OwnConfig"](
        vocab_size=600, hidden_size=16, max_position_embeddings=128, id2label=dict(enumerate(tiny.LABELS)),
        label2id={label: i for i, label in enumerate(tiny.LABELS)},
        auto_map={name: f"modeling_own.{kind}" for name, kind in (
            ("AutoConfig", "OwnConfig"), ("AutoModelForSequenceClassification", "OwnForSequenceClassification"),
        )},
    )  # fmt: skip
    scope["OwnForSequenceClassification"](config).save_pretrained(place)
    return place


def sentence_transformer(place: Path) -> Path:
    """The real weights of all-MiniLM-L6-v2, as its package holds them."""
    place.symlink_to(packaged_model())
    return place


OWN: Final = "with code of its own"
FOLDERS: Mapping[str, Callable[[Path], Path]] = {
    **{name: functools.partial(make, family) for name, family in FAMILIES.items()},
    "sentence-transformers": sentence_transformer,
    "fp16": lambda place: changed(place, half=True),
    "sharded": lambda place: changed(place, max_shard_size="40KB"),
    OWN: own_code,
    "zero-shot": lambda place: tiny.make(place, labels=("contradiction", "neutral", "entailment")),
    "ranking": lambda place: tiny.make(place, labels=("score",)),
    "features": lambda place: tiny.make(place, task=""),
}
"""What makes a folder of each family, and of models that are saved in another way."""

TASKS: Mapping[str, str] = {
    "zero-shot": "zero-shot-classification", "ranking": "ranking", "features": "feature-extraction",
}  # fmt: skip
"""Tasks that no family's files tell."""

_EXPORT = "torch cannot export this model to ONNX"
_PADDING = "a Preprocess class that sends one text at a time can serve it"
_NO_FILE = "exists only as Python code in transformers and cannot be saved as tokenizer.json"
_NO_TASK = "The task of this model is unknown"
REFUSED: Mapping[str, str] = {
    "Longformer": _EXPORT,
    "BigBird, sparse": "answers a long text differently after a short one, in PyTorch too",
    "ConvBERT": _PADDING,
    "CANINE": f"CanineTokenizer, {_NO_FILE}",
    "XLNet": _EXPORT,
    "GPT-2 without pad": "no padding token is defined",
    "Mamba": _EXPORT,
    "T5 generation": _NO_TASK,
}
"""Families that are not deployed, and what is said of them."""
