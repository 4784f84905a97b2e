"""What is protected, and what ordinary text is not."""

import time

import pytest

from tfm.errors import DataError
from tfm.features.protect.placeholders import placeholders, programs
from tfm.features.protect.step import Protect


def found(text, *patterns, programs=()):
    spans = Protect(patterns, programs=programs).spans(text, "line 1")
    return [text[slice(*span)] for span in spans]


AROUND = [
    *(("", ""), ("Click ", " now."), ("(", ")"), ("„", "“!"), ("你好", "，世界"), ("在", "里")),
    *(("مرحبا ", "، شكرا"), ("ключ: ", ", да"), ("नाम ", "।"), ("e\u0301t ", " 👍🏽")),
]


@pytest.mark.parametrize("row", placeholders(), ids=lambda row: row.name)
def test_each_placeholder_of_the_table_is_found_whole_in_any_sentence(row):
    program = row.programs.split(", ")[0]
    for before, after in AROUND:
        text = f"{before}{row.example}{after}"
        assert found(text, programs=[program]) == [row.example]
        if row.use == "asked" and row.name != "gettext-escape":
            assert found(text) == []


# More of what the programs write; two spaces are between examples.
EXAMPLES = r"""
{$name}  { -brand(case: "x") }  {-brand}  { NUMBER($n, digits: 2) }  { msg.title }  { "" }
{n,plural,=0{none}one{# a}other{# b}}
{ n , select, a {{m, plural, one {{x}} other {# y}}} other {z} }
{n, plural, one {'{' {x}} other {'}'}}  {0,choice,0#none|1#one|1<{0} many}  {n, number, ::percent}
{ $n -> [one] a {x} *[other] b }  {d, date, d MMM}  {n, selectordinal, one {#st} other {#th}}
{{ x | date:'short' }}  {{#if x}}  {{/if}}  {{> part}}  {{- n}}  {{ {a: {b: 1}}.a }}  {{{{raw}}}}
{!$Label.c.Name}  {!IF(a, "b", "c")}  {!! $x !!}  {#if x}  {:else}  {/if}  {@html x}  {if $x > 1}
{%- endif -%}  {% set x = {"a": 1} %}  {# note #}  <% if (a > b) { %>  <%- f('a') %>  <?= $x ?>
%{count}  ${a ? {b: 1} : c}  ${{ github.ref }}  $!{x}  @{/path}  $t(a.b, {"n": {{n}} })  $(^Name)
%<n>.2f  %-10<n>s  %user.name%  %id%  %%FirstName%%  *|END:IF|*  %1$S  %2$*1$d  %I64d  %'d  %(,.2f
%tY  %1$tY  %<tB  %(full name)s  %1$@  %2$#@n@  %1!02d!  %#v  %T  %[1]d  %Ln  %-m  %%=v(@x)=%%
$a->b->c  $env:PATH  *{x}  %r
$user['a']  $user.name  $NAME$  $name$  $INFO[Player.Title]  @:common.title  @:(key)  @.lower:key
{:?}  {:#?}  {:>width$}  {v:{w}.{p}f}  {0,10:N2}  {0,-10}  {d:%d %B %Y}  {a["k"]}  {'a'}  {\an8}
<0/>  <a href="{{u}}">  <size=20>  </Bold>  <NAME>  <@!123>  <:smile:12>  <!here>  </#if>  @+id/x
%dx%d  %sx%s  %d%%d  %d_to_%d_of_%d  %first%%last%  %name%%name%  %value%%  #a-b##c.d#  $$name$$
{{ x ? "a}" : "b" }}  {{ f('{', "}}") }}  [[name]]  [[*page.id]]  %größe%  {w}x{h}  %.1f×%.1f
{1:N2}  {}  {a.b}  %@  %5.2f  #{x}  @TOKEN@  @angular/core  &brand.name;  \C[2]  <1}  [1}  {1]
"""


@pytest.mark.parametrize("example", EXAMPLES.replace("\n", "  ").strip().split("  "))
def test_what_else_programs_write_is_found_whole(example):
    for before, after in AROUND:
        assert found(f"{before}{example}{after}") == [example]


def test_placeholders_of_a_program_that_could_be_ordinary_text_are_found_on_request():
    text = "Hi :name, %1 of [20,*], {x}"
    assert found(text) == ["{x}"]
    assert found(text, programs=["Laravel"]) == [":name", "[20,*]", "{x}"]
    assert found(text, programs=["qt", "laravel"]) == [":name", "%1", "[20,*]", "{x}"]
    assert {"angular", "i18next", "laravel", "qt", "symfony"} <= {*programs()}


