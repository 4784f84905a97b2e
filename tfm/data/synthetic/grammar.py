"""The grammar of the generated treebank.

Each rule is a line: its weight among the rules of its category, and the symbols that it expands to.

    NP/sg               a category: its label in the tree, and features
    NP-SBJ/sg           the same with a function tag, which is part of the label
    light/sg.anim       a lower-case category has no label: its nodes join the parent constituent
    NN/tool             a part of speech and a class of words
    (PP (IN of) NP/sg)  a constituent, with a word and a category
    WHNP-# … *T*-#      # is replaced by the number that ties a trace to its antecedent

A rule with placeholders is expanded to one rule per value: {n} is a number, {k} a kind of noun, {l}
whether a place may attach, {f} a verb form, {t} a verb form except that after "to"; {V} is the part
of speech of the form.

The grammar is unambiguous, by these rules:

- A phrase with "with" attaches to the verb if it names a tool, else to the nearest noun that can
  have the thing. A place attaches to the object of verbs of feeling and owning, and to all other
  verbs themselves. Times and reasons attach to the verb.
- An object that contains a clause ends its clause, and so does reported speech: what follows
  attaches to the inner verb, except for a reason after "wants to …".
- "And" joins only simple phrases, and only verbs of the same form: "wants to sleep and sings" has
  another tree than "wants to sleep and sing".
- A relative clause after "the owner of the dogs" attaches to the nearer noun, unless the number of
  its verb contradicts.
"""

import itertools
import re

_TENSED = {"sg": "VBZ", "pl": "VBP", "past": "VBD", "base": "VB"}
_VALUES: dict[str, tuple[dict[str, str], ...]] = {
    "n": ({"n": "sg"}, {"n": "pl"}),
    "k": ({"k": "anim"}, {"k": "thing"}),
    "l": ({"l": "loc"}, {"l": "noloc"}),
    "f": tuple({"f": form, "V": tag} for form, tag in (_TENSED | {"inf": "VB"}).items()),
    "t": tuple({"t": form, "V": tag} for form, tag in _TENSED.items()),
}

