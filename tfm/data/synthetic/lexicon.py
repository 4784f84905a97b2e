"""The words of the generated treebank.

Except for forms of one verb, and words such as "that" whose position determines their class, no
word belongs to two classes: otherwise, the grammar would be ambiguous.
"""

# Singular, plural.
_NOUNS = {
    "anim": (
        "man men, woman women, child children, farmer farmers, doctor doctors, student students, "
        "singer singers, soldier soldiers, owner owners, friend friends, brother brothers, "
        "enemy enemies, dog dogs, cat cats, horse horses, bird birds, fox foxes, wolf wolves"
    ),
    "of.anim": "owner owners, friend friends, brother brothers, enemy enemies",
    "thing": (
        "box boxes, chair chairs, table tables, bottle bottles, bag bags, car cars, boat boats, "
        "clock clocks, coin coins, shoe shoes, apple apples, picture pictures, photo photos, "
        "statue statues, book books, letter letters, report reports, song songs, story stories"
    ),
    "of.thing": "picture pictures, photo photos, statue statues",
}

# Infinitive, third person singular, past, past participle, gerund.
_VERBS = {
    "int": (
        "sleep sleeps slept slept sleeping, wait waits waited waited waiting, "
        "sing sings sang sung singing, laugh laughs laughed laughed laughing, "
        "dance dances danced danced dancing, swim swims swam swum swimming, "
        "smile smiles smiled smiled smiling, work works worked worked working"
    ),
    "dyn": (
        "wash washes washed washed washing, chase chases chased chased chasing, "
        "follow follows followed followed following, carry carries carried carried carrying, "
        "paint paints painted painted painting, visit visits visited visited visiting, "
        "push pushes pushed pushed pushing, catch catches caught caught catching, "
        "draw draws drew drawn drawing, watch watches watched watched watching"
    ),
    "stat": (
        "like likes liked liked liking, love loves loved loved loving, "
        "own owns owned owned owning, know knows knew known knowing, "
        "fear fears feared feared fearing, need needs needed needed needing, "
        "trust trusts trusted trusted trusting, hate hates hated hated hating"
    ),
    "put": (
        "hide hides hid hidden hiding, keep keeps kept kept keeping, "
        "leave leaves left left leaving, find finds found found finding, "
        "meet meets met met meeting"
    ),
    "say": (
        "say says said said saying, think thinks thought thought thinking, "
        "believe believes believed believed believing, claim claims claimed claimed claiming, "
        "hear hears heard heard hearing"
    ),
    "want": (
        "want wants wanted wanted wanting, try tries tried tried trying, "
        "plan plans planned planned planning, decide decides decided decided deciding"
    ),
    "up": (
        "pick picks picked picked picking, lift lifts lifted lifted lifting, "
        "wake wakes woke woken waking, call calls called called calling"
    ),
}

_OTHER_WORDS = {
    "NN/about": "book letter report song story",
    "NN/part.anim": "tail beard scarf voice nose",
    "NN/part.thing": "lid handle frame label cover",
    "NN/tool": "brush hammer rope stick towel net",
    "NN/place": "garden kitchen forest school park station village market",
    "NN/hour": "noon midnight dawn",
    "NNP/first": "Anna Ben Clara David Emma Felix Greta Henry Ida Jonas Karla Leo",
    "NNP/title": "Mr. Mrs. Dr.",
    "NNP/last": "Adams Jones Miller Novak Olsen Silva Tanaka",
    "NNP/city": "Paris London Rome Oslo Vienna Madrid Tokyo",
    "NNP/day": "Monday Tuesday Wednesday Thursday Friday Saturday Sunday",
    "NNP/month": "January March April June July August October December",
    "PRP/sg": "he she it",
    "PRP/pl": "they we you I",
    "PRP/object": "him them us me",
    "PRP$/any": "his their our my",
    "DT/sg": "the the the a a this every",
    "DT/pl": "the the the some these all",
    "DT/a": "the a",
    "JJ/any": "young old red black long heavy small new beautiful clean strange happy",
    "JJ/size": "long heavy small",
    "JJ/look": "red black beautiful clean strange",
    "RB/often": "often never always rarely sometimes",
    "RB/slowly": "slowly quickly quietly happily carefully",
    "RB/very": "very quite rather",
    "CD/any": "two three four five seven ten twelve twenty",
    "CD/age": "19 23 31 42 56 64 78",
    "IN/place": "in near behind",
    "CC/clause": "and but",
    "CC/verb": "and and or but",
    "MD/any": "will can must",
    "UH/any": "yes no well",
}


def lexicon() -> dict[str, tuple[str, ...]]:
    """Return {"part of speech/class": words}; frequent words are repeated."""
    words = {name: tuple(text.split()) for name, text in _OTHER_WORDS.items()}
    for name, text in _NOUNS.items():
        words |= _forms(text, (f"NN/{name}", f"NNS/{name}"))
    for name, text in _VERBS.items():
        tags = ("VB", "VBZ", "VBD", "VBN", "VBG")
        words |= _forms(text, tuple(f"{tag}/{name}" for tag in tags))
        words[f"VBP/{name}"] = words[f"VB/{name}"]
    return words


def _forms(text: str, categories: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    """Parse entries with all forms of a word into {category: words}."""
    columns = zip(*(entry.split() for entry in text.split(",")), strict=True)
    return dict(zip(categories, columns, strict=True))
