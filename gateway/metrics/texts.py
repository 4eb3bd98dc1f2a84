"""The built-in variables of text tasks: tokens, language, letter case and words of texts; labels, scores, embeddings.

Tokens, labels and scores are known anyway, and are counted of every answered text. Language, case and words need a look
at the text: texts are drawn first, at most ``MAX_A_SECOND`` a second and worker, and so are embeddings. Only a text's
beginning is looked at (``MAX_CHARS``), and no text is kept. An unreadable result costs only its own count. For use by
one event loop.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from functools import cache, lru_cache
from itertools import chain
from typing import Any, Final, TypeVar

from gateway.metrics import embeddings, variables
from gateway.metrics.declared import MAX_BUCKETS, MAX_LABEL_CHARS
from gateway.metrics.drift import MAX_WORDS, Reference
from gateway.spec import MetricVariable
from gateway.trace import Trace

MAX_CHARS: Final = 200
"""Characters of a text that are looked at: about thirty words."""
MAX_A_SECOND: Final = 20.0
"""Texts, and embeddings, that a worker looks at per second; of more, a random sample."""
LEARNED: Final = 1000
"""Texts whose most frequent words are the usual ones, if there is no reference."""
NONE: Final = "none"
"""A text without letters, or in an unknown language."""
CASES: Final = ("lower", "upper", "title", "mixed", NONE)

FUNCTION_WORDS: Final[Mapping[str, Mapping[str, str]]] = {
    "latin": {
        "en": "the and of to in is you that it he was for on are with as his they be at this have from or had by not "
        "but what all were we when your can there an which she do how their if will would about out them then these so "
        "some her him has more no my who its now than me our just am us any also after into because could only other "
        "don isn doesn must should may been one same each both while where every does did very much such",
        "de": "der die das und ist nicht ein eine einen einem einer zu den von mit sich auf für im dem des ich sie es "
        "auch an als wird werden aus er hat dass daß wie bei oder nur nach wenn kann noch über so zum zur war haben "
        "wir ihr ihre mir mich uns bitte sind keine kein durch vom bis man aber um unter vor mehr in was am konnte "
        "beim wurde sein können muss diese dieser dieses bereits soll ob ohne",
        "fr": "le la les de des et est un une du que qui dans en pour pas sur au avec ce il ne se plus par sont je "
        "vous nous mais ou cette votre été être aux ont son sa ses elle très comme si leur qu peut doit lors trop sous "
        "sans tout tous fait même où",
        "es": "el la los las de que en un una por con no es se del para al lo como más su sus pero este esta está ya "
        "muy fue son ha hay desde cuando todo también porque ser sin sobre puede si debe tiene sólo pueden entre ni "
        "le me mi",
        "pt": "os as do da dos das em um uma não que é para com se no na por mais ao como mas foi ele sua seu está "
        "pelo pela isso eu você são tem já também muito ser quando de ou pode sem esta este só à até nos",
        "it": "il lo gli di che è per un una del della dei delle con non in sono da si al nel alla le la ma come più "
        "questo questa anche ha su se dal essere stato molto dell può nella deve nell dall cui prima ed tutti sia ci",
        "nl": "het een van en is dat niet de in op te zijn voor met die aan er om ook als bij maar naar heeft worden "
        "wordt dit door ik je uit kan nog wel geen tot deze of werd hebben moet dan alleen zonder waar kon we hij ze",
        "sv": "och att det som är en på för av med den inte till har de ett om var jag kan så från eller vid men ska "
        "när detta du vi kunde måste vara denna finns över efter endast ingen än bara alla mellan får",
        "da": "og at det er en til af av på som med for den ikke har et de kan om var fra eller ved vi jeg blev ble "
        "skal når du din også men mig meg hvis denne være vil kun dette uden efter etter der",
        "fi": "ja on ei se että oli ovat joka mutta tai kun myös voi ole olla hän niin kuin sen tämä jos nyt voidaan "
        "kanssa vain liian jälkeen tämän kaikki ilman älä mitä minä oma sitä",
        "pl": "nie na jest się do to że jak po od dla przez są może lub być tylko ten tym został jego już czy ale "
        "podczas można jako przy bez ze jeśli niż tego musi ma aby które która który za co tak",
        "cs": "je se na že do nebo pro jako není které jsou jeho byl při ale po být od podle může jen aby lze tento "
        "jestli pouze musí má který bude ze by než pokud tak už bylo",
        "hu": "az és hogy nem is egy van ez meg volt csak vagy de mint még már ki ha lehet nincs el után azt kell "
        "minden be ne által túl nélkül helyett akkor",
        "ro": "și şi de la în cu nu pe este un să din că care pentru mai sau se al ale fi ce sunt fost prin după poate "
        "dacă ca fie are acest ar fără când pot această trebuie dar într dintre",
        "tr": "ve bir bu da de için ile çok olarak ne daha gibi kadar sonra ama değil var yok olan mi veya her ya "
        "yalnızca içinde tüm aynı ancak tarafından yeni son ben",
        "id": "yang dan di ini itu dengan untuk tidak dari dalam akan pada juga ke ada adalah oleh saya kita bisa "
        "sudah atau dapat sebuah tak apakah anda hanya saat sebagai ketika harus bukan menggunakan",
        "vi": "và của là có không được cho một các trong này với những người đã để khi từ đến phải bị tập thể vào ra "
        "bạn tôi hay như",
    },
    "cyrillic": {
        "ru": "и в не на что с по это как из у за от к но а он она они был для то так все вы или только мы если при "
        "есть нет было до бы его быть чтобы без может должен является нельзя я ли",
        "uk": "і в не на що з та до як це за від є або для його але був які він вона так також якщо можна про у й бути "
        "під лише чи із без може має щодо",
        "bg": "и на да не се за от е с в са по че като но или може ще това при към бъде без ако във този дали със "
        "който която тази няма",
    },
    "arabic": {
        "ar": "في من على أن إلى هذا التي ما لا عن مع هو كان هذه الذي أو كل قد لم إذا غير عند كانت بين بدون يمكن",
        "fa": "و در به از که این را با است برای آن یک تا می بر های شد اگر نمی یا شده شود باید کرد",
        "ur": "کے کی میں ہے اور سے کا کو پر نہیں یہ کہ ہیں",
    },
    "devanagari": {"hi": "है के में की और का को से पर नहीं यह कि हैं"},
}  # fmt: skip
"""By script and ISO 639-1 code; words of one letter only if no other language has them. If two languages have equally
many words of a text, the first one listed here is reported. ``da`` includes Norwegian, ``cs`` includes Slovak."""

OF_SCRIPT: Final[Mapping[str, str]] = {
    "greek": "el", "hebrew": "he", "thai": "th", "hangul": "ko", "kana": "ja", "han": "zh",
}  # fmt: skip
"""The language of nearly all text in a script."""
_OF_TEXTS: Final = (variables.TOKENS, variables.UNKNOWN, variables.UNUSUAL)
LANGUAGES: Final = (*chain.from_iterable(FUNCTION_WORDS.values()), *OF_SCRIPT.values(), NONE)

_LEAST: Final = 5
"""Fewest texts with a word for it to be usual."""
_LEAST_KANA: Final = 0.1
"""A text with this share of kana is Japanese, although most of its letters may be Han."""
_UNSPACED: Final = (
    "\\u0e00-\\u0eff\\u1000-\\u109f\\u1780-\\u17ff\\u3041-\\u30fa\\u30fc-\\u30ff\\u3400-\\u9fff\\uf900-\\ufaff"
)
"""Letters of scripts without spaces between words (Thai, Lao, Burmese, Khmer, kana, Han): pairs count as words."""
_MARKS: Final = "\\u0300-\\u036f\\u0591-\\u05c7\\u0610-\\u061a\\u064b-\\u065f\\u0670\\u0900-\\u0963\\u0970-\\u0dff"
"""Accents and vowel signs, which are parts of words, and the Indic scripts."""
_WORD: Final = re.compile(rf"[{_UNSPACED}]{{1,2}}|(?:[^\W\d_{_UNSPACED}]|[{_MARKS}])+|\d+")

T = TypeVar("T")
Text = str | tuple[str, str]
"""A text or pair of texts that is encoded as one row."""


def beginning(text: Text) -> str:
    """Return the part of a text that is looked at; of a pair, of both texts."""
    if isinstance(text, tuple):
        half = MAX_CHARS // 2
        return f"{text[0][:half]} {text[1][:half]}"
    return text[:MAX_CHARS]


def letter_case(text: str) -> str:
    """Return a text's letter case, one of ``CASES``."""
    if text.islower():
        return "lower"
    if text.isupper():
        return "upper"
    if text.lower() == text:
        return NONE
    return "title" if text.istitle() else "mixed"


