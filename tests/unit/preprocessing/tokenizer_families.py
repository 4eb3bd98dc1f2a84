"""Small tokenizers of every family that models use, and texts that are hard to split at spaces.

The tokenizers are trained here on a few sentences, with the normalizers, pre-tokenizers, added tokens and
post-processors of real ones. The texts are random combinations of characters that are known to be difficult.
"""

from __future__ import annotations

import itertools
import random
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

CORPUS: Final = [
    "The quick brown fox jumps over the lazy dog, doesn't it? It's 12:30; we'll see what they've done!",
    "Straße, naïve façade, Ünïcödé İstanbul, ﬁne ﬂow; ｆｕｌｌ ｗｉｄｔｈ, ½ and ² and …",
    "你好，世界。日本語のテキスト カタカナ ｶﾞｷﾞ 한국어 텍스트 שלום עולם مرحبا بالعالم हिन्दी ไทยคำ",
    "user@example.org https://example.org/a?b=c&d=e#f (see [1], {2}) -- 3.14159 + 2,000,000 = $5 100% #tag snake_case",
    "one two three\nfour five\n\nsix\tseven  eight   nine e\u0301 a\u0308\u0323 😀 👨‍👩‍👧 👍🏽 🇩🇪",
] * 3

GPT2: Final = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3: Final = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
QWEN2: Final = LLAMA3.replace("{1,3}", "")
QWEN35: Final = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)

# What sentencepiece's nmt_nfkc does, in small: spaces of all kinds, controls, widths, ligatures; graphemes of a space
# and a mark, of a Prepend letter and a space, and of a letter and a mark.
CHARSMAP: Final = {
    **dict.fromkeys("\t\n\r\u00a0\u2003\u3000\u2028\u0085\u200b\ufeff", " "),
    **dict.fromkeys("\x01\x02\u00ad", ""),
    **{chr(0xFF01 + i): chr(0x21 + i) for i in range(94)},
    "ﬁ": "fi",
    "…": "...",
    "¨": " \u0308",
    "²": "2",
    "½": "1⁄2",
    "ﷺ": "صلى الله عليه وسلم",
    "e\u0301": "é",
    " \u0301": "´",
    " \u0308": "¨",
    "\u0600 ": "N",
    "ｶﾞ": "ガ",
    "_": "▁",
}


def charsmap(rules: Mapping[str, str]) -> bytes:
    """Return replacement rules in sentencepiece's binary form: a double array of UTF-8 keys, then the replacements."""
    root: dict[int, Any] = {}
    texts = bytearray()
    for key, value in rules.items():
        node = root
        for byte in key.encode():
            node = node.setdefault(byte, {})
        node[0] = len(texts)
        texts += value.encode() + b"\0"
    units, queue = {0: 0}, [(root, 0)]
    while queue:
        node, place = queue.pop()
        base = next(base for base in itertools.count(1) if not any(base ^ label in units for label in node))
        units[place] |= (place ^ base) << 10 | (256 if 0 in node else 0)
        for label, child in node.items():
            units[base ^ label] = label or 1 << 31 | child
            queue += [(child, base ^ label)] if label else []
    trie = b"".join(struct.pack("<I", units.get(i, 1 << 31)) for i in range((max(units) | 255) + 1))
    return struct.pack("<I", len(trie)) + trie + bytes(texts)


def trained(
    model: str, *, normalizer: Any = None, pre_tokenizer: Any, specials: list[str | AddedToken], **options: Any
) -> Tokenizer:
    """Return a tokenizer of this model, trained on the corpus. `specials` are its first ids."""
    unknown = str(specials[0])
    made: Any = getattr(models, model)(**({"unk_token": unknown} if model.startswith("Word") else options))
    tokenizer = Tokenizer(made)
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizer
    extra: dict[str, Any] = {"unk_token": unknown} if model == "Unigram" else {}
    if "ByteLevel" in str(pre_tokenizer):
        extra["initial_alphabet"] = pre_tokenizers.ByteLevel.alphabet()
    trainer = getattr(trainers, f"{model.replace('BPE', 'Bpe')}Trainer")
    made = trainer(vocab_size=400, special_tokens=specials, show_progress=False, **extra)
    tokenizer.train_from_iterator(CORPUS, made)
    return tokenizer


BERT_SPECIALS: Final = ["[UNK]", "[PAD]", "[CLS]", "[SEP]", "[MASK]"]
SENTENCEPIECE_SPECIALS: Final = ["<unk>", "<s>", "</s>", "<pad>"]
MASK: Final = AddedToken("<mask>", lstrip=True)


def template(cls: str, sep: str, tokenizer: Tokenizer, *, single: str, pair: str) -> Any:
    """Return a TemplateProcessing with two special tokens of the tokenizer."""
    ids = [(token, tokenizer.token_to_id(token)) for token in (cls, sep)]
    return processors.TemplateProcessing(single=single, pair=pair, special_tokens=ids)


