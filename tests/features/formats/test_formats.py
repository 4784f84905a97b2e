"""Formats: documents with known translations, their marks, and tfm generate --format."""

import random
import re
import time
from html import escape, unescape
from html.parser import HTMLParser
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfm.commands.translator import Translator
from tfm.errors import DataError, UsageError
from tfm.features.documents.step import Sentences
from tfm.features.formats.markup import html_blocks, xml_blocks
from tfm.features.formats.step import Formats
from tfm.features.formats.subtitles import subtitle_blocks
from tfm.folders.model_folder import ModelFolder
from tfm.text.units import units
from tfm.translation import reader
from tfm.translation.chain import Part
from tfm.translation.steps import Output, Segment

# Each word is written as in a document, and has units of its script.
WORDS = (
    *("one", "two", "three", "vier", "fünf", "don't", "café", "cafe\u0301", "türkçe", "x1", "2024"),
    *("سلام", "مرحبا", "שלום", "नमस्ते", "हिन्दी", "สวัสดี", "中文", "翻译"),
    *("👍🏽", "👩\u200d👩\u200d👧", "🇩🇪", "✔\ufe0f"),
    *("R&amp;D", "caf&eacute;", "a&lt;b", "&#x4E2D;x", "&hearts;"),
)
TAGS = ("b", "a href=\"x?y=1&z=2\" class='q'", "i", "span data-x='>'", "EM", "sub")
POINTS = (
    '<img src="a.png">',
    "<!-- b > c -->",
    "<code>x &lt; <b>y</b></code>",
    "<wbr>",
    "<?php 1 ?>",
)
INDENTS = (
    "\n  ",
    " ",
    "\r\n\t",
    "<br>",
    "\n<!-- not this -->\n",
    "<hr class=x>\n",
    "<pre> a  b\n</pre>",
)


# Words, tags and styles of subtitles.
SHOWN = (
    *("A", "man", "word.", "(ok)", "<i>red</i>", "<i>", "</i>", "{\\an8}", "x\\Ny", "é"),
    *("سلام", "👍🏽", "<0:1.5>"),
)


def new_sentence(draw, depth=0, *, points):
    """A list of words, ("tag", children) and points."""
    items = []
    for _ in range(draw.randint(1, 3 if depth else 5)):
        if draw.random() < 0.35 and depth < 3:
            items.append((draw.choice(TAGS), new_sentence(draw, depth + 1, points=points)))
        else:
            items.append(draw.choice(WORDS))
        if points and draw.random() < 0.2:
            items.append([draw.choice(POINTS)])
    return items


def written(items, *, is_reversed=False, translate=lambda word: word):
    """A sentence as it is written in a document; with its elements reversed, and words."""
    texts = []
    for item in items[:: -1 if is_reversed else 1]:
        if isinstance(item, tuple):
            content = written(item[1], is_reversed=is_reversed, translate=translate)
            texts.append(f"<{item[0]}>{content}</{item[0].split()[0]}>")
        else:
            texts.append(item[0] if isinstance(item, list) else translate(item))
    return " ".join(texts)


def word_translation(word):
    return escape("t" + unescape(word), quote=False)


class WordAligner:
    """Aligns the n-th words of sources, or the n-th last ones, with the n-th ones of targets."""

    def __init__(self, *, is_reversed=False):
        self._is_reversed = is_reversed

    def align_units(self, sources, targets):
        found = []
        for source, target in zip(sources, targets, strict=True):
            of_source = self._numbered(source, self._is_reversed)
            of_target = self._numbered(target, False)
            found.append([(a, b) for s, a in of_source for t, b in of_target if s == t])
        return found

    def _numbered(self, text, is_reversed):
        last = len(text.split()) - 1
        numbers = ((text[: span[0]].count(" "), span) for span in units(text))
        return [(last - number if is_reversed else number, span) for number, span in numbers]


def translated(text, form="html", *, is_reversed=False, target="de", translate=None):
    """A document whose sentences have their words translated, perhaps in reverse order."""

    def by_word(sentence):
        return " ".join("t" + word for word in sentence.split()[:: -1 if is_reversed else 1])

    formats = Formats(form, WordAligner(is_reversed=is_reversed))
    part = Part.of([Segment(1, text)], [formats, Sentences("en", target)])
    texts = [(translate or by_word)(segment.source) for segment in part.segments]
    [[best]] = part.finish([[Output(each, -1.0, -2.0, ("x", "</s>"))] for each in texts])
    return best.text


def new_document(draw, *, points):
    """Parts of a document: what is copied, and lists, its sentences."""
    parts = ["<!DOCTYPE html>\n<div\n class=a>"]
    for _ in range(draw.randint(1, 4)):
        parts += [draw.choice(INDENTS), "<p>", new_sentence(draw, points=points), "</p>"]
    return [*parts, "</div>\n"]