def words_of(text: str) -> frozenset[str]:
    """Return a text's words: small letters without punctuation, any number as 0."""
    return frozenset("0" if word[0].isdecimal() else word for word in _WORD.findall(text.lower()))


def language(text: str, words: Set[str]) -> str:
    """Return the language with the most function words among a text's words, in the script of most of its letters."""
    script = _script(text)
    votes = Counter[str]()
    for word in words:
        votes.update(_votes().get((script, word), {}))
    if votes:
        return max(votes, key=lambda code: (votes[code], -LANGUAGES.index(code)))
    return OF_SCRIPT.get(script, NONE)


def _script(text: str) -> str:
    letters = Counter(map(_script_of, text))
    del letters[""]
    if letters["kana"] > _LEAST_KANA * letters.total():
        return "kana"
    return max(letters, key=lambda script: (letters[script], script), default="")


@lru_cache(maxsize=8192)
def _script_of(letter: str) -> str:
    """Return a letter's script, with which Unicode's name of it begins; empty for other characters."""
    script = unicodedata.name(letter, "").lower().partition(" ")[0].partition("-")[0] if letter.isalpha() else ""
    return {"hiragana": "kana", "katakana": "kana", "cjk": "han"}.get(script, script)


@cache
def _votes() -> Mapping[tuple[str, str], Mapping[str, int]]:
    """Votes by script and word. A word that only one language of its script has counts twice."""
    found: dict[tuple[str, str], dict[str, int]] = {}
    for script, languages in FUNCTION_WORDS.items():
        saying = Counter(word for listed in languages.values() for word in set(listed.split()))
        for code, listed in languages.items():
            for word in set(listed.split()):
                found.setdefault((script, word), {})[code] = 2 if saying[word] == 1 else 1
    return found