def bert(*, added: Sequence[AddedToken] = (), **options: Any) -> Tokenizer:
    """BERT, DistilBERT, MPNet, MiniLM. The options are BertNormalizer's."""
    normalizer, cut = normalizers.BertNormalizer(**options), pre_tokenizers.BertPreTokenizer()
    tokenizer = trained("WordPiece", normalizer=normalizer, pre_tokenizer=cut, specials=BERT_SPECIALS)
    tokenizer.add_tokens(list(added))
    tokenizer.post_processor = template(
        "[CLS]", "[SEP]", tokenizer, single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1"
    )
    return tokenizer


def roberta(*, add_prefix_space: bool) -> Tokenizer:
    """RoBERTa: a mask token that takes the space in front, special tokens looked for in normalized text."""
    ends = AddedToken("<s>", normalized=True), AddedToken("</s>", normalized=True)
    cut = pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space)
    tokenizer = trained("BPE", pre_tokenizer=cut, specials=["<unk>", *ends, MASK])
    ids = [(token, tokenizer.token_to_id(token)) for token in ("</s>", "<s>")]
    tokenizer.post_processor = processors.RobertaProcessing(*ids, add_prefix_space=add_prefix_space)
    return tokenizer


WITHOUT_PREFIX: Final = pre_tokenizers.ByteLevel(add_prefix_space=False)


def gpt2() -> Tokenizer:
    """GPT-2, which adds no special tokens."""
    tokenizer = trained("BPE", pre_tokenizer=WITHOUT_PREFIX, specials=["<|endoftext|>"])
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    return tokenizer


def modern_bert() -> Tokenizer:
    """ModernBERT: NFC first, and runs of spaces as added tokens."""
    tokenizer = trained("BPE", normalizer=normalizers.NFC(), pre_tokenizer=WITHOUT_PREFIX, specials=BERT_SPECIALS)
    tokenizer.add_tokens([AddedToken(" " * n, normalized=False) for n in (2, 3, 4)] + [AddedToken("\t\t")])
    tokenizer.post_processor = template(
        "[CLS]", "[SEP]", tokenizer, single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B [SEP]"
    )
    return tokenizer


def split_byte_level(expression: str, normalizer: Any = None) -> Tokenizer:
    """Llama 3, Qwen: the expression is a Split, the start token a template after ByteLevel."""
    split = pre_tokenizers.Split(Regex(expression), "isolated")
    cut = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    specials: list[str | AddedToken] = ["<|begin|>", "<|end|>"]
    tokenizer = trained("BPE", normalizer=normalizer, pre_tokenizer=cut, specials=specials, ignore_merges=True)
    after = template("<|begin|>", "<|end|>", tokenizer, single="<|begin|> $A", pair="<|begin|> $A <|begin|>:1 $B:1")
    tokenizer.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), after])
    return tokenizer


def sentencepiece(
    normalizer: Any, pre_tokenizer: Any, *, model: str = "Unigram", single: str = "<s> $A </s>"
) -> Tokenizer:
    """XLM-R, ALBERT, T5, CamemBERT, DeBERTa v2, XLNet. They differ before the model."""
    tokenizer = trained(model, normalizer=normalizer, pre_tokenizer=pre_tokenizer, specials=SENTENCEPIECE_SPECIALS)
    tokenizer.add_special_tokens([MASK])
    tokenizer.post_processor = template("<s>", "</s>", tokenizer, single=single, pair="<s> $A </s> </s> $B </s>")
    return tokenizer


def families() -> dict[str, Callable[[], Tokenizer]]:
    """Return every family that the cache must support."""
    n, p, table = normalizers, pre_tokenizers, normalizers.Precompiled(charsmap(CHARSMAP))
    runs, strip = n.Replace(Regex(" {2,}"), "▁"), n.Strip(left=False)
    quotes = n.Replace("``", '"'), n.Replace("''", '"')
    added = AddedToken("Fox"), AddedToken("don't", single_word=True), AddedToken("naïve", lstrip=True)

    def steps(*steps: Any) -> Any:
        return n.Sequence(list(steps))

    def metaspace(scheme: Any) -> Any:
        return p.Metaspace(prepend_scheme=scheme)

    def words_and_metaspace(scheme: str) -> Any:
        return p.Sequence([p.WhitespaceSplit(), metaspace(scheme)])

    return {
        "bert uncased": bert,
        "bert cased": lambda: bert(lowercase=False, strip_accents=False),
        "bert as text came": lambda: bert(
            lowercase=False, strip_accents=True, clean_text=False, handle_chinese_chars=False),
        "bert with added words": lambda: bert(added=added),
        "gpt2": gpt2,
        "roberta": lambda: roberta(add_prefix_space=False),
        "roberta with prefix": lambda: roberta(add_prefix_space=True),
        "modern bert": modern_bert,
        "gpt2 as split": lambda: split_byte_level(GPT2),
        "llama 3": lambda: split_byte_level(LLAMA3),
        "qwen 2": lambda: split_byte_level(QWEN2, n.NFC()),
        "qwen 3.5 and nfkc": lambda: split_byte_level(QWEN35, n.NFKC()),
        "xlm-r of transformers 4": lambda: sentencepiece(steps(table, strip, runs), metaspace("always")),
        "xlm-r of transformers 5": lambda: sentencepiece(table, words_and_metaspace("always")),
        "xlm-r with first": lambda: sentencepiece(table, words_and_metaspace("first")),
        "t5": lambda: sentencepiece(steps(table, strip, runs), metaspace("first")),
        "camembert bpe": lambda: sentencepiece(steps(table, runs), words_and_metaspace("always"), model="BPE"),
        "albert": lambda: sentencepiece(
            steps(*quotes, n.NFKD(), n.StripAccents(), n.Lowercase(), table, runs), words_and_metaspace("always")),
        "xlnet": lambda: sentencepiece(
            steps(*quotes, n.NFKD(), n.StripAccents()), words_and_metaspace("always"), single="$A </s> <s>:2"),
        "deberta": lambda: sentencepiece(
            steps(n.Replace(Regex(r"\s{2,}|[\n\r\t]"), " "), n.NFC(), strip), p.Sequence([metaspace("always")])),
        "metaspace without prefix": lambda: sentencepiece(None, metaspace("never")),
        "nmt": lambda: sentencepiece(steps(n.Nmt(), n.NFKC()), metaspace("always")),
        "white space": lambda: trained("WordLevel", pre_tokenizer=p.WhitespaceSplit(), specials=["<unk>"]),
        "words and digits": lambda: trained(
            "BPE", normalizer=steps(n.NFD(), n.Lowercase(), n.StripAccents()), specials=["<unk>"], unk_token="<unk>",
            fuse_unk=True,
            pre_tokenizer=p.Sequence([p.Whitespace(), p.Digits(individual_digits=True), p.Punctuation()])),
        "white space and bytes": lambda: trained(
            "BPE", pre_tokenizer=p.Sequence([p.WhitespaceSplit(), p.ByteLevel(add_prefix_space=True)]),
            specials=["<unk>"]),
    }  # fmt: skip


