"""The words and small phrases that every generated example is made of, and the dice that pick among them.

All of it is ordinary vocabulary written down here; nothing is read from a file or a network.
"""

from __future__ import annotations

from random import Random


def words(text: str) -> tuple[str, ...]:
    """The words of a text, as a pool to draw from."""
    return tuple(text.split())


NAMES = words(
    "Ada Ben Clara David Elena Felix Grace Henry Iris Jonas Karin Leo Maria Nora Oscar Paula Quinn Rosa Simon Tara "
    "Ugo Vera Walter Xenia Yusuf Zara Anton Bella Carlos Dora Emil Fatima George Hanna Ivan Julia Kofi Lucia Mara "
    "Nils Olga Peter Rita Sven Tom Una Victor Wanda Yara Zeno Zoé José Søren Jürgen Renée Łukasz Chloé André "
    "李明 王芳 张伟 小美"
)
CITIES = words(
    "Paris Berlin Rome Madrid Lisbon Vienna Prague Warsaw Athens Dublin Oslo Helsinki Cairo Nairobi Lima Bogotá "
    "Tokyo Beijing Seoul Delhi Hanoi Manila Sydney Toronto Boston Chicago Denver Geneva Zürich München Málaga "
    "Porto Naples Venice Kraków Dakar Accra Tunis Quito Havana 北京 上海"
)
COLORS = words("red blue green yellow black white brown orange purple pink grey silver golden")
ANIMALS = words(
    "cat dog horse cow sheep goat pig hen duck goose frog lion tiger bear wolf fox rabbit mouse otter eagle owl "
    "snake spider ant bee whale shark seal deer camel zebra monkey elephant penguin turtle beetle crab swan"
)
FRUITS = words(
    "apple pear plum cherry lemon banana grape melon peach mango fig orange berry lime kiwi apricot"
)
THINGS = words(
    "lamp chair table spoon bottle basket hammer pencil mirror candle button blanket bucket ladder kettle needle "
    "pillow ribbon saddle ticket wallet window bridge garden castle engine guitar violin drum piano camera clock "
    "letter paper book box bag cup plate key door coin ring rope stone boat wheel tent hat coat shoe glove map "
    "flag bell brush knife shelf carpet curtain helmet anchor arrow"
)
ADJECTIVES = words(
    "old new big small heavy light quiet loud bright dark warm cold dry wet clean dirty empty full soft hard round "
    "flat long short wide narrow rich poor early late simple strange gentle brave clever lazy happy sad calm proud"
)
VERBS_PAST = words(
    "found lost sold bought carried painted cleaned moved opened closed washed broke fixed hid showed borrowed "
    "kept lifted dropped built drew measured followed forgot wanted liked"
)
PLACES = words(
    "kitchen cellar attic harbor market station library museum forest valley field meadow island village office "
    "school hospital factory bakery workshop stable tower tunnel theater hotel airport park square river lake"
)
NATURE = words(
    "rain wind snow storm cloud river mountain sea sand ice fire smoke grass leaf tree root seed flower moon star "
    "sun sky earth water salt sugar bread cheese butter honey milk tea coffee soup rice corn"
)
ACCENTED = words(
    "café naïve crème élève façade garçon señor mañana corazón niño über schön Größe Straße Mädchen früh résumé "
    "forêt château île cœur açaí pão coração år øl smörgås żółty"
)
CHINESE = words(
    "你好 谢谢 水 火 山 月亮 太阳 朋友 老师 学生 中国 今天 明天 昨天 苹果 猫 狗 书 茶 米饭 大 小 红色 蓝色 学校 "
    "家 人 鱼 花 天空 海 风 雨 雪 牛 马 鸟 手 心 春天 夏天 秋天 冬天 早上 晚上"
)
EMOJI = words("😀 😂 🎉 🚀 🌍 🐍 🔥 💡 🐶 🐱 🐟 🍎 🍋 🍇 🌙 ⭐ 🌧 ❄ 🌲 🌸 🏠 🚗 🚲 📚 🎈 👍 🫠 ☕ 🎵 🐢")

NOUNS = tuple(dict.fromkeys(ANIMALS + FRUITS + THINGS))
WORDS = tuple(dict.fromkeys([*NOUNS, *ADJECTIVES, *PLACES, *NATURE, *COLORS]))