class UsualWords:
    """The usual words of one version's texts: those of the reference, else the most frequent of the first texts."""

    def __init__(self, reference: tuple[str, ...]) -> None:
        self.words = reference
        self._usual: frozenset[str] | None = None
        self._counts, self._texts = Counter[str](), 0

    def unusual(self, words: Set[str]) -> float | None:
        """Return the share of a text's words that are not usual; None without words, and while words are learned."""
        if not self.words:
            self._learn(words)
            return None
        if self._usual is None:  # made with the first text: there may be hundreds of other versions
            self._usual = frozenset(self.words)
        return len(words - self._usual) / len(words) if words else None

    def _learn(self, words: Set[str]) -> None:
        self._counts.update(words)
        self._texts += 1
        if self._texts >= LEARNED:
            often = [word for word, times in self._counts.items() if times >= _LEAST]
            often.sort(key=lambda word: (-self._counts[word], word))
            self.words = (*often[:MAX_WORDS],)
            self._counts.clear()
            self._texts = 0


class Draws:
    """Draws items at random, ``most`` a second; up to a second's worth at once. Whoever asks more often gets more."""

    def __init__(self, most: float, chance: Callable[[], float], clock: Callable[[], float]) -> None:
        self._most, self._chance, self._clock = most, chance, clock
        self._left, self._at = most, clock()

    def of(self, listing: Callable[[], Sequence[T]]) -> Sequence[T]:
        """Return some of what ``listing`` lists, or all. Nothing is listed while none may be drawn."""
        now = self._clock()
        self._left, self._at = min(self._most, self._left + (now - self._at) * self._most), now
        if self._left < 1:
            return ()
        listed = listing()
        number = min(len(listed), int(self._left))
        self._left -= number
        if number == len(listed):
            return listed
        step = len(listed) / number  # one of each stretch of the list
        return [listed[int((place + self._chance()) * step)] for place in range(number)]


