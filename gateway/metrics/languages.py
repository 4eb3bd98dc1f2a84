"""Data for the detection of languages in ``texts``: function words by language, and the characters of each script.

Function words ("the", "und", "que") are a third of ordinary text and do not depend on its topic. A language without a
list is reported as *none*; a change to it shows as other words.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

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

SCRIPTS: Final[Mapping[str, tuple[tuple[int, int], ...]]] = {
    "latin": ((0x41, 0x5A), (0x61, 0x7A), (0xAA, 0xAA), (0xBA, 0xBA), (0xC0, 0xD6), (0xD8, 0xF6), (0xF8, 0x2AF),
              (0x1D00, 0x1D25), (0x1E00, 0x1EFF), (0x2C60, 0x2C7F), (0xA722, 0xA7FF), (0xFF21, 0xFF3A),
              (0xFF41, 0xFF5A)),
    "greek": ((0x370, 0x373), (0x376, 0x37D), (0x37F, 0x3FF), (0x1F00, 0x1FFF)),
    "cyrillic": ((0x400, 0x52F), (0x1C80, 0x1C8F), (0x2DE0, 0x2DFF), (0xA640, 0xA69F)),
    "armenian": ((0x531, 0x58A),),
    "hebrew": ((0x591, 0x5F4), (0xFB1D, 0xFB4F)),
    "arabic": ((0x610, 0x6FF), (0x750, 0x77F), (0x8A0, 0x8FF), (0xFB50, 0xFDFF), (0xFE70, 0xFEFC)),
    "devanagari": ((0x900, 0x97F),),
    "bengali": ((0x980, 0x9FF),),
    "gurmukhi": ((0xA00, 0xA7F),),
    "gujarati": ((0xA80, 0xAFF),),
    "tamil": ((0xB80, 0xBFF),),
    "telugu": ((0xC00, 0xC7F),),
    "kannada": ((0xC80, 0xCFF),),
    "malayalam": ((0xD00, 0xD7F),),
    "sinhala": ((0xD80, 0xDFF),),
    "thai": ((0xE00, 0xE3E), (0xE40, 0xE7F)),
    "lao": ((0xE80, 0xEFF),),
    "myanmar": ((0x1000, 0x109F),),
    "georgian": ((0x10A0, 0x10FF), (0x1C90, 0x1CBF)),
    "ethiopic": ((0x1200, 0x139F),),
    "khmer": ((0x1780, 0x17FF),),
    "hangul": ((0x1100, 0x11FF), (0x3131, 0x318E), (0xAC00, 0xD7FB)),
    "kana": ((0x3041, 0x309F), (0x30A1, 0x30FA), (0x30FC, 0x30FF), (0x31F0, 0x31FF), (0xFF66, 0xFF9F)),
    "han": ((0x2E80, 0x2FD5), (0x3005, 0x3007), (0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xF900, 0xFAFF)),
}  # fmt: skip
"""The code points of each script's letters that are in use today."""