_RULES = """
root/any
  60 (S clause/any (. .))
  5  (S PP-TMP/time (, ,) clause/any (. .))
  5  (S (SBAR-ADV (WHADVP (WRB when)) (S clause/any)) (, ,) clause/any (. .))
  4  (S (S clause/any) (, ,) CC/clause (S clause/any) (. .))
  2  (S (S clause/any) (: ;) (S clause/any) (. .))
  4  (S (`` ``) (S-TPC-# clause/any) (, ,) ('' '') NP-SBJ/sg.simple said/any (. .))
  2  (S (INTJ UH/any) (, ,) clause/any (. .))
  2  (S (NP-SBJ (EX there)) (VP be/{n} NP-PRD/{n}.{k}.common PP-LOC/place) (. .))
  3  (S (NP-SBJ (-NONE- *)) VP/base (. !))
  2  (SQ do/{n} NP-SBJ/{n}.simple VP/base (. ?))
  2  (SQ (VBD did) NP-SBJ/{n}.simple VP/base (. ?))
  2  (SBARQ (WHNP-# (WP what)) (SQ do/{n} NP-SBJ/{n}.simple VP/base.gap) (. ?))
  3  (SBARQ (WHNP-# (WP who)) (SQ (NP-SBJ (-NONE- *T*-#)) VP/sg) (. ?))
said/any
  2  (VP VBZ/say (S (-NONE- *T*-#)))
  3  (VP VBD/say (S (-NONE- *T*-#)))

clause/any
  8  NP-SBJ/{n} VP/{n}
  1  NP-SBJ/{n} (ADVP-TMP RB/often) VP/{n}
  2  NP-SBJ/{n}.thing VP/{n}.thing
clause/gap
  8  NP-SBJ/{n}.simple VP/{n}.gap
  1  NP-SBJ/{n}.simple (ADVP-TMP RB/often) VP/{n}.gap

VP/{n}
  12 pred/{n}
  6  pred/past
  3  joined/{n}
  1  joined/past
  3  MD/any VP/base
  1  do/{n} (RB not) VP/base
  1  (VBD did) (RB not) VP/base
  2  be/{n} (VP VBG/int after/int reason/base)
  2  be/{n} (VP VBN/dyn (NP (-NONE- *)) by/any after/dyn)
  2  be/{n} state/any
VP/sg
  1  be/sg (NP-PRD (DT a) NN/anim)
VP/{n}.thing
  3  be/{n} state/any
  2  be/{n} (VP VBN/dyn (NP (-NONE- *)) by/any after/dyn)
VP/{n}.present
  8  pred/{n}
  2  joined/{n}
  2  now/{n} state/any
VP/{n}.gap
  4  gap/{n}
  3  gap/past
  2  MD/any VP/base.gap
VP/base
  8  pred/base
  1  joined/base
VP/inf
  8  pred/inf
  1  joined/inf
VP/inf.simple
  1  simple/inf
VP/base.gap
  1  gap/base
VP/inf.gap
  1  gap/inf

pred/{f}
  18 {V}/int after/int reason/{f}
  24 {V}/dyn NP/light.noloc after/dyn reason/{f}
  2  {V}/dyn NP/heavy
  13 {V}/stat NP/light.loc reason/{f}
  2  {V}/stat NP/heavy
  5  {V}/put NP/light.noloc PP-PUT/place
  2  {V}/say (SBAR (IN that) (S clause/any))
  1  {V}/say (SBAR (-NONE- 0) (S clause/any))
  2  {V}/want (S (NP-SBJ (-NONE- *)) (VP (TO to) VP/inf))
  1  {V}/up (PRT (RP up)) NP/light.noloc after/dyn reason/{f}
  1  {V}/up NP/light.noloc (PRT (RP up)) after/dyn reason/{f}
pred/{t}
  1  {V}/want (S (NP-SBJ (-NONE- *)) (VP (TO to) VP/inf.simple)) SBAR-PRP/because
gap/{f}
  6  {V}/dyn (NP (-NONE- *T*-#)) after/dyn
  4  {V}/stat (NP (-NONE- *T*-#))
  1  {V}/up (PRT (RP up)) (NP (-NONE- *T*-#)) after/dyn
  1  {V}/want (S (NP-SBJ (-NONE- *)) (VP (TO to) VP/inf.gap))
simple/{f}
  3  {V}/int after/int
  3  {V}/dyn NP/light.noloc
  2  {V}/stat NP/light.loc
joined/{f}
  5  (VP simple/{f}) CC/verb (VP pred/{f})
joined/sg
  2  (VP VBZ/want (S (NP-SBJ (-NONE- *)) (VP (TO to) VP/inf.simple))) CC/verb (VP pred/sg)
joined/past
  2  (VP VBD/want (S (NP-SBJ (-NONE- *)) (VP (TO to) VP/inf.simple))) CC/verb (VP pred/past)

after/int
  28
  5  (ADVP-MNR RB/slowly)
  8  PP-LOC/place
  5  PP-TMP/time
  2  (ADVP-MNR RB/slowly) PP-LOC/place
  3  PP-LOC/place PP-TMP/time
after/dyn
  28
  4  (ADVP-MNR RB/slowly)
  6  PP-LOC/place
  5  PP-TMP/time
  6  PP-MNR/tool
  2  PP-MNR/tool PP-LOC/place
  2  PP-LOC/place PP-TMP/time
reason/{t}
  24
  1  SBAR-PRP/because
reason/inf
  1
SBAR/because
  1  (IN because) (S clause/any)
by/any
  1
  3  (PP (IN by) (NP-LGS base/any.anim))

state/any
  5  (ADJP-PRD JJ/any)
  2  (ADJP-PRD RB/very JJ/any)
  2  (ADJP-PRD JJ/size (CC and) JJ/look)
  3  PP-LOC-PRD/place
now/sg
  1  (VBZ is)
now/pl
  1  (VBP are)
be/sg
  3  now/sg
  2  (VBD was)
be/pl
  3  now/pl
  2  (VBD were)
do/sg
  1  (VBZ does)
do/pl
  1  (VBP do)

NP/{n}
  20 light/{n}.anim.loc
  2  heavy/{n}.anim
  6  PRP/{n}
NP/{n}.thing
  8  light/{n}.thing.loc
  1  heavy/{n}.thing
NP/{n}.simple
  5  base/{n}.anim
  2  PRP/{n}
NP/{n}.{k}.common
  1  common/{n}.{k}
NP/light.{l}
  4  light/{n}.{k}.{l}
  1  PRP/object
NP/heavy
  1  heavy/{n}.{k}

common/sg.{k}
  10 DT/sg NN/{k}
  6  DT/sg JJ/any NN/{k}
  1  DT/sg (ADJP RB/very JJ/any) NN/{k}
  2  PRP$/any NN/{k}
  1  (NP NNP/first (POS 's)) NN/{k}
  1  (NP DT/a NN/anim (POS 's)) NN/{k}
common/pl.{k}
  8  DT/pl NNS/{k}
  4  DT/pl JJ/any NNS/{k}
  2  JJ/any NNS/{k}
  2  NNS/{k}
  3  CD/any NNS/{k}
  1  (QP (JJR more) (IN than) CD/any) NNS/{k}
  1  PRP$/any NNS/{k}
  1  (NP NNP/first (POS 's)) NNS/{k}
base/{n}.{k}
  2  common/{n}.{k}
base/sg.anim
  1  name/any
base/any.{k}
  2  base/sg.{k}
  1  base/pl.{k}
name/any
  4  NNP/first
  1  NNP/title NNP/last

light/{n}.{k}.{l}
  28 base/{n}.{k}
  2  (NP common/{n}.{k}) PP/part.{k}
light/{n}.{k}.loc
  4  (NP common/{n}.{k}) PP-LOC/place
light/{n}.anim.{l}
  1  (NP common/{n}.anim) (PP (IN from) (NP NNP/city))
light/sg.anim.{l}
  1  (NP NNP/first) (PRN (-LRB- -LRB-) (NP CD/age) (-RRB- -RRB-))
  2  (NP DT/a NN/of.anim) (PP (IN of) NP/light.{l})
  1  (NP DT/a NN/of.anim) (PP (IN of) (NP common/{n}.thing)) PP/part.anim
light/pl.anim.{l}
  1  (NP DT/pl NNS/of.anim) (PP (IN of) NP/light.{l})
light/sg.thing.{l}
  2  (NP DT/a NN/of.thing) (PP (IN of) NP/light.{l})
  2  (NP DT/a NN/about) (PP (IN about) NP/light.{l})
  1  (NP DT/a NN/of.thing) (PP (IN of) (NP common/{n}.anim)) PP/part.thing
light/pl.thing.{l}
  1  (NP DT/pl NNS/of.thing) (PP (IN of) NP/light.{l})
light/pl.{k}.{l}
  3  (NP base/any.{k}) (CC and) (NP base/any.{k})
  1  (NP base/any.{k}) (, ,) (NP base/any.{k}) (CC and) (NP base/any.{k})

heavy/{n}.{k}
  6  (NP common/{n}.{k}) SBAR/{n}.{k}
  1  (NP common/{n}.{k}) (VP VBN/dyn (NP (-NONE- *)) (PP (IN by) (NP-LGS base/any.anim)))
heavy/sg.{k}
  1  (NP DT/a NN/of.{k}) (PP (IN of) NP/heavy)
heavy/pl.{k}
  1  (NP DT/pl NNS/of.{k}) (PP (IN of) NP/heavy)
heavy/sg.anim
  1  (NP (NP DT/a NN/of.anim) (PP (IN of) (NP common/pl.anim))) SBAR/sg.present
heavy/pl.anim
  1  (NP (NP DT/pl NNS/of.anim) (PP (IN of) (NP common/sg.anim))) SBAR/pl.present
SBAR/{n}.anim
  4  (WHNP-# (WP who)) (S (NP-SBJ (-NONE- *T*-#)) VP/{n})
  2  (WHNP-# (WDT that)) (S (NP-SBJ (-NONE- *T*-#)) VP/{n})
  2  (WHNP-# (WDT that)) (S clause/gap)
  2  (WHNP-# (-NONE- 0)) (S clause/gap)
SBAR/{n}.thing
  3  (WHNP-# (WDT that)) (S (NP-SBJ (-NONE- *T*-#)) VP/{n}.thing)
  3  (WHNP-# (WDT that)) (S clause/gap)
  2  (WHNP-# (-NONE- 0)) (S clause/gap)
SBAR/{n}.present
  1  (WHNP-# (WDT that)) (S (NP-SBJ (-NONE- *T*-#)) VP/{n}.present)

PP/part.{k}
  3  (IN with) (NP DT/a JJ/any NN/part.{k})
  1  (IN with) (NP DT/a NN/part.{k})
PP/tool
  3  (IN with) (NP DT/a NN/tool)
  2  (IN with) (NP DT/a JJ/any NN/tool)
  1  (IN with) (NP PRP$/any NN/tool)
PP/place
  4  IN/place (NP (DT the) NN/place)
  1  IN/place (NP (DT the) JJ/any NN/place)
PP/time
  3  (IN on) (NP NNP/day)
  2  (IN in) (NP NNP/month)
  1  (IN at) (NP NN/hour)
"""


def grammar() -> dict[str, list[tuple[int, str]]]:
    """Return the weighted expansions of each category; "root/any" is a whole sentence."""
    rules: dict[str, list[tuple[int, str]]] = {}
    category = ""
    for line in filter(None, _RULES.splitlines()):
        if not line.startswith(" "):
            category = line
            continue
        weight, _, symbols = line.strip().partition(" ")
        placeholders = sorted(set(re.findall(r"\{([a-z])\}", category + symbols)))
        for choice in itertools.product(*(_VALUES[name] for name in placeholders)):
            values = {name: value for each in choice for name, value in each.items()}
            rule = int(weight), symbols.format_map(values)
            rules.setdefault(category.format_map(values), []).append(rule)
    return rules