class TextVariables:
    """Computes the built-in variables of one version of a text task."""

    def __init__(self, labels: Sequence[str], reference: Reference, draws: tuple[Draws, Draws]) -> None:
        """``labels``: of a classifier. ``draws`` are of texts and of embeddings, those of all versions."""
        answers = (variables.SCORE,) if labels else (variables.COSINE,)
        of = {
            variables.LANGUAGE: LANGUAGES, variables.CASE: CASES,
            variables.LABEL: tuple(label[:MAX_LABEL_CHARS] for label in labels[:MAX_BUCKETS]),
        }  # fmt: skip
        self.declared = (
            *(MetricVariable(name, "scalar", variables.BOUNDS[name]) for name in (*_OF_TEXTS, *answers)),
            *(MetricVariable(name, "enum", values) for name, values in of.items() if values),
        )
        """What they are, as if a user had declared them."""
        self.usual = UsualWords(reference.words)
        self.cosines = embeddings.Cosines(reference.mean)
        self._has_labels = bool(labels)
        self._texts, self._vectors = draws

    def read(self, traces: Sequence[Trace]) -> Iterator[tuple[str, Sequence[Any]]]:
        """Return values of requests, each time of one variable. Answers from the response cache come without texts."""
        rows = [row for trace in traces if trace.encoded for row in trace.encoded]
        yield variables.TOKENS, [row.n_tokens for row in rows]
        yield variables.UNKNOWN, [row.n_unknown / row.n_tokens if row.n_tokens else 0.0 for row in rows]
        for text in map(beginning, self._texts.of(lambda: texts_of(traces))):
            words = words_of(text)
            yield variables.LANGUAGE, (language(text, words),)
            yield variables.CASE, (letter_case(text),)
            if (share := self.usual.unusual(words)) is not None:
                yield variables.UNUSUAL, (share,)
        if self._has_labels:
            found = [pair for trace in traces for result in results_of(trace) for pair in _labels_of(result)]
            yield variables.LABEL, [label for label, _ in found]
            yield variables.SCORE, [score for _, score in found]
        else:
            yield variables.COSINE, self.cosines.of(self._vectors.of(lambda: _vectors_of(traces)))


def _labels_of(result: Any) -> list[tuple[str, float]]:
    """Return label and score of a result, or of each of its entities: of tokens, those of the entity they belong to."""
    try:
        if "entities" not in result:
            return [(str(result["label"]), float(result["score"]))]
        return [
            (str(one.get("entity_group") or one["entity"]).removeprefix("B-").removeprefix("I-"), float(one["score"]))
            for one in result["entities"]
        ]
    except Exception:  # noqa: BLE001 - one unreadable result must not keep the others from being counted
        return []


def _vectors_of(traces: Sequence[Trace]) -> list[Any]:
    # A truncated vector points in another direction than the whole one.
    whole = (t for t in traces if t.prepared is None or not t.prepared.request.options.get("truncate_dim"))
    return [vector for trace in whole for vector in embeddings.vectors_of(trace.answer)]


def texts_of(traces: Sequence[Trace]) -> list[Text]:
    """Return the texts of answered requests."""
    # A request of token ids has empty texts.
    return [text for trace in traces if trace.prepared is not None for text in trace.prepared.request.texts if text]


def results_of(trace: Trace) -> Sequence[Any]:
    """Return an answer's results as they would be without the request's parameters."""
    if trace.prepared is not None and trace.prepared.unaltered is not None:
        return trace.prepared.unaltered
    if type(trace.answer) is not dict:
        return ()
    several = trace.answer.get("results")
    if several is None:
        return (trace.answer,)
    return several if isinstance(several, Sequence) else ()  # user code may have made anything of it