FOUND = [
    ("Hello {name}, you have %d mails and %s.", ("{name}", "%d", "%s")),
    ("in {n, number}, not {n, m}", ("{n, number}",)),
    ("$1 and $2", ("$1", "$2")),
    ("see http://x.org/$1 and $1", ("http://x.org/$1", "$1")),
    ("on %Y-%m-%d at %H:%M, %d%% done in %dms", ("%Y-%m-%d", "%H:%M", "%d%%", "%d")),
    ("A <b>x</b>, <0>y</0>.", ("<b>", "</b>", "<0>", "</0>")),
    ("See (https://x.org/a_(b)?q=1&r=2#z).", ("https://x.org/a_(b)?q=1&r=2#z",)),
    ("example.com, www.x.de/{id} or", ("example.com", "www.x.de/{id}")),
    ("de.wikipedia.org/wiki/Köln!", ("de.wikipedia.org/wiki/Köln",)),
    ("Mail bob.smith+x@mail.example.co.uk.", ("bob.smith+x@mail.example.co.uk",)),
    ("Open config.json, ../a/b.txt or", ("config.json", "../a/b.txt")),
    ("/etc/passwd or C:\\Users\\me", ("/etc/passwd", "C:\\Users\\me")),
    ("İlker@örnek.com.tr, ya\u0308r@x.de.", ("İlker@örnek.com.tr", "ya\u0308r@x.de")),
    ("/home/müller/ß.d, /srv/иван.", ("/home/müller/ß.d", "/srv/иван")),
    ("müller.com.tr, x.gov.uk. Y.", ("müller.com.tr", "x.gov.uk")),
    ("快看!https://t.cn/a，!www.x.de", ("https://t.cn/a", "www.x.de")),
    ("/etc/hosts를, a@x.org으로, 请写信给a@x.org。", ("/etc/hosts", "a@x.org", "a@x.org")),
    ("by @torch_dev about #MachineLearning!", ("@torch_dev", "#MachineLearning")),
    ("你好{name}，请访问http://x.org/a，第%d页", ("{name}", "http://x.org/a", "%d")),
    ("%s님%d $id和$no %s的5%折 %Y年%m ไป%sกับ", ("%s", "%d", "$id", "$no", "%s", "%Y", "%m", "%s")),
    ("打开文件config.json。", ("config.json",)),
    ("مرحبا {name}، راجع https://x.org/ar/مقالة.", ("{name}", "https://x.org/ar/مقالة")),
    ("#हिन्दी ve #İstanbul, #U\u0308bung", ("#हिन्दी", "#İstanbul", "#U\u0308bung")),
    ("#话题# 今天", ("#话题#",)),
]


@pytest.mark.parametrize(("text", "spans"), FOUND)
def test_placeholders_addresses_files_and_tags_are_found(text, spans):
    assert found(text) == list(spans)


@pytest.mark.parametrize(
    "part",
    [
        *("{a", "a-", "a.", "/a", "-/a", "a@", "#a", "$a", "<a ", "%-", "http://", "{[a]", "{{"),
        *("1.", "'", "{n, plural, ", "{ $n -> [", "{% ", "{ $", "<% ", "<?", "$(", "*|", "%<"),
        *("@:(", "<a b='", "%a", "{!", "$a->", "<A>", "%%=", "\\", "__MSG_", "{a:{", "'{"),
    ],
)
def test_hostile_text_takes_linear_time(part):
    start = time.process_time()
    found(part * 20_000)
    found("{" + part.strip("{") * 20_000)
    assert time.process_time() - start < 10


@pytest.mark.parametrize(
    "text",
    [
        *("100 % sure", "100% sure, 3.5%", "5 % i.Tr.", "yüzde %5 indirim, %50'si", "50%的人"),
        *("It costs $5, $1.50 or $2.", "$1 million", "US$5, A$AP, Ke$ha", "Cost: 5$/month"),
        *("a.m. and e.g. this, U.S. 3.5", "the end.Then", "Wait...what", "Dr. Smith vs. No. 5"),
        *("and/or", "1/2/3, 30 km/h, he/she", "10:30 - 11:00", "https: //", "C#, C++, F#"),
        *("25 %off, 5\u202f%de réduction", "[[1]] [[a b]] # a # b #", "$$ or $$$, $$5$$"),
        *("50%ige und 100%ige", "100 %ig", "yüzde %1 ile %2", "Oh!no", "!hola amigos!", "R&D;"),
        *(
            "a[1] [sic]",
            "Ke$ha's $5(a)",
            "1:name",
            "10:30",
            "<<bonjour>>",
            "[f]/e/, /kwa/ (x)/Maekawa/Driving",
        ),
        *("#1 fan", "@ home", "x@y", "I <3 you", "a < b and c > d", "{a, b} and {1, 2, 3}"),
    ],
)
def test_ordinary_text_is_not_protected(text):
    assert found(text) == []


SYMBOLS = [
    ("Nice 👍🏽, 👩‍🔬❤️!", ("👍🏽", "👩‍🔬❤️")),
    ("🇩🇪 🏴\U000e0067\U000e007f 2️⃣ #⃣", ("🇩🇪", "🏴\U000e0067\U000e007f", "2️⃣", "#⃣")),
    ("5×3 = 15 at 20°C", ("5×3", "=", "20°C")),
    ("♪ hi♪ Ŝo™ 我❤你 नमस्ते☀", ("♪", "♪", "™", "❤", "☀")),
    # No symbols: letters, marks, digits, and what stands for letters, apostrophes and brackets.
    ("½ ² don´t ß n\u0303 ह\u093f \u2260 =\u0338 ㎞ ≪a≫ 100 %, $5 € ’", ("≠",)),
]


@pytest.mark.parametrize(("text", "symbols"), SYMBOLS)
def test_symbols_that_the_vocabulary_lacks_are_found(text, symbols):
    def spans(lacks):
        return [text[slice(*span)] for span in Protect(lacks=lacks).spans(text, "line 1")]

    assert spans(lambda _: True) == list(symbols)
    assert spans(lambda _: False) == spans(None) == []


def test_patterns_of_the_user_come_first_and_lose_white_space():
    assert found("Nike Air, {x}", r"Nike \w+", r"\s+\{x\}") == ["Nike Air", "{x}"]
    assert found("see http://x.org/a now", "x.org") == ["x.org"]
    assert found("no match of what is empty", "x*") == []


def test_a_pattern_that_never_ends_is_named():
    with pytest.raises(DataError, match=r"line 1: the pattern .* takes more than 1 second"):
        found("a" * 100 + "!", r"(?:(a+)+\1)+$")


def test_the_tag_of_a_model_is_not_protected():
    spans = Protect(tags=lambda: ["<fr>"]).spans("<fr> see {name}", "line 1")
    assert spans == [(9, 15)]
