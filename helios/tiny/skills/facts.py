"""Short true facts asked in many ways.

A fact is held out by its pair of subject and wording: the model has seen the fact, but never asked like this.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from helios.tiny.skills.language import ANIMALS, FRUITS, PLACES, THINGS, words
from helios.tiny.skills.question import Question, ask


@dataclass(frozen=True)
class Relation:
    """One kind of fact: subject -> object, the ways to ask for the object and the sentence that answers."""

    name: str
    pairs: dict[str, str]
    wordings: tuple[str, ...]
    answer: str


def _pairs(text: str) -> dict[str, str]:
    return dict(item.strip().split(":") for item in text.split(","))


_CAPITALS = _pairs(
    "France:Paris, Germany:Berlin, Italy:Rome, Spain:Madrid, Portugal:Lisbon, Austria:Vienna, Poland:Warsaw, "
    "Greece:Athens, Ireland:Dublin, Norway:Oslo, Sweden:Stockholm, Finland:Helsinki, Denmark:Copenhagen, "
    "Hungary:Budapest, Romania:Bucharest, Bulgaria:Sofia, Croatia:Zagreb, Belgium:Brussels, Iceland:Reykjavík, "
    "Switzerland:Bern, Ukraine:Kyiv, Turkey:Ankara, Egypt:Cairo, Kenya:Nairobi, Ghana:Accra, Senegal:Dakar, "
    "Morocco:Rabat, Tunisia:Tunis, Ethiopia:Addis Ababa, Japan:Tokyo, China:Beijing, India:New Delhi, "
    "Vietnam:Hanoi, Thailand:Bangkok, South Korea:Seoul, Indonesia:Jakarta, Nepal:Kathmandu, Mongolia:Ulaanbaatar, "
    "Canada:Ottawa, Mexico:Mexico City, Cuba:Havana, Peru:Lima, Chile:Santiago, Colombia:Bogotá, Brazil:Brasília, "
    "Argentina:Buenos Aires, Uruguay:Montevideo, Ecuador:Quito, Australia:Canberra, New Zealand:Wellington"
)
_CONTINENTS = {
    country: continent
    for continent, countries in {
        "Europe": "France Germany Italy Spain Portugal Austria Poland Greece Ireland Norway Sweden Finland Denmark "
        "Hungary Romania Bulgaria Croatia Belgium Iceland Switzerland Ukraine",
        "Africa": "Egypt Kenya Ghana Senegal Morocco Tunisia Ethiopia",
        "Asia": "Japan China India Vietnam Thailand Indonesia Nepal Mongolia",
        "North America": "Canada Mexico Cuba",
        "South America": "Peru Chile Colombia Brazil Argentina Uruguay Ecuador",
    }.items()
    for country in countries.split()
}
_OPPOSITES = _pairs(
    "hot:cold, big:small, old:young, fast:slow, high:low, light:dark, full:empty, wet:dry, rich:poor, hard:soft, "
    "early:late, happy:sad, long:short, wide:narrow, open:closed, good:bad, loud:quiet, clean:dirty, strong:weak, "
    "up:down, left:right, day:night, begin:end, buy:sell, push:pull, win:lose, give:take, love:hate, near:far, "
    "inside:outside, north:south, east:west, always:never, first:last, true:false, thick:thin, sweet:sour"
)
_YOUNG = _pairs(
    "dog:puppy, cat:kitten, cow:calf, horse:foal, sheep:lamb, goat:kid, pig:piglet, hen:chick, duck:duckling, "
    "goose:gosling, lion:cub, deer:fawn, swan:cygnet, frog:tadpole, kangaroo:joey, owl:owlet, eagle:eaglet"
)
_SOUNDS = _pairs(
    "dog:barks, cat:meows, cow:moos, horse:neighs, sheep:bleats, pig:grunts, duck:quacks, lion:roars, wolf:howls, "
    "frog:croaks, snake:hisses, bee:buzzes, owl:hoots, mouse:squeaks, elephant:trumpets, crow:caws"
)
_LEGS = _pairs(
    "dog:four, cat:four, horse:four, cow:four, duck:two, hen:two, ant:six, bee:six, beetle:six, spider:eight, "
    "crab:ten, snake:no, whale:no, fly:six, frog:four, penguin:two, shark:no"
)
_COLOR_OF = _pairs(
    "grass:green, the sky on a clear day:blue, snow:white, coal:black, blood:red, a ripe banana:yellow, "
    "a lemon:yellow, a carrot:orange, milk:white, a raven:black, chocolate:brown, an emerald:green, a ruby:red, "
    "a sapphire:blue, a ripe tomato:red, the sun in a drawing:yellow, ash:grey, a flamingo:pink"
)
_SYMBOLS = _pairs(
    "hydrogen:H, helium:He, carbon:C, nitrogen:N, oxygen:O, sodium:Na, iron:Fe, gold:Au, silver:Ag, copper:Cu, "
    "lead:Pb, tin:Sn, zinc:Zn, neon:Ne, calcium:Ca, potassium:K, sulfur:S, chlorine:Cl, uranium:U, mercury:Hg"
)
_DAYS = words("Monday Tuesday Wednesday Thursday Friday Saturday Sunday")
_MONTHS = words("January February March April May June July August September October November December")
_ORDINALS = words("first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth")
_NUMBER_WORDS = words(
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
    "seventeen eighteen nineteen twenty"
)
_PLANETS = words("Mercury Venus Earth Mars Jupiter Saturn Uranus Neptune")
_PAST = _pairs(
    "go:went, see:saw, eat:ate, take:took, give:gave, come:came, run:ran, write:wrote, sing:sang, swim:swam, "
    "think:thought, bring:brought, buy:bought, teach:taught, find:found, know:knew, fly:flew, speak:spoke, "
    "break:broke, sleep:slept, keep:kept, make:made, say:said, begin:began, drink:drank, fall:fell, hold:held"
)
_PLURALS = _pairs(
    "mouse:mice, goose:geese, foot:feet, tooth:teeth, man:men, woman:women, child:children, ox:oxen, leaf:leaves, "
    "knife:knives, wolf:wolves, box:boxes, bus:buses, baby:babies, city:cities, sheep:sheep, fish:fish, person:people"
)
_FRENCH = _pairs(
    "water:l'eau, bread:le pain, coffee:le café, boy:le garçon, school:l'école, forest:la forêt, castle:le château, "
    "island:l'île, heart:le cœur, moon:la lune, sun:le soleil, house:la maison, thank you:merci, hello:bonjour, "
    "student:l'élève, summer:l'été, key:la clé, head:la tête, sister:la sœur, window:la fenêtre"
)
_GERMAN = _pairs(
    "water:das Wasser, bread:das Brot, street:die Straße, girl:das Mädchen, big:groß, beautiful:schön, early:früh, "
    "five:fünf, green:grün, key:der Schlüssel, thank you:danke, bear:der Bär, door:die Tür, cheese:der Käse, "
    "foot:der Fuß, over:über, tree:der Baum, moon:der Mond, bird:der Vogel, spoon:der Löffel"
)
_SPANISH = _pairs(
    "water:el agua, bread:el pan, boy:el niño, tomorrow:mañana, heart:el corazón, coffee:el café, tree:el árbol, "
    "year:el año, bird:el pájaro, thank you:gracias, song:la canción, lion:el león, sir:señor, music:la música, "
    "easy:fácil, king:el rey, house:la casa, sun:el sol, pencil:el lápiz, train:el tren"
)
_CHINESE = _pairs(
    "water:水, fire:火, mountain:山, moon:月亮, sun:太阳, friend:朋友, teacher:老师, student:学生, China:中国, "
    "today:今天, tomorrow:明天, apple:苹果, cat:猫, dog:狗, book:书, tea:茶, rice:米饭, big:大, small:小, "
    "school:学校, fish:鱼, flower:花, sky:天空, sea:海, wind:风, rain:雨, snow:雪, horse:马, bird:鸟, hello:你好, "
    "thank you:谢谢, spring:春天, summer:夏天, winter:冬天, Beijing:北京, Shanghai:上海"
)
_EMOJI = _pairs(
    "dog:🐶, cat:🐱, fish:🐟, apple:🍎, lemon:🍋, grape:🍇, moon:🌙, star:⭐, tree:🌲, flower:🌸, house:🏠, car:🚗, "
    "bicycle:🚲, balloon:🎈, rocket:🚀, earth:🌍, snake:🐍, fire:🔥, coffee:☕, music:🎵, turtle:🐢, book:📚, light bulb:💡"
)
_SIDES = _pairs(
    "triangle:three, square:four, pentagon:five, hexagon:six, heptagon:seven, octagon:eight, cube:six"
)
_MADE_OF = _pairs(
    "bread:flour, cheese:milk, wine:grapes, paper:wood, glass:sand, butter:milk, candles:wax, raisins:grapes, "
    "chocolate:cocoa, honey:nectar, leather:skin, cider:apples, tofu:soybeans, tires:rubber, wool:hair"
)
_WORKERS = _pairs(
    "bread:baker, shoes:cobbler, meat:butcher, paintings:painter, books:writer, clothes:tailor, houses:builder, "
    "soup:cook, music:musician, statues:sculptor, beer:brewer, gardens:gardener"
)
_KINDS = (
    dict.fromkeys(ANIMALS, "an animal") | dict.fromkeys(FRUITS, "a fruit") | dict.fromkeys(THINGS, "a thing")
    | dict.fromkeys(PLACES, "a place")
)  # fmt: skip
for _two_sided in ("orange", "seal"):
    _KINDS.pop(_two_sided, None)


def _translation(language: str, pairs: dict[str, str]) -> Relation:
    return Relation(
        language,
        pairs,
        (
            f"What is '{{s}}' in {language}?",
            f"Translate '{{s}}' into {language}.",
            f"How do you say {{s}} in {language}?",
            f"The {language} word for {{s}}?",
            f"{{s}} in {language}, please",
            f"Which {language} word means {{s}}?",
        ),
        f"In {language}, {{s}} is: {{o}}",
    )


RELATIONS = (
    Relation(
        "capital",
        _CAPITALS,
        (
            "What is the capital of {s}?",
            "Name the capital of {s}.",
            "Which city is the capital of {s}?",
            "capital of {s}",
            "What city is the capital of {s}?",
            "{s}: what is its capital?",
            "I want to know the capital of {s}.",
            "The capital of {s} is called what?",
        ),
        "The capital of {s} is {o}.",
    ),
    Relation(
        "country",
        {city: country for country, city in _CAPITALS.items()},
        (
            "{s} is the capital of which country?",
            "Which country has {s} as its capital?",
            "Of which country is {s} the capital?",
            "What country has the capital {s}?",
            "In which country is {s}?",
        ),
        "{s} is the capital of {o}.",
    ),
    Relation(
        "continent",
        _CONTINENTS,
        (
            "On which continent is {s}?",
            "Which continent is {s} in?",
            "What continent does {s} belong to?",
            "{s} lies on which continent?",
            "Name the continent of {s}.",
        ),
        "{s} is in {o}.",
    ),
    Relation(
        "opposite",
        _OPPOSITES | {v: k for k, v in _OPPOSITES.items()},
        (
            "What is the opposite of {s}?",
            "Name the opposite of {s}.",
            "The opposite of {s}?",
            "Which word is the opposite of {s}?",
            "What is the contrary of '{s}'?",
            "opposite of {s}",
        ),
        "The opposite of {s} is {o}.",
    ),
    Relation(
        "young",
        _YOUNG,
        ("What is a young {s} called?", "What do you call a baby {s}?", "The young of a {s} is called what?",
         "Name for a young {s}?", "How do we call the young of a {s}?"),
        "A young {s} is called a {o}.",
    ),
    Relation(
        "sound",
        _SOUNDS,
        ("What sound does a {s} make?", "Which noise does a {s} make?", "What does a {s} do when it is heard?",
         "How does a {s} sound?", "Describe the sound of a {s}."),
        "A {s} {o}.",
    ),
    Relation(
        "legs",
        _LEGS,
        ("How many legs does a {s} have?", "Number of legs of a {s}?", "A {s} has how many legs?",
         "Tell me how many legs a {s} has.", "Count the legs of a {s}."),
        "A {s} has {o} legs.",
    ),
    Relation(
        "color",
        _COLOR_OF,
        ("What color is {s}?", "Which color does {s} have?", "Name the color of {s}.", "The color of {s}?",
         "What is the color of {s}?"),
        "The color of {s} is {o}.",
    ),
    Relation(
        "symbol",
        _SYMBOLS,
        ("What is the chemical symbol of {s}?", "Which symbol stands for {s}?", "Chemical symbol for {s}?",
         "How do chemists write {s}?", "Give the symbol of {s}."),
        "The chemical symbol of {s} is {o}.",
    ),
    Relation(
        "next",
        {d: _DAYS[(i + 1) % 7] for i, d in enumerate(_DAYS)} | {m: _MONTHS[(i + 1) % 12] for i, m in enumerate(_MONTHS)},
        ("What comes after {s}?", "What follows {s}?", "Which one is next after {s}?", "{s} is over. What begins?",
         "After {s} comes what?"),
        "After {s} comes {o}.",
    ),
    Relation(
        "previous",
        {d: _DAYS[i - 1] for i, d in enumerate(_DAYS)} | {m: _MONTHS[i - 1] for i, m in enumerate(_MONTHS)},
        ("What comes before {s}?", "Which one is just before {s}?", "What precedes {s}?", "Before {s} comes what?"),
        "Before {s} comes {o}.",
    ),
    Relation(
        "month",
        dict(zip(_ORDINALS, _MONTHS, strict=True)),
        ("What is the {s} month of the year?", "Which month is the {s} one?", "Name the {s} month.",
         "The {s} month of a year is called?"),
        "The {s} month is {o}.",
    ),
    Relation(
        "planet",
        dict(zip(_ORDINALS, _PLANETS, strict=False)),
        ("What is the {s} planet from the sun?", "Which planet is the {s} one from the sun?",
         "Name the {s} planet.", "Counted from the sun, which planet is {s}?"),
        "The {s} planet from the sun is {o}.",
    ),
    Relation(
        "digits",
        {word: str(i) for i, word in enumerate(_NUMBER_WORDS)},
        ("Write {s} in digits.", "What is {s} as a number?", "Write the number {s} with digits.", "{s} in digits?"),
        "In digits, {s} is {o}.",
    ),
    Relation(
        "number word",
        {str(i): word for i, word in enumerate(_NUMBER_WORDS)},
        ("Write {s} as a word.", "What is the word for {s}?", "Spell the number {s} out.", "{s} in words?"),
        "In words, {s} is {o}.",
    ),
    Relation(
        "past",
        _PAST,
        ("What is the past tense of {s}?", "Past tense of {s}?", "Put the verb {s} into the past.",
         "Today I {s}. Yesterday I ...?", "Which form has the verb {s} in the past?"),
        "The past tense of {s} is {o}.",
    ),
    Relation(
        "plural",
        _PLURALS,
        ("What is the plural of {s}?", "Plural of {s}?", "One {s}, two ...?", "How do you write more than one {s}?",
         "Name the plural of {s}."),
        "The plural of {s} is {o}.",
    ),
    Relation(
        "sides",
        _SIDES,
        ("How many sides does a {s} have?", "Number of sides of a {s}?", "A {s} has how many sides?",
         "Count the sides of a {s}."),
        "A {s} has {o} sides.",
    ),
    Relation(
        "made of",
        _MADE_OF,
        ("What is made into {s}?", "{s}: made from what?", "What do people use to make {s}?",
         "From what is {s} made?", "What is the main part of {s}?"),
        "The main part of {s} is {o}.",
    ),
    Relation(
        "worker",
        _WORKERS,
        ("Who makes {s}?", "Whose work is {s}?", "What do you call someone who makes {s}?",
         "Name the one whose trade is {s}.", "Which worker do I need for {s}?"),
        "The one who makes {s} is called a {o}.",
    ),
    Relation(
        "kind",
        _KINDS,
        ("Is a {s} an animal, a fruit, a thing or a place?", "What kind of thing is a {s}?", "What is a {s}?",
         "Tell me what a {s} is."),
        "A {s} is {o}.",
    ),
    Relation(
        "emoji",
        _EMOJI,
        ("Show me the emoji for {s}.", "Which emoji is a {s}?", "Emoji for {s}?", "Draw a {s} as an emoji.",
         "Send me a {s} emoji."),
        "Here is the emoji for {s}: {o}",
    ),
    _translation("French", _FRENCH),
    _translation("German", _GERMAN),
    _translation("Spanish", _SPANISH),
    _translation("Chinese", _CHINESE),
)  # fmt: skip
_WEIGHTS = tuple(len(relation.pairs) ** 0.5 for relation in RELATIONS)

_LEADS = (
    "",
    "",
    "",
    "",
    "Please tell me: ",
    "Quick question: ",
    "Hello! ",
    "I forgot: ",
    "One more thing. ",
    "So, ",
)


def facts(rng: Random) -> Question:
    """A fact of one of the relations."""
    relation = rng.choices(RELATIONS, _WEIGHTS)[0]
    subject = rng.choice(list(relation.pairs))
    wording = rng.choice(relation.wordings)
    thing = relation.pairs[subject]
    answer = _with_articles(relation.answer.format(s=subject, o=thing))
    text = rng.choice(_LEADS) + _with_articles(wording.format(s=subject))
    thought = f"This asks for the {relation.name} of {subject}."
    return ask("facts", f"{relation.name}|{subject}|{wording}", text, answer, thought, "contains", thing)


def _with_articles(text: str) -> str:
    """Turns 'a owl' into 'an owl' wherever a template put its article before a vowel."""
    parts = text.split(" ")
    for i in range(len(parts) - 1):
        if parts[i] in ("a", "A") and parts[i + 1][0] in "aeiou":
            parts[i] += "n"
    return " ".join(parts)
