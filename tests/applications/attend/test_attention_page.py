"""The attention page: its data, and its script in a browser."""

import re
import shutil
import subprocess

import numpy as np
import pytest
from helpers import data_of
from html_pages import is_self_contained, parse_page, read_page, text_of

from tfm.applications.attend.content import Content, write_page
from tfm.features.attention.maps import AttentionMaps

BROWSER = next(filter(None, map(shutil.which, ("chromium", "google-chrome", "chrome"))), None)
SOURCES, TARGETS = ["▁two", "▁dogs", "</s>"], ["▁zwei", "</script><b>", "Hunde", "</s>"]


def some_weights(*shape):
    scores = np.random.default_rng(0).random(shape)
    return (scores / scores.sum(-1, keepdims=True)).astype(np.float32)


def all_kinds():
    return [
        AttentionMaps(
            kind="encoder", queries=SOURCES, keys=SOURCES, weights=some_weights(2, 3, 3, 3)
        ),
        AttentionMaps(
            kind="decoder",
            queries=TARGETS,
            keys=["<s>", *TARGETS[:-1]],
            weights=some_weights(2, 3, 4, 4),
        ),
        AttentionMaps(
            kind="cross", queries=TARGETS, keys=SOURCES, weights=some_weights(2, 3, 4, 3)
        ),
    ]


@pytest.fixture
def page_of(tmp_path):
    """Write a page and return its path."""

    def write(maps=None, source="Two dogs.", target="Zwei Hunde.", start=None):
        path = tmp_path / "page.html"
        content = Content(
            maps={each.kind: each for each in maps or all_kinds()},
            source=source,
            target=target,
            languages=("en", "de"),
            note="runs/one, translated with beam 4",
            **(start or {"kind": "cross", "layers": [1, 2], "heads": [1, 2, 3]}),
        )
        write_page(path, content)
        return path

    return write


def test_the_page_holds_all_pieces_and_weights_in_thousandths(page_of):
    maps = all_kinds()
    found = data_of(page_of(maps))["maps"]
    assert [each["kind"] for each in found] == ["encoder", "decoder", "cross"]
    for each, expected in zip(found, maps, strict=True):
        assert (each["queries"], each["keys"]) == (expected.queries, expected.keys)
        shown = np.array(each["weights"]) / 1000
        np.testing.assert_allclose(shown, expected.weights, atol=0.0005001)


def test_no_piece_or_sentence_ends_the_data_element(page_of):
    hostile = "</script><script>alert(1)</script> ATTENTION_SCRIPT <!-- \u2028 \"'\\"
    path = page_of(source=hostile, target="ATTENTION_DATA")
    assert data_of(path)["source"]["text"] == hostile
    assert data_of(path)["target"]["text"] == "ATTENTION_DATA"
    assert "alert(1)</script>" not in path.read_text(encoding="utf-8")


def test_the_page_is_self_contained_and_its_policy_forbids_requests(page_of):
    page = read_page(page_of())
    assert is_self_contained(page)
    [policy] = page.findall(".//meta[@http-equiv='Content-Security-Policy']")
    assert policy.get("content").startswith("default-src 'none';")
    script = text_of(page.findall(".//script")[-1]).replace("http://www.w3.org/2000/svg", "")
    assert not re.search(r"fetch\(|import |http", script)


# --- in a browser


@pytest.fixture
def open_page(tmp_path, page_of):
    """Open the page in a browser, run a script in it and return the resulting elements."""
    if BROWSER is None:
        pytest.skip("needs a Chromium")

    def open_and_do(script="", *, view="", **page):
        path = page_of(**page)
        text = path.read_text(encoding="utf-8")
        # A change of the view redraws the page after the script that requests it.
        steps = f"<script>const all = (s) => [...document.querySelectorAll(s)];{script}</script>"
        path.write_text(text.replace("</body>", f"{steps}</body>"), encoding="utf-8")
        document = subprocess.run(
            [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run",
             "--disable-background-networking", "--disable-component-update", "--disable-sync",
             f"--user-data-dir={tmp_path / 'browser'}", "--virtual-time-budget=500",
             "--dump-dom", f"{path.as_uri()}{view}"],
            capture_output=True, text=True, check=True, timeout=120,
        ).stdout  # fmt: skip
        return parse_page(document)

    return open_and_do


def pressed(document):
    names = {
        each.get("name", "map-") for each in document.findall(".//button[@aria-pressed='true']")
    }
    return {name for name in names if not name.startswith("map-")}


def readout(document):
    return text_of(document.find(".//*[@id='readout']"))


def test_a_page_opens_with_the_requested_view(open_page):
    document = open_page(start={"kind": "decoder", "layers": [1], "heads": [2]})
    assert pressed(document) == {"decoder", "layer-1", "head-2"}
    assert len(document.findall(".//*[@class='overview']")) == 1
    assert len(document.findall(".//canvas")) == 2 * 3
    # Four pieces per side; a line connects two pieces.
    names = [each.get("name", "") for each in document.iter()]
    assert sum(name.startswith(("query-", "key-")) for name in names) == 8
    weights = all_kinds()[1].weights[0, 1]
    assert len(document.findall(".//line")) == (np.rint(1000 * weights) >= 20).sum()
    assert sum("--weight: " in each.get("style", "") for each in document.iter()) == 16


def test_clicks_choose_kind_layer_heads_and_a_piece_to_keep(open_page):
    clicks = ["encoder", "layer-1", "head-2", "query-2"]
    script = """
      const todo = %s;
      addEventListener("hashchange", () => todo.length && all(`[name=${todo.shift()}]`)[0].click());
      all(`[name=${todo.shift()}]`)[0].click();
    """
    document = open_page(script % clicks)
    assert pressed(document) == {"encoder", "layer-1", "head-1", "head-3", "query-2"}
    mean = all_kinds()[0].weights[0, [0, 2], 1].mean(axis=0)
    order = np.argsort(-mean)
    expected = ", ".join(f"“{SOURCES[i]}” {mean[i]:.2f}" for i in order)
    assert readout(document) == f"“▁dogs” attends to {expected}"


def test_pointing_at_a_cell_shows_the_weight_of_each_head(open_page):
    script = 'all("#map i")[3 * 1 + 2].dispatchEvent(new MouseEvent("mouseenter"));'
    document = open_page(script)
    of_heads = all_kinds()[2].weights[1, :, 1, 2]
    each = ", ".join(f"head {i} {weight:.2f}" for i, weight in enumerate(of_heads, 1))
    assert readout(document) == f"“</script><b>” attends to “</s>”: {each}"
    # Only the lines of this pair are visible.
    lines = document.findall(".//line[@style]")
    shown = [line for line in lines if "display: none" not in line.get("style")]
    assert [(line.get("data-query"), line.get("data-key")) for line in shown] == [("1", "2")] * 3


def test_the_address_selects_the_view(open_page):
    document = open_page(view="#kind=cross&layer=1&heads=3&key=2")
    assert pressed(document) == {"cross", "layer-1", "head-3", "key-2"}
    assert readout(document).startswith("“▁dogs” is attended to by “")