def words_of(items):
    """The words of a sentence, without what is copied."""
    for item in items:
        if isinstance(item, tuple):
            yield from words_of(item[1])
        elif isinstance(item, str):
            yield unescape(item)


@pytest.mark.parametrize("is_reversed", [False, True])
def test_documents_have_their_known_translations(is_reversed):
    for seed in range(200):
        parts = new_document(random.Random(seed), points=not is_reversed)
        sentences = [part for part in parts if isinstance(part, list)]
        translations = [
            written(each, is_reversed=is_reversed, translate=word_translation)
            if any(map(str.isalpha, "".join(words_of(each))))
            else written(each)
            for each in sentences
        ]
        document, expected = (
            "".join(next(texts) if isinstance(part, list) else part for part in parts)
            for texts in (map(written, sentences), iter(translations))
        )
        assert translated(document, is_reversed=is_reversed) == expected


@pytest.mark.parametrize(
    ("form", "text", "expected"),
    [
        (
            "xml",
            "<?xml version='1.0' encoding='ISO-8859-1'?>",
            "<?xml version='1.0' encoding='UTF-8'?>",
        ),
        (
            "xml",
            '<?xml version="1.0" encoding="utf-8" ?>',
            '<?xml version="1.0" encoding="utf-8" ?>',
        ),
        ("html", "<META charset=windows-1252>", "<META charset=UTF-8>"),
        (
            "html",
            '<meta http-equiv="Content-Type" content="text/html; charset=gb2312">',
            '<meta http-equiv="Content-Type" content="text/html; charset=UTF-8">',
        ),
    ],
)
def test_a_document_declares_the_encoding_in_which_it_is_written(form, text, expected):
    assert translated(f"{text}\n<p>one</p>\n", form) == f"{expected}\n<p>tone</p>\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<p>H<sub>2</sub>O is 10 m<sup>2</sup></p>", "<p>m<sup>2</sup> 10 is H<sub>2</sub>O</p>"),
        ("<p>a, <b>x<i>y</i></b></p>", "<p><b>x<i>y</i></b> a,</p>"),
        ("<p>a <b>x</b>y<b>z</b> b</p>", "<p>b <b>x</b>y<b>z</b> a</p>"),
    ],
)
def test_an_element_within_a_word_stays_there_if_the_translation_has_it(text, expected):
    def in_reverse(sentence):
        return " ".join(sentence.split()[::-1])

    assert translated(text, is_reversed=True, translate=in_reverse) == expected


