"""Dialects of XML: which elements have text, and where the translation goes.

Start tags are matched as `data name="x" type="y" `: without the prefix of the namespace, with
single spaces and double quotes, and with a space at the end.
"""

import re
from dataclasses import dataclass

from tfm.errors import DataError
from tfm.features.formats.characters import XML, Syntax

ALL = ".*"


@dataclass(frozen=True, kw_only=True)
class Dialect:
    """A dialect of XML; its patterns are regular expressions."""

    # Matches three lines: the document type, "<" and the start tag of the root, and the start tag
    # of its first child.
    head: str = ""
    text: str = ALL  # PARENT/NAME of the elements whose text is translated
    copied: str = "(?!)"  # "KEY:", the start tag, ">" and the text after it, of copied elements
    key: str = ""  # the name of elements whose text is the key of the next one
    inline: str = "(?!)"  # start tags of elements within sentences, besides those beside text
    target: str = ""  # PARENT/NAME of the elements for translations; none if in place
    inserted: str = ""  # the start tag of a target that is missing
    # Start tags of units, and the element of a plural form in their targets.
    plural: tuple[str, str] = ("(?!)", "")
    syntax: Syntax = XML
    keeps_lines: bool = False  # whether a line break ends a sentence


_OTHER = Dialect()
_DOCBOOK_CODE = (
    "classname|code|command|computeroutput|envar|filename|function|literal|literallayout|markup|"
    "option|parameter|programlisting|replaceable|screen|synopsis|systemitem|type|userinput|varname"
)
_DITA_CODE = (
    "apiname|cmdname|codeblock|codeph|data|draft-comment|filepath|option|parmname|prolog|screen|"
    "systemoutput|userinput|varname"
)
# Apple's keys of names and settings, without the keys of names that users read.
_APPLE_SETTING = (
    r"(?!CFBundle(?:Display|Spoken)?Name:|CFBundleGetInfoString:|NSHumanReadableCopyright:"
    r"|NS\w+UsageDescription:|NSStringLocalizedFormatKey:)(?:(?:CF|DT|LS|MK|NS|UI|UT)[A-Z]\w+"
    r"|Type|Key|DefaultValue|(?:True|False)?Values?|File|StringsTable|(?:Keyboard|Auto\w+)Type):"
)

_DIALECTS = {
    "XLIFF": Dialect(
        head="<xliff ",
        text="(?:trans-unit|segment)/(?:seg-)?source",
        copied='(?:ph|bpt|ept|it) |mrk [^>]*mtype="protected"',
        inline='(?!mrk [^>]*mtype="seg").*',
        target="(?:trans-unit|segment)/target",
        inserted="target",
    ),
    "Qt Linguist": Dialect(
        head="<TS ",
        text="message/source",
        copied='translation [^>]*type="(?:vanished|obsolete)"',
        inline=ALL,
        target="message/translation|translation/numerusform",
        inserted='translation type="unfinished"',
        plural=('message [^>]*numerus="yes"', "numerusform"),
        keeps_lines=True,
    ),
    "Android resources": Dialect(
        head="<resources ",
        text="resources/string|(?:string-array|plurals)/item",
        copied=r'\S+ [^>]*translatable="false"|g |'
        r"[^>]*>\s*[@?](?:null|(?:\+|[\w.]+:)?\w+/[\w.]+)\s*$",
        inline=ALL,
        syntax=Syntax("xml", has_backslashes=True),
    ),
    ".resx": Dialect(
        head=r'<root .*\n(?:schema|resheader|assembly|(?:meta)?data [^>]*name=".*) ',
        text="data/value",
        copied='data [^>]*(?:mimetype="|type="(?!System.String)|name="(?:>>|&gt;&gt;))',
        keeps_lines=True,
    ),
    "plist": Dialect(
        head="<plist ",
        text=".*/string",
        key="key",
        copied=_APPLE_SETTING + r"|[^>]*>\s*(?:\$[({]\w+[)}]|%#@\w+@)\s*$",
        keeps_lines=True,
    ),
    "RSS or Atom": Dialect(
        head="<rss |<feed .*w3.org/2005/Atom|<RDF .*purl.org/rss",
        text="entry/content|.*/(?:title|description|subtitle|summary|encoded)",
        copied=r'content [^>]*(?i:type="(?!text[/"]|x?html"))',
    ),
    "SVG": Dialect(head="<svg ", text=".*/(?:text|title|desc)", copied="(?:script|style) "),
    "GPX or KML": Dialect(head="<(?:gpx|kml) ", text="(?!author/).*/(?:name|desc|description)"),
    "DocBook": Dialect(head="(?i:docbook)", copied=f"(?:{_DOCBOOK_CODE}) "),
    "DITA": Dialect(
        head=r"DITA|ditaarch|<(?:dita|topic|concept|task|reference|troubleshooting|gloss\w+|map"
        r"|bookmap) .*\n(?:(?:book)?title\w*|gloss\w+|topic\w*|concept|task|reference) ",
        copied=f"(?:{_DITA_CODE}) ",
    ),
}
# Documents that are not translated: the name, the head and what to do.
_CODE = "put what users read into a text file, with a sentence a line"
_FORM = "translate the .ts, .po or .xliff file that is made from it"
_REFUSED = (
    ("XHTML", "<html ", "read it as HTML, with --format html"),
    ("TMX", "<tmx ", "it is a memory of translations: convert the text that needs one to XLIFF"),
    ("TBX", "<(?:tbx|martif) ", "it is a list of terms: make a table of it, for --glossary"),
    ("TTML", "<tt ", "convert it to .srt or .vtt, for --format srt"),
    ("a project of Final Cut Pro", "<fcpxml |<xmeml ", "export its captions as .srt or .vtt"),
    ("MathML", "<math ", "formulas have no sentences"),
    ("a form", r"<ui .*version=|<interface .*\n(?:requires|object) |InterfaceBuilder", _FORM),
    ("an office document", r"openxmlformats\.org|tc:opendocument", "save it as HTML"),
    ("a Maven POM", r"maven\.apache\.org/POM|<project .*\n(?:modelVersion|parent|groupId) ", _CODE),
    ("a project file", "<Project .*(?:Sdk=|ToolsVersion=)|<project .*(?:default|basedir)=", _CODE),
    ("XSLT or a schema", "XSL/Transform|<schema .*XMLSchema|<grammar .*relaxng", _CODE),
    ("an EPUB package", r"idpf\.org/2007/opf|<ncx ", "translate its pages, with --format html"),
    ("OPML", "<opml ", "it is a list of addresses: put its titles into a text file"),
    ("an AppStream component", r"<component .*\n(?:id|metadata_license|name) ", _FORM),
    (
        "a JATS article",
        r"(?:JATS|NLM)//DTD|<article .*\n(?:processing-meta|front) ",
        "convert it to HTML",
    ),
    ("Java properties", r"properties\.dtd|<properties .*\n(?:comment|entry) ", _CODE),
    ("a sitemap", "<(?:sitemapindex|urlset) ", _CODE),
    ("a file of settings", r"<configuration .*\n[a-z]+[A-Z]|springframework\.org", _CODE),
)


def dialect_of(head: str) -> Dialect:
    """Return the dialect of a document by its head; the default dialect if it is unknown."""
    for name, pattern, advice in _REFUSED:
        if re.search(pattern, head):
            raise DataError(f"the document is {name}, which is not translated: {advice}")
    found = (each for each in _DIALECTS.values() if re.search(each.head, head))
    return next(found, _OTHER)