_ONSETS = words("b c d f g h j k l m n p r s t v w z br ch cl dr fl gr pl sh st th tr")
_VOWELS = words("a e i o u a e i o u ai ee ou")
_CODAS = ("", "", "", *words("n s t r l m k"))


def pseudo_word(rng: Random, syllables: int | None = None) -> str:
    """A pronounceable word that means nothing, such as 'drelo'."""
    count = syllables or rng.choice((1, 2, 2, 3))
    return "".join(rng.choice(_ONSETS) + rng.choice(_VOWELS) for _ in range(count)) + rng.choice(_CODAS)


def any_word(rng: Random) -> str:
    """Mostly a known word, sometimes an invented one."""
    return rng.choice(WORDS) if rng.random() < 0.75 else pseudo_word(rng)


def rich_word(rng: Random) -> str:
    """A word that may hold accents, Chinese or an emoji."""
    roll = rng.random()
    if roll < 0.6:
        return any_word(rng)
    return rng.choice(ACCENTED if roll < 0.75 else CHINESE if roll < 0.9 else EMOJI)


def number(rng: Random, digits: int) -> int:
    """A number of exactly `digits` digits (zero counts as one digit)."""
    return rng.randrange(0 if digits == 1 else 10 ** (digits - 1), 10**digits)


def code(rng: Random) -> str:
    """A value worth remembering: digits, an invented word, or a colour and an animal."""
    roll = rng.random()
    if roll < 0.5:
        return str(number(rng, rng.choice((3, 4, 4, 5))))
    return pseudo_word(rng) if roll < 0.75 else f"{rng.choice(COLORS)} {rng.choice(ANIMALS)}"


def a(phrase: str) -> str:
    """The words with their article: 'an old lamp', 'a lamp'."""
    return f"an {phrase}" if phrase[0] in "aeiou" else f"a {phrase}"


def sentence(rng: Random) -> str:
    """One sentence of plain filler that states nothing anyone will ask for."""
    pick = rng.choice
    roll = rng.randrange(14)
    if roll == 0:
        return (
            f"{pick(NAMES)} {pick(VERBS_PAST)} the {pick(ADJECTIVES)} {pick(THINGS)} in the {pick(PLACES)}."
        )
    if roll == 1:
        return f"In {pick(CITIES)} there was {a(pick(ADJECTIVES))} {pick(ANIMALS)} near the {pick(PLACES)}."
    if roll == 2:
        return f"We saw {rng.randrange(2, 100)} {pick(ANIMALS)}s and {a(pick(COLORS))} {pick(THINGS)}."
    if roll == 3:
        return f"The {pick(NATURE)} was {pick(ADJECTIVES)} and the {pick(PLACES)} was {pick(ADJECTIVES)}."
    if roll == 4:
        return f"{pick(NAMES)} and {pick(NAMES)} went from {pick(CITIES)} to {pick(CITIES)}."
    if roll == 5:
        return f"Nobody {pick(VERBS_PAST)} the {pick(THINGS)} after {rng.randrange(1, 13)} o'clock."
    if roll == 6:
        things = f"{a(pick(THINGS))}, {a(pick(THINGS))} and {a(pick(THINGS))}"
        return f"{things[0].upper()}{things[1:]} lay on the {pick(COLORS)} table."
    if roll == 7:
        return f"{pick(NAMES)} likes {pick(NATURE)} more than {pick(NATURE)}, but not in the {pick(PLACES)}."
    if roll == 8:
        return f"It took {rng.randrange(2, 60)} days to reach the {pick(PLACES)} of {pick(CITIES)}."
    if roll == 9:
        return f"The {pick(ANIMALS)} of {pick(NAMES)} is {pick(ADJECTIVES)}."
    if roll == 10:
        return f"Every {pick(ADJECTIVES)} {pick(THINGS)} needs {a(pick(ADJECTIVES))} {pick(THINGS)}."
    if roll == 11:
        return f"{pick(NAMES)} asked for {pick(NATURE)}, {pick(FRUITS)}s and {pick(NATURE)}."
    if roll == 12:
        return f"At the {pick(PLACES)} they {pick(VERBS_PAST)} {a(pick(COLORS))} {pick(THINGS)} for {pick(NAMES)}."
    return f"{pick(NAMES)} says {pick(CHINESE)}{pick(CHINESE)} {pick(EMOJI)} and {pick(ACCENTED)}."