class _Tags(HTMLParser):
    """The tags of a document, each with its attributes, as another program reads them."""

    def __init__(self):
        super().__init__()
        self.found, self.open, self.num_wrong = [], [], 0

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, *attrs))
        if tag not in ("img", "wbr", "hr", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        self.num_wrong += not (self.open and self.open.pop() == tag)
        self.found.append(("/", tag))

    def handle_comment(self, data):
        self.found.append(("!", data))

    handle_pi = handle_decl = handle_comment


def tags_of(document):
    parser = _Tags()
    parser.feed(document)
    parser.close()
    return parser


def violations(parts, output):
    """Which rules the translation of a document breaks."""
    document = "".join(written(part) if isinstance(part, list) else part for part in parts)
    before, after = tags_of(document), tags_of(output)
    kept = "".join("(?:.*)" if isinstance(p, list) else re.escape(p) for p in parts)
    copied = ("<code>x &lt; <b>y</b></code>", "<?php 1 ?>")
    return {
        "a tag not once": sorted(map(str, before.found)) != sorted(map(str, after.found)),
        "tags not nested": bool(after.num_wrong or after.open),
        "bytes changed": re.fullmatch(kept, output) is None
        or any(document.count(text) != output.count(text) for text in copied),
    }


def test_a_model_keeps_every_tag_once_and_nested(trained_run):
    translator = Translator.load(trained_run, device="cpu")
    for seed in range(20):
        parts = new_document(random.Random(seed), points=True)
        document = "".join(written(part) if isinstance(part, list) else part for part in parts)
        found = translator.translate_text(document, format="html", max_extra_length=5)
        assert not any(violations(parts, found).values()), (document, found)


MARKUP = st.text(alphabet="<>/=\"'& ab;!-?[]\n中", max_size=60)
PARTS = st.sampled_from(["<b>", "</b>", "<p>", "</p>", "<i a=", "<!--", "-->", "<code>", "</code>"])


@given(st.lists(MARKUP | PARTS, max_size=12).map("".join), st.sampled_from(["html", "xml"]))
def test_any_text_keeps_its_tags(text, form):
    found = translated(text, form)
    pattern = r"<(?:/?[a-z]|!--|\?)[^<>]*>"
    assert sorted(re.findall(pattern, found)) == sorted(re.findall(pattern, text))
    if not any(map(str.isalpha, re.sub(r"<[a-z/!?][^<>]*>", "", text))):
        assert found == text


def marked(template):
    """Return a document and its translation: «words» get a t, and ‹before|after› is written."""
    before, after = (re.sub(r"(?s)‹([^|]*)\|(.*?)›", each, template) for each in (r"\1", r"\2"))
    words = re.compile(r"(?<!\S)(?=\S)")
    return re.sub("[«»]", "", before), re.sub(
        "(?s)«(.*?)»", lambda found: words.sub("t", found[1]), after
    )


HTML = (
    "<p>«One» <b>«two»",
    "<p>«One»</b> «two»</i>",
    "<b>«One» <i>«two»</b> «three»</i>",
    "«One» <b x",
    "«One.» <!-- two",
    "«One.» <!-- <p>two</p>",
    "<?xml:namespace prefix = o /><p>«one»</p><?php if ($a > 1) { ?>«two»",
    "<b>«One two. Three»</b> «four»",
    "«One» <b>«two. Three four»",
    "‹un<b>believ</b>able|<b>tunbelievable</b>› <i></i>«x»",
    "«One»‹<b> two </b>three| <b>ttwo</b> tthree›",
    "«Press»‹|.› <kbd>F1</kbd>‹.|›",
    "«&lt;b&gt; &amp; ‹&|&amp;›xyz; x»",
    "«a ‹<|&lt;› b ‹&|&amp;› c»",
    "«a»&#1;&#xB;&#xFFFE; &#0; &#xD800; &#x110000; &#99999999999; ‹&#x80;b|t€b›",
    "<p translate=no>one <b translate=yes>«two»</b> x <svg translate=''>«y»</svg>",
    "12&nbsp;&euro; <b>&mdash;</b>",
    '<img alt="«a &quot;b»" src="one">',
    '<img alt=‹dog|"tdog"›><img alt="" title=\'«it&#39;s»\'>',
    "«one» <img alt='«two»‹ &#1; | ›«x»'> «three»",
    '<a\n\taria-label = "«one»"\n>«two»</a>',
    "<p class='a notranslate'>one<p>«two»",
    "«Two» <b class=notranslate>a <i class=translate>«c» <b title='«one»'>«d»</b></i></b> «e»",
    "«x» <kbd>a<b translate=yes>«b» <kbd>c <i class=translate>«d»</i></kbd> «e»</b></kbd> «f»",
    '<input value="«one»" type=Submit><input type=text value=two><optgroup label="«one»">',
    "<meta content='«one»' name=description><meta name=keywords content=one>«x»",
    "<div translate=no><div>one</div>two</div>«three»",
    "<a href=x>#<b>two</b></a> <a><i>@</i>a.b</a> «one»",
    "«one» <A><s>https://</s>a.example?b&amp;c</A> «two»",
    "<a>«#1 two»</a> <a>«@two three»</a>",
    "<script>if (a<b) '</b>'</script>«one»",
    "<textarea><p>one</textarea><title>«two»</title>",
    "«one»<br>«two»<table><tr><td>«three»",
    "\ufeff<P>«one‹\r\n  | ›two»</P >\r\n",
)
XML = (
    "<r><a>«one»</a><a>«two»</a></r>",
    "<p>«one» <Ref/> <b>«two»</b></p>",
    "<p>«one» <l><i>«two»</i><i>«x»</i></l></p>",
    "<p>«one» &own; ‹&eacute;t|tét›</p>",
    '<!DOCTYPE r [<!ENTITY a "&b;&b;">]><r>&a;</r>',
    '<!DOCTYPE r [<!ENTITY a SYSTEM "/etc/passwd"> <!ENTITY b "&a;&a;">]><r>«one» &b;</r>',
    "<r><![CDATA[one <b>]]></r>",
    "<r its:translate='no'>one</r>",
    "<r>«one»<br/>«Two»<lb></lb>«x»</r>",
    "<r>«a» &#1; &#150; &#xFFFF;«b»</r>",
    "<日本 title='x'>«one»</日本>",
)


@pytest.mark.parametrize(
    ("form", "template"), [*(("html", each) for each in HTML), *(("xml", each) for each in XML)]
)
def test_parts_of_documents_are_translated_or_copied(form, template):
    document, expected = marked(template)
    assert translated(document, form) == expected


# Documents in dialects of XML.
DIALECTS = r"""<?xml version="1.0"?>
<xliff version="1.2"><file original="a"><header><note>keep</note></header><body>
  <trans-unit id="1">
    <source>One <g id="1">red</g> <ph id="2">&lt;br&gt;</ph>R&amp;D</source>‹|
    <target>«One» <g id="1">«red»</g> <ph id="2">&lt;br&gt;</ph>«R&amp;D»</target>›
  </trans-unit>
  <trans-unit id="2" xml:space="preserve"><source>One
two</source>‹<target/>|<target>«One
two»</target>›</trans-unit>
  <trans-unit id="3"><source>One</source><target state="translated">Eins</target></trans-unit>
  <trans-unit id="10" approved="yes"><source>OK</source><target>OK</target></trans-unit>
  <trans-unit id="4" translate="no"><source>One</source><target></target></trans-unit>
  <trans-unit id="5"><source>One</source><target>«One»</target>
    <alt-trans><source>One</source><target></target></alt-trans></trans-unit>
  <trans-unit id="6"><source>A. B.</source><seg-source><mrk mtype="seg">A.</mrk>
  <mrk mtype="seg">B.</mrk></seg-source>‹|<target><mrk mtype="seg">«A.»</mrk>
  <mrk mtype="seg">«B.»</mrk></target>›</trans-unit>
  <trans-unit id="7"><source>A. B.</source><seg-source><mrk mtype="seg">A.</mrk></seg-source
  ><target>‹<mrk mtype="seg"/>|<mrk mtype="seg">«A.»</mrk>›</target></trans-unit>
  <trans-unit id="8"><source>One</source><target>‹<!-- x --><![CDATA[ ]]>|«One»›</target
  ></trans-unit>
  <trans-unit id="9"><source>One</source><target state="needs-l10n">‹Ein|«One»›</target>
  </trans-unit></body></file></xliff>
%%
<x:xliff xmlns:x="urn:oasis:names:tc:xliff:document:2.0" version="2.0"><x:file id="f">
<x:unit id="u"><x:notes><x:note>keep</x:note></x:notes><x:segment
><x:source>A <x:pc id="1">b</x:pc> <x:mrk
id="m" translate="no">c</x:mrk></x:source>‹|<x:target>«A» <x:pc id="1">«b»</x:pc> <x:mrk
id="m" translate="no">c</x:mrk></x:target>›</x:segment><x:segment state="initial"><x:source
>One</x:source><x:target>‹Ein|«One»›</x:target></x:segment><x:segment state="final"><x:source>One
</x:source><x:target>Eins</x:target></x:segment></x:unit></x:file></x:xliff>
%%
<!DOCTYPE TS><TS version="2.1"><context><name>Main</name><message numerus="yes">
<source>%n "x"</source><comment>keep</comment><translation type="unfinished"
><numerusform>‹|«%n "x"»›</numerusform><numerusform>‹|«%n "x"»›</numerusform>
</translation></message><message><source>One
two</source><translation type="unfinished">‹|«One
two»›</translation></message><message><source>One</source><translation>Eins</translation></message>
<message><source>OK</source><translation>OK</translation></message>
<message numerus="yes"><source>One</source><translation
>‹|<numerusform>«One»</numerusform>›</translation></message><message numerus="yes"><source>One
</source>‹|<translation type="unfinished"><numerusform>«One»
</numerusform></translation>›</message><message><source>One</source><translation
type="vanished"></translation></message><message>
<source>&lt;p&gt;One
&lt;b&gt;two&lt;/b&gt; R&amp;amp;D&lt;/p&gt;</source>
‹<translation type="unfinished"/>|<translation type="unfinished">&lt;p&gt;«One»
&lt;b&gt;«two»&lt;/b&gt; «R&amp;amp;D»&lt;/p&gt;</translation>›</message><message
><source>x</source>‹|<translation type="unfinished">«x»</translation>›</message></context></TS>
%%
<resources xmlns:xliff="urn:x"><skip/><bool name="b">true</bool>
<string name="a" translatable="false">One</string>
<string name="b">«It\'s a \"b\"»\n«Two &lt;» \u0001</string><string name="c">@string/a</string>
<string name="d">"«It‹'|\'›s»" <b>«one»</b> <xliff:g id="n">%1$s x</xliff:g> «day»</string>
<string-array name="e"><item>«One»</item><item>?android:attr/x</item></string-array>
<plurals name="f"><item quantity="one">«day»</item></plurals>
<string name="g"><![CDATA[<a href=\"x\">«Don\'t»</a> «R‹&|&amp;›D»]]></string>
<string name="h"><![CDATA[«R&D»]]></string>
<style name="s"><item name="x">bold</item></style></resources>
%%
<root><metadata name="m"><value>7, 7</value></metadata>
<xsd:schema xmlns:xsd="http://www.w3.org/2001/XMLSchema" id="root"/>
<resheader name="a"><value>text</value></resheader><data name="A" xml:space="preserve"><value>«One
two»</value><comment>keep</comment></data><data name="B" type="ResXFileRef, x">
<value>a;b</value></data><data name="C" mimetype="application/x"><value>AAEA</value></data></root>
%%
<plist version="1.0"><dict><key>a key</key><string>«One»</string><key>CFBundleIdentifier</key>
<string>org.x.app</string><key>CFBundleDisplayName</key><string>«App»</string><key>UIOne</key><array>
<string>x</string></array><key>n</key><array><string>«two»</string><integer>3</integer></array><key>v</key>
<string>$(VERSION)</string><key>Type</key><string>PSTitle</string><key>Title</key><string>«x»</string>
<key>Key</key><string>a b</string><key>DefaultValue</key><string>c</string></dict></plist>
%%
<rss xmlns:content="c" version="2.0"><channel><title>«News &amp; more»</title><link>http://x</link>
<pubDate>Mon</pubDate><item><title>«One»</title><guid>abc</guid><category>c</category><description>
&lt;p&gt;«One»&lt;br/&gt;«two &amp;lt;»&lt;/p&gt;</description>
<description>&lt;p>«One»&#x3C;/p&#62;&amp;nbsp;&lt;b title="a > b">«x»&lt;/b>
&lt;pre>a &lt;i>b&lt;/i>&lt;/pre> «two»&lt;br/>
&lt;div translate=no>a &lt;div>b&lt;/div> c&lt;/div></description>
<content:encoded><![CDATA[<p>«One» <i>«two»</i> <code>a <b>b</b></code></p>]]>
</content:encoded></item></channel></rss>
%%
<feed xmlns="http://www.w3.org/2005/Atom"><title>«One»</title><id>urn:x</id><author><name>Bob</name></author>
<entry><content type="xhtml"><div><p>«One» <b>«two»</b></p><p>«x»</p></div></content>
<content type="application/json">{"a": "b"}</content></entry></feed>
%%
<svg xmlns="http://www.w3.org/2000/svg"><style>a{b:c}</style><text>«One» <tspan>«two»</tspan></text>
<script>alert()</script></svg>
%%
<article xmlns="http://docbook.org/ns/docbook"><para>«Use» <code>ls a</code> «now»</para>
<screen>ls</screen></article>
%%
<topic id="a"><title>«One»</title><prolog><author>Bob</author></prolog><body>
<p>«Use» <codeph>ls a</codeph> «now»</p><codeblock>ls</codeblock></body></topic>
"""


@pytest.mark.parametrize("template", DIALECTS.split("%%\n"))
def test_dialects_of_xml_keep_what_is_no_text(template):
    for seed in range(20):
        draw = random.Random(seed)
        text = template
        for word in ("One", "two", "day") if seed else ():
            text = re.sub(rf"\b{word}\b", draw.choice(WORDS[11:18]), text)
        document, expected = marked(text)
        if draw.random() < 0.5:
            document, expected = (each.replace("\n", "\r\n") for each in (document, expected))
        assert translated(document, "xml") == expected
        assert len(ET.fromstring(expected.strip()))
    [sentence] = xml_blocks('<resources><string name="a">One <b>two</b>.</string></resources>')[1]
    assert sentence.text == "One two."


@pytest.mark.parametrize(
    ("head", "name"),
    [
        ("<tmx version='1.4'>", "TMX"),
        ("<martif type='TBX'>", "TBX"),
        ("<html xmlns='http://www.w3.org/1999/xhtml'>", "--format html"),
        ("<tt xmlns='http://www.w3.org/ns/ttml'>", "TTML"),
        ("<fcpxml>", "Final Cut"),
        ("<math>", "MathML"),
        ("<project><modelVersion>4.0.0</modelVersion>", "Maven"),
        ("<w:document xmlns:w='http://schemas.openxmlformats.org/w'>", "office"),
        ("<package xmlns='http://www.idpf.org/2007/opf'><metadata>", "EPUB.*--format html"),
        ("<opml version='2.0'>", "OPML"),
        ("<component type='desktop-application'><id>", "AppStream.*po"),
        ("<article dtd-version='1.2'><front>", "JATS"),
        ("<!DOCTYPE properties SYSTEM 'http://java.sun.com/dtd/properties.dtd'>", "Java"),
    ],
)
def test_other_dialects_are_refused_by_name(head, name):
    with pytest.raises(DataError, match=name):
        translated(head + "one", "xml")


SUBTITLES = """\
1
00:00:01,000 --> 00:00:02,000 X1:1
«I am buying» <i>«a red»</i>
«hat and»

3
00:00:02,500 --> 00:00:04,000
{\\an8}<b>«seven»</b> «cars.»
- «Yes & no <3»
- «Dr. Who»

00:00:05.000 --> 00:00:06.000
«♪ La la ♪»
4
00:00:07,000 --> 00:00:08,000
2024

x
00:00:09,0x0 --> 00:00:10,000
damaged
"""


def test_the_reading_of_ruby_characters_is_copied():
    document, expected = marked("<p>«seven» <ruby>«cars»<rt>x</rt></ruby> «red»</p>")
    assert translated(document, "html") == expected


@pytest.mark.parametrize("start", ["", "\ufeff"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_sentences_of_subtitles_are_cut_where_cues_end(start, end, capsys):
    document, expected = marked(start + SUBTITLES.replace("\n", end))
    assert translated(document, "srt") == expected
    assert "1 damaged times is copied: line 19" in capsys.readouterr().err


@pytest.mark.parametrize(
    "cues",
    [
        ["{\\an8}«I am»\\N«so»", "{\\an8}«tired.»"],
        ["«I am»‹| ›<br>«so»", "«tired.»"],
        [" \n«a»", "«a»\n ", "«a»\n«c d»", "«c d»\n«e.»"],
        ["\n«one two»", "«a»\n\n«b»", "«c»"],
        ["<c>«a»</c>‹| ›<0:01.5><c>‹ |›«b»</c>", "«a b»\n«c»"],
    ],
)
def test_lines_of_cues_are_read_as_players_show_them(cues):
    document, expected = marked(
        "".join(f"{n}\n0:0:{n},0 --> 0:0:{n},9\n{each}\n\n" for n, each in enumerate(cues))
    )
    assert translated(document, "srt") == expected
    [chinese] = subtitle_blocks("0:0:1,0 --> 0:0:2,0\n我在\n这里，\nis 看\n中文")
    assert chinese.text == "我在这里， is 看中文"


def test_webvtt_has_notes_styles_and_references():
    document, expected = marked(
        "WEBVTT\n\nNOTE one\ntwo\n\nSTYLE\n::cue {}\n\nintro\n00:01.000 --> 00:02.000 align:end\n"
        "<v Bob>«one &lt;two» <00:01.500><c>«three»‹\n</c>|</c>\n›«four»\n\nNOTE five\n"
    )
    assert translated(document, "srt") == expected


def new_subtitles(draw, *, repeats=True):
    """Subtitles: lines of text with all that programs write among them."""
    line_end, is_webvtt = draw.choice(["\n", "\n", "\r\n"]), draw.random() < 0.3
    lines, last = ["WEBVTT", ""] * is_webvtt, []
    for number in range(1, draw.randint(2, 8)):
        shown = [
            " ".join(
                [*draw.choices(SHOWN, k=draw.randint(1, 4)), *[f"n{number}{n}"] * (not repeats)]
            )
            for n in range(draw.randint(0, 3))
        ]
        if repeats and draw.random() < 0.3:
            shown = last[-1:] + shown
        last = [line for line in shown if line]
        inner = [
            each
            for line in shown
            for each in (*[draw.choice(["", " "])] * (draw.random() < 0.15), line)
        ]
        lines += [
            str(number),
            f"0:0:{number},0 --> 0:0:{number + 1},0".replace(",", "." if is_webvtt else ","),
        ]
        lines += [*inner, *[""] * draw.randint(1, 2)]
    text = draw.choice(["", "\ufeff"]) + line_end.join(lines)
    return text if draw.random() < 0.5 else text.rstrip()


def cues_of(text):
    """What is before the cues of subtitles; the times, lines and end of each, as in a player."""
    parts = re.split(r"((?:^\ufeff?|(?<=\n))\d+\r?\n0:0:.* --> .*)", text)
    return parts[0], [
        (times, body.split("\n"), re.search(r"\s*$", body)[0].count("\n"))
        for times, body in zip(parts[1::2], parts[2::2], strict=True)
    ]


@pytest.mark.parametrize("translate", [
    lambda text: " ".join("t" + word for word in text.split()),
    lambda text: "tx ty.",
    lambda text: "tx",
    lambda text: "翻译。",
    lambda text: " ".join("t" + word for word in text.split() * 2),
])  # fmt: skip
def test_subtitles_keep_their_cues_and_blank_lines(translate):
    for seed in range(400):
        repeats = seed % 2 > 0
        text = new_subtitles(random.Random(seed), repeats=repeats)
        output = translated(text, "srt", translate=translate)
        (start, before), (new_start, after) = cues_of(text), cues_of(output)
        assert (start, len(before)) == (new_start, len(after))
        for (times, old, end), (new_times, new, new_end) in zip(before, after, strict=True):
            assert (times, end) == (new_times, new_end), (text, output)
            blank, new_blank = (sum(not line.strip() for line in lines) for lines in (old, new))
            assert new_blank <= blank, (text, output)
            words, new_words = (
                re.sub(r"<[^>]*>|\{.*?\}|\\N", " ", "\n".join(lines)).split()
                for lines in (old, new)
            )
            assert bool(words) == bool(new_words), (text, output)
            assert repeats or "".join(old).count("<0:") == "".join(new).count("<0:"), (text, output)
            letters = [word for word in new_words if any(map(str.isalpha, word))]
            assert all(word[0] in "t翻译" for word in letters), (text, output)
            assert len(new) <= len(old)
            assert new_words != [f"t{word}" for word in words] or len(new) == len(old)


@pytest.mark.parametrize("is_reversed", [False, True])
@pytest.mark.parametrize("size", [1, 3, 7, 30])
def test_lines_keep_their_tags_balanced(size, is_reversed):
    for seed in range(100):
        draw, text = random.Random(seed), ""
        for number in range(draw.randint(2, 8)):
            line = written(new_sentence(draw, points=False)).replace("'>'", "x")
            times = f"\n{number}\n0:0:{number},0 --> 0:0:{number},9\n" * (draw.random() < 0.6)
            text += times + draw.choice(["<i>{}</i>\n", "<v Ann>{}</v>\n", "{}\n"]).format(line)
        output = translated(
            "0:0:0,0 --> 0:0:0,9\n" + text,
            "srt",
            is_reversed=is_reversed,
            translate=lambda _: "tx " * size + ".",
        )
        for line in output.split("\n"):
            tags = tags_of(line)
            assert (tags.num_wrong, tags.open) == (0, []), (text, output)


@pytest.mark.parametrize(
    "cues",
    [
        ["<i>«one two»</i>\n<i>«three four five six.»</i>"],
        ["{\\i1}«one two»{\\i0}\n{\\i1}«three four five six.»{\\i0}"],
        ["«one» <i>«two three four five»</i>", "<i>«six»</i>\n«seven.»"],
        ["<v Ann>«one two»</v>\n<v Bob>«three four five six.»</v>"],
    ],
)
def test_a_line_ends_where_one_tag_closes_and_another_opens(cues):
    document, expected = marked(
        "".join(f"{n}\n0:0:{n},0 --> 0:0:{n},9\n{each}\n\n" for n, each in enumerate(cues))
    )
    assert translated(document, "srt") == expected


def test_text_without_times_is_no_subtitles():
    with pytest.raises(DataError, match="no subtitles"):
        translated("One two.\n", "srt")
    assert translated("\n", "srt") == "\n"


def test_languages_without_spaces_between_sentences_have_none():
    text = "<p>One. <b>Two. Three</b>\n Four. &nbsp;Five.</p>"
    found = translated(text, target="zh", translate=lambda sentence: f"{sentence[0]}。")
    assert found == "<p>O。<b>T。T。</b>&nbsp;F。</p>"


@pytest.mark.parametrize(
    "unit",
    ["<b>", "<b>x ", "</b>", "<!--", "<a b='", "&amp", "<!DOCTYPE [", "{\\an8}", "\n<i>", "]]>"],
)
def test_reading_takes_linear_time(unit):
    text = "1\n00:00:01,000 --> 00:00:02,000\nword " + unit * (50_000 // len(unit)) + " end."
    start = time.process_time()
    for form in ("html", "xml", "srt"):
        assert "word" in translated(text, form)
    assert time.process_time() - start < 30


@pytest.mark.parametrize(
    ("form", "start", "unit"),
    [
        *((form, "", unit) for form in ("html", "xml") for unit in (
            "<!--x>", "<![CDATA[x>", "<!DOCTYPE [x>", "<?php x>", "<?x>", "<a b='x>", "<b><i></b>",
        )),
        ("html", "", "<p>x <img alt=x>. "),
        ("srt", "", "<a"),
        ("srt", "", "a"),
        ("srt", "<", "a"),
        ("srt", "<", "1:"),
        ("srt", "", ")"),
        ("srt", "", "! "),
    ],
)  # fmt: skip
def test_damaged_markup_is_read_in_linear_time(form, start, unit):
    cue = "00:00:01,000 --> 00:00:02,000\n" if form == "srt" else ""
    text = f"{cue}word {start}{unit * (400_000 // len(unit))}\n\n{cue}end"
    started = time.process_time()
    if form == "xml":
        [first, *_] = xml_blocks(text)[1]
    else:
        [first, *_] = html_blocks(text)[1] if form == "html" else subtitle_blocks(text)
    assert first.text.startswith("word")
    assert time.process_time() - started < 20


@pytest.mark.parametrize("text", ["One.\n<!-- two>", "One.\n<p <b", "One.\n<![CDATA[ two>"])
def test_markup_without_an_end_is_named(text, capsys):
    assert translated(text, "xml") == f"tOne.{text[4:]}"
    expected = "warning: a tag in line 2 has no end: the text from there on is copied\n"
    assert expected in capsys.readouterr().err


@pytest.mark.parametrize("form", ["html", "xml"])
def test_deep_nesting_is_kept(form):
    size = 50_000
    text = "<p>" + "<b>" * size + "one" + "</b>" * size + "</p>"
    assert translated(text, form) == text.replace("one", "tone")


@pytest.mark.parametrize(
    "number", ["", "7\n", "-1\n", "1\n1\n", "\u0662\n", "1.5\n", "1\t\n", "\n\n"]
)
def test_subtitles_need_no_numbers(number):
    text = f"{number}00:00:01,000 --> 00:00:02,000\none\n\n{number}0:0:3,0 --> 0:0:4,0\ntwo\n"
    assert translated(text, "srt") == text.replace("one", "tone").replace("two", "ttwo")


def test_a_sentence_with_too_many_tags_is_copied(capsys):
    text = "One " + "<b>x</b> " * 200 + "two.\n<p>three"
    assert translated(text) == text.replace("three", "tthree")
    assert "1 sentences with more than 300 tags are copied" in capsys.readouterr().err


def test_the_command_and_python_translate_alike(run, trained_run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    document = "\ufeff<p>On <b>Monday</b>.\r\n I am!</p>\n<p class=notranslate>seven"
    (tmp_path / "in").write_bytes(document.encode())
    settings = {"max_extra_length": 3}
    translator = Translator.load(trained_run, device="cpu")
    expected = translator.translate_text(document, format="html", **settings)
    first, second = translator.translate(["On Monday.", "I am!"], **settings)
    assert re.sub("</?b>", "", expected) == (
        f"\ufeff<p>{first}\r\n {second}</p>\n<p class=notranslate>seven"
    )
    assert translator.translate_text("On Monday. I am!\n\n") == (
        " ".join(translator.translate(["On Monday.", "I am!"])) + "\n\n"
    )
    command = ("generate", trained_run, "--device", "cpu", "--input", "in", "--format", "html")
    code, out, err = run(*command, "--max-extra-length", 3)
    assert (code, out) == (0, expected), err
    assert run(*command, "--max-extra-length", 3, "--output", "out")[0] == 0
    assert (tmp_path / "out").read_bytes().decode() == expected


def test_the_search_and_the_aligner_share_the_weights(run, trained_run, tmp_path, monkeypatch):
    (tmp_path / "in").write_text("<p>On <b>Monday</b>.</p>")
    loaded = []
    arrays = ModelFolder.arrays
    monkeypatch.setattr(ModelFolder, "arrays", lambda self: loaded.append(self) or arrays(self))
    flags = ["--device", "cpu", "--format", "html", "--max-extra-length", 3]
    code, out, _ = run("generate", trained_run, "--input", tmp_path / "in", *flags)
    assert (code, out.count("<b>"), len(loaded)) == (0, 1, 1)


def test_the_format_text_is_another_name_of_document(run, trained_run, tmp_path):
    path = tmp_path / "in"
    path.write_text(" On Monday. I am!\n\n- seven")
    command = ("generate", trained_run, "--device", "cpu", "--input", path)
    outputs = [run(*command, *flags) for flags in (["--document"], ["--format", "text"])]
    assert outputs[0][:2] == outputs[1][:2]
    assert outputs[0][1].startswith(" ")


@pytest.mark.parametrize(
    ("content", "flags", "mistake"),
    [
        (b"<p>seven", ["--format", "html", "--json"], "format and --json exclude each other"),
        (b"<p>seven", ["--format", "html", "--align-reverse", "MODEL"], "needs a model from de"),
        (b"seven", ["--format", "srt"], "has no subtitles"),
        (b"<p>\xff", ["--format", "xml"], "line 1 is not UTF-8"),
        (b"<p>\n" * 3, ["--format", "html"], "has more than 0 MiB: divide it"),
    ],
)
def test_mistakes_are_one_line(run, trained_run, tmp_path, monkeypatch, content, flags, mistake):
    monkeypatch.setattr(reader, "MAX_DOCUMENT_BYTES", 10)
    (tmp_path / "in").write_bytes(content)
    flags = [str(trained_run) if flag == "MODEL" else flag for flag in flags]
    code, out, err = run("generate", trained_run, "--input", tmp_path / "in", *flags)
    assert code in (1, 2)
    assert out == ""
    assert mistake in err.splitlines()[-1]


def test_only_loaded_translators_read_texts_of_any_length(trained_run, make_model):
    loaded = Translator.load(trained_run, device="cpu")
    translator = Translator.of(loaded.engine, loaded.vocabulary)
    with pytest.raises(UsageError, match=r"Translator\.load"):
        translator.translate_text("<p>seven", format="html")
    copied = "<!-- " + "long " * 10_000 + "-->"
    assert loaded.translate_text(copied, format="html") == copied
    with pytest.raises(UsageError, match="format"):
        loaded.translate_text("seven", format="tex")
    parser = Translator.load(make_model(task="parsing"), device="cpu")
    with pytest.raises(UsageError, match="parser"):
        parser.translate_text("seven")