# --- texts ------------------------------------------------------------------------------------------------------------

WORDS: Final = sorted({word for line in CORPUS for word in line.split()})
SPACES: Final = [
    *"\t\n\r\v\f\x1c\x1d\x1e\x1f\x85\u00a0\u1680\u180e\u2000\u2003\u2028\u2029\u202f\u205f\u3000",
    "  ",
    "\r\n",
]
ODD: Final = [
    *"\x00\x01\x7f\u00ad\u200b\u200c\u200d\u2060\ufeff\ufffd\ufffe\U0010ffff",
    *"\u0301\u0308\u0323\u20dd\u0903\u093f\u0e33\u0eb3\uff9e\uff9f\U0001f3fd",
    *"\u0600\u06dd\u0d4e\U000110bd\U000e0061\ufe0f\u202e", "\u1100\u1161\u11a8", "\u1100", "\u11a8",
    *"¨´ˆ\u1fbfﷺ½²…ﬁſ", "'ſ", *"İıẞßΣς", "ΟΔΟΣ", *"ŉÅ\u212b",
    "▁", "▁a", "Ġ", "Ċ", "_", "``", "''", "'", "'s", "'S", "'ll", "n't", "’s", "##s", "##", "@@", "</w>",
    "[SEP]", "[sep]", "[CLS]", "[MASK]", "[UNK", "SEP]", "<s>", "</s>", "<mask>", "<unk>", "<|endoftext|>",
    "<|begin|>",
    "Fox", "FOX", "fox", "don't", "é", "e\u0301", "中", "日本", "😀", "👨‍👩‍👧‍👦",
    "🇩🇪", "𝒜𝓃", "א\u05b0", "हिन्दी", "ไทยคำ", "ｶﾞ",
    "0", "1234567", "3.14", "1,000", "$5", "10%", "#1", "a1b2", "A", "aB", "...", "!?", "--", "—", "(a)", "\\", "/",
    "~", "^",
]  # fmt: skip


def make_text(rng: random.Random) -> str:
    """Return words and difficult characters, mostly with single spaces between them."""
    odd, glue = rng.choice((0.0, 0.05, 0.1, 0.4, 0.8)), rng.choice((0.0, 0.0, 0.0, 0.05, 0.5))
    parts: list[str] = []
    for _ in range(rng.choice((0, 1, 1, 2, 2, 3, 4, 6, 10, 40))):
        dice = rng.random()
        if dice < odd * 0.1:
            code = rng.randrange(0x110000) if rng.random() < 0.5 else rng.randrange(0x3100)
            parts.append("\ufffd" if 0xD800 <= code < 0xE000 else chr(code))
        elif dice < odd:
            parts.append(rng.choice(ODD))
        elif dice > 0.995:
            parts.append(rng.choice(WORDS) * rng.randint(2, 30))
        else:
            word = rng.choice(WORDS)
            parts.append(rng.choice((word, word, word.lower(), word.upper(), word.strip(",.;!?"))))
        dice = rng.random()
        parts.append(" " if dice >= glue else rng.choice(SPACES) if dice < glue / 2 else "")
    text = "".join(parts)
    return text.strip() if rng.random() < 0.9 else text


def make_texts(seed: int) -> Iterator[str]:
    """Yield texts without end, the same for the same seed."""
    rng = random.Random(seed)
    while True:
        yield make_text(rng)
