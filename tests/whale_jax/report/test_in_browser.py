"""The page in a real browser: sections, filters, boards, saved files, narrow and dark, and texts that mean harm."""

import csv
import io
import re
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.whale_jax.report.browser import open_browser, opened
from tests.whale_jax.report.made_run import SETTINGS, MadeRun, trace, two_cycles
from whale_jax.domains.registry import load_domain
from whale_jax.domains.task import Split
from whale_jax.report.page import write_report

HOSTILE = [
    "<script>window.pwned=1</script>",
    "</script><script>window.pwned=1</script><!--",
    '<img src=x onerror="window.pwned=1">',
    "\"'><svg onload=window.pwned=1><iframe srcdoc='<script>parent.pwned=1</script>'>",
    "javascript:window.pwned=1",
    "[link](javascript:window.pwned=1) http://example.invalid/?leak",
    "\u202egnp.exe\u202c \u2066\u200b\ufeff",
    "half of a pair: \ud800, \udfff",
    "\x00\x07\x1b[31m\x7f\r",
    "{{constructor.constructor('window.pwned=1')()}} ${window.pwned=1}",
    '=HYPERLINK("http://example.invalid")',
    "__proto__",
    "</style><style>body{display:none}</style>",
    "@import url(http://example.invalid/x.css)",
]
EVERYTHING = " ".join(HOSTILE)


@pytest.fixture(scope="module")
def browser():
    with open_browser() as browser:
        yield browser


@pytest.fixture(scope="module")
def report(tmp_path_factory) -> Path:
    """A page about one run."""
    folder = tmp_path_factory.mktemp("report")
    two_cycles(folder / "run")
    write_report([folder / "run"], folder / "report.html")
    return folder / "report.html"


def test_every_section_opens_with_the_keyboard(browser, report):
    with opened(browser, report) as watched:
        page = watched.page
        assert watched.text("#title") == "run"
        assert "25.0 % → 87.5 %" in watched.text(".results")
        sections = page.locator("nav a").all_inner_texts()
        assert sections == ["At a glance", "Figures", "Archive", "Trajectories", "Settings"]
        page.locator("nav a").first.focus()
        for place, name in enumerate(sections):
            page.keyboard.press("Enter")
            expect(page.locator("nav a[aria-current=page]")).to_have_text(name)
            page.locator("nav a").nth(place).focus()
            page.keyboard.press("Tab")
        expect(page.locator("main")).to_contain_text("prompts_per_step")


def test_charts_have_labelled_axes_and_can_be_saved(browser, report):
    with opened(browser, report) as watched:
        page = watched.page
        watched.go("figures")
        charts = page.locator("figure")
        expect(charts).to_have_count(9)
        for place in range(9):
            chart = charts.nth(place)
            expect(chart.locator(".chart[data-ready] svg")).to_have_count(1)
            titles = chart.locator("svg .role-axis-title text").all_text_contents()
            assert len([title for title in titles if title]) >= 2, chart.inner_text()
        accuracy = page.locator('figure[data-chart="accuracy"]')
        assert set(accuracy.locator("svg .role-axis-title text").all_text_contents()) >= {
            "training and search rollouts", "accuracy, %",
        }  # fmt: skip
        files = {}
        for kind in ("PNG", "SVG", "CSV"):
            with page.expect_download() as download:
                accuracy.get_by_role("button", name=kind).click()
            assert download.value.suggested_filename == f"accuracy.{kind.lower()}"
            files[kind] = Path(download.value.path()).read_bytes()
        assert files["PNG"].startswith(b"\x89PNG")
        assert b"<svg" in files["SVG"][:200]
        rows = list(csv.DictReader(io.StringIO(files["CSV"].decode())))
        assert [row["accuracy"] for row in rows if row["series"] == "test"] == ["12.5", "87.5"]


def test_the_archive_is_filtered_sorted_and_opened(browser, report):
    with opened(browser, report) as watched:
        page = watched.page
        watched.go("archive")
        expect(page.locator("#archive-list tbody tr")).to_have_count(6)
        page.locator("#archive-state").select_option("invalid")
        expect(page.locator("#archive-list tbody tr")).to_have_count(1)
        page.locator("#archive-state").select_option("all")
        page.locator("#archive-cycle").select_option("1")
        expect(page.locator("#archive-list tbody tr")).to_have_count(2)
        page.locator("#archive-cycle").select_option("all")
        page.locator("#archive-search").fill("hypothesis 3")
        expect(page.locator("#archive-count")).to_contain_text("1 of 6")
        page.locator("#archive-search").fill("")
        expect(page.locator("#archive-list tbody tr")).to_have_count(6)
        page.get_by_role("button", name="Score", exact=True).click()
        links = page.locator("#archive-list button[data-candidate]")
        assert links.all_inner_texts() == ["2 / 001", "1 / 001", "1 / 000", "2 / 000", "1 / 003", "1 / 002"]
        page.get_by_role("button", name="Score", exact=True).click()
        assert links.first.inner_text() == "1 / 003"
        expect(page.locator("th[aria-sort=ascending]")).to_have_text("Score")
        page.locator('button[data-candidate="0/001"]').click()
        expect(page.locator("#candidate")).to_contain_text("the hypothesis 1")
        assert page.locator("#candidate .diff .added").all_inner_texts()[0].endswith("TOPK = 2  # the source")
        assert page.locator("#candidate .diff .removed").all_inner_texts()[0].endswith("TOPK = 1")
        assert page.locator('[data-tasks="fixed"] a').all_inner_texts() == ["task-1", "task-3"]
        assert page.locator('[data-tasks="broke"] a').all_inner_texts() == ["task-2"]
        page.locator('[data-tasks="broke"] a').click()
        expect(page.locator("#trajectory")).to_contain_text("task-2 under 1 / 001")


def test_an_invalid_candidate_shows_its_errors(browser, report):
    with opened(browser, report) as watched:
        watched.go("archive/0/002")
        expect(watched.page.locator("#candidate-errors li")).to_have_text("the error")
        expect(watched.page.locator("#candidate")).to_contain_text("none: never rolled out")


def test_two_candidates_side_by_side(browser, report):
    with opened(browser, report) as watched:
        page = watched.page
        watched.go("archive")
        for name in ("compare 001 of cycle 1", "compare 003 of cycle 1"):
            page.get_by_role("checkbox", name=name).check()
        expect(page.locator("#pair")).to_contain_text("1 / 001 and 1 / 003")
        expect(page.locator("#pair")).to_contain_text("Right in 1 / 001 alone: 4")
        assert page.locator("#pair .diff .added").inner_text().endswith("TOPK = 4  # the source")
        page.get_by_role("checkbox", name="compare 000 of cycle 2").check()
        expect(page.locator("#pair")).to_contain_text("not scored in the same phase")


def test_trajectories_are_searched_and_read(browser, report):
    with opened(browser, report) as watched:
        page = watched.page
        watched.go("trajectories")
        counted = page.locator("#trajectory-count")
        expect(counted).to_have_text("30 of 30 trajectories")
        page.locator("#trajectory-verdict").select_option("unscored")
        expect(counted).to_have_text("1 of 30 trajectories")
        page.locator("#trajectory-verdict").select_option("wrong")
        page.locator("#trajectory-candidate").select_option("003")
        expect(counted).to_have_text("6 of 30 trajectories")
        page.locator("#trajectory-verdict").select_option("all")
        page.locator("#trajectory-candidate").select_option("all")
        page.locator("#trajectory-search").fill("Doc 1 of task-4")
        expect(counted).to_have_text("0 of 30 trajectories")
        page.locator("#trajectory-texts").check()
        expect(counted).to_have_text("5 of 30 trajectories")
        page.locator("#trajectory-list tbody a").first.click()
        expect(page.locator("#conversation .segment")).to_have_count(6)
        sources = page.locator("#conversation .source").all_inner_texts()
        assert sources == ["prompt", "harness", "prompt", "sampled", "tool", "sampled"]
        losses = page.locator("#conversation .loss").all_inner_texts()
        assert losses == ["masked", "masked", "masked", "in the loss", "masked", "in the loss"]
        expect(page.locator("#conversation .call")).to_contain_text("<function=search>")
        expect(page.locator("#verdict")).to_contain_text("match")
        page.locator("#loss-mask").check()
        underlined = page.locator("#conversation .segment.sampled .text").first
        assert underlined.evaluate("node => getComputedStyle(node).textDecorationLine") == "underline"
        colours = page.locator("#conversation .segment").evaluate_all(
            "all => all.map(one => getComputedStyle(one).backgroundColor)"
        )
        assert len(set(colours)) == 4
        page.get_by_role("link", name="003").click()
        expect(page.locator("#trajectory")).to_contain_text("task-4 under 1 / 003")


def test_chess_positions_are_boards_move_by_move(browser, tmp_path):
    chess = load_domain("chess")
    puzzles = chess.tasks(Split.HARNESS)[:6]
    moves = {task.id: task.reference["moves"] for task in puzzles}

    def played(task, reward):
        texts = [("prompt", "<think>\n"), ("sampled", f"Hm.\n</think>\n\n<move>{moves[task][1]}</move><|im_end|>")]
        return trace(task, reward, texts=texts)

    run = MadeRun(
        tmp_path / "run",
        settings={**SETTINGS, "domain": "chess"},
        tasks=[task.id for task in puzzles],
        trace_of=played,
        data=chess.data_hash,
    )
    run.search(0, {"000": [1] * 6, "001": [0] * 6})
    write_report([run.directory], tmp_path / "report.html")
    with opened(browser, tmp_path / "report.html") as watched:
        page = watched.page
        watched.go("trajectories/0")
        board = page.locator("#boards img")
        expect(board).to_have_attribute("alt", re.compile("to move"))
        assert board.evaluate("image => image.decode().then(() => image.naturalWidth)") > 100
        first = board.get_attribute("src")
        page.locator("#boards button").first.focus()
        page.keyboard.press("ArrowRight")
        expect(page.locator("#boards [aria-current=step]")).to_have_text(re.compile("^(White|Black): "))
        expect(board).not_to_have_attribute("src", first)
        assert board.evaluate("image => image.decode().then(() => image.naturalWidth)") > 100
        page.keyboard.press("ArrowLeft")
        expect(board).to_have_attribute("src", first)


def hostile_text(field):
    """What a hostile proposer writes; what the journal takes holds no half of a surrogate pair."""
    return EVERYTHING if field in ("hypothesis", "axis", "edit", "error") else re.sub("[\ud800-\udfff]", "", EVERYTHING)


def hostile_trace(task, reward):
    sources = ("prompt", "harness", "sampled", "tool", "odd source <b>")
    texts = [(sources[place % 5], text) for place, text in enumerate(HOSTILE)]
    long = "<b>" + "A" * 150_000
    return trace(
        task, reward, texts=[*texts, ("tool", long), ("sampled", f"{EVERYTHING}</think>{EVERYTHING}")],
        answer=EVERYTHING, reason=EVERYTHING, error=EVERYTHING, end="<b>end</b>",
    )  # fmt: skip


@pytest.fixture(scope="module")
def hostile(tmp_path_factory) -> Path:
    """A page about two runs in which everything that can be a text is a hostile one."""
    folder = tmp_path_factory.mktemp("hostile")
    settings = {**SETTINGS, "domain": "<img src=x onerror=pwned=1>", "harness": "/x/<script>pwned=1<script>.py"}
    made = []
    for name in ("</title><script>pwned=1", "other & <b>"):
        run = two_cycles(
            folder / name.replace("/", "∕"), settings=settings, text=hostile_text, trace_of=hostile_trace,
            tasks=[f"{text[:80]} {place}" for place, text in enumerate(HOSTILE[:6])],
        )  # fmt: skip
        run.warn(*(text for text in HOSTILE if text.isprintable()))
        run.evaluation("<script>pwned=1</script>", "validation", [[1, 1]] * 4, step=9)
        run.finish("<script>pwned=1</script>")
        made.append(run.directory)
    write_report(made, folder / "report.html")
    return folder / "report.html"


def test_hostile_texts_are_texts(browser, hostile):
    with opened(browser, hostile) as watched:
        page = watched.page
        assert page.locator("nav a").count() == 6
        places = ["compare", "glance", "figures", "archive", "settings", "trajectories"]
        places += [f"archive/0/00{number}" for number in range(4)] + ["trajectories/0", "trajectories/7"]
        elements: set[str] = set()
        for place in places:
            watched.go(place)
            if place.startswith("trajectories/"):
                page.wait_for_selector("#conversation .segment")
            page.wait_for_function(
                "() => [...document.querySelectorAll('.chart')].every(chart => 'ready' in chart.dataset)"
            )
            elements |= set(page.locator("main *").evaluate_all("all => all.map(one => one.localName)"))
            links = page.locator("main a").evaluate_all("all => all.map(one => one.getAttribute('href'))")
            assert all(link.startswith("#") for link in links)
            assert page.evaluate("() => window.pwned") is None
            assert page.locator("main form *").count() == 0  # Vega's place for inputs that a chart may bind
        forbidden = {"script", "iframe", "object", "embed", "style", "link", "meta", "base", "b"}
        assert elements & forbidden == set()
        watched.go("trajectories/0")
        conversation = page.locator("#conversation")
        expect(conversation).to_contain_text("<script>window.pwned=1</script>")
        expect(conversation).to_contain_text("</style><style>body{display:none}</style>")
        escapes = set(conversation.locator(".escape").all_inner_texts())
        assert {"U+202E", "U+202C", "U+2066", "U+200B", "U+FEFF", "U+D800", "U+DFFF", "U+0000", "U+001B"} <= escapes
        assert not re.search(
            "[\u202a-\u202e\u2066-\u2069\u0000\ud800-\udfff]", conversation.evaluate("node => node.textContent")
        )


def test_a_long_line_is_shown_in_part_until_asked_for(browser, tmp_path):
    run = MadeRun(
        tmp_path / "run", trace_of=lambda task, reward: trace(task, reward, texts=[("tool", "A" * 1_000_000)])
    )
    run.search(0, {"000": [1] * 6})
    write_report([run.directory], tmp_path / "report.html")
    with opened(browser, tmp_path / "report.html") as watched:
        watched.go("trajectories/0")
        text = watched.page.locator("#conversation .text")
        expect(text.locator("button")).to_have_text("Show the other 188,000 characters")
        assert len(text.inner_text()) < 20_000
        expect(text).to_contain_text("800,000 more characters are not in this page")
        text.locator("button").click()
        assert len(text.inner_text()) > 200_000
        assert watched.page.evaluate("() => document.scrollingElement.scrollWidth") <= 1200


def test_several_runs_are_compared_and_looked_at_in_turn(browser, tmp_path):
    for place, schedule in enumerate(("adaptive", "stagewise")):
        two_cycles(tmp_path / f"run{place}", settings={**SETTINGS, "schedule": schedule})
    write_report([tmp_path / "run0", tmp_path / "run1"], tmp_path / "report.html")
    with opened(browser, tmp_path / "report.html") as watched:
        page = watched.page
        expect(page.locator("nav a[aria-current=page]")).to_have_text("Runs compared")
        methods = page.locator('[data-table="methods"] tbody tr').all_inner_texts()
        assert len(methods) == 4
        assert "87.5 %" in methods[0]
        expect(page.locator('[data-table="schedules"] tbody tr')).to_have_count(2)
        with page.expect_download() as download:
            page.locator('[data-table="methods"]').get_by_role("button", name="CSV").click()
        rows = list(csv.DictReader(io.StringIO(Path(download.value.path()).read_text())))
        assert rows[0]["returned_mean"] == "0.875"
        page.locator("#run").select_option("1")
        expect(page.locator("#title")).to_have_text("run1")
        expect(page.locator("#subtitle")).to_contain_text("stagewise")


def test_branches_are_a_tree(browser, tmp_path):
    parent = two_cycles(tmp_path / "parent")
    for name, entry in (("near", 3), ("far", 5)):
        two_cycles(tmp_path / name, settings={**SETTINGS, "schedule": "stagewise"}).branch_of(parent.directory, entry)
    write_report([tmp_path / name for name in ("parent", "near", "far")], tmp_path / "report.html")
    with opened(browser, tmp_path / "report.html") as watched:
        tree = watched.page.locator('figure[data-chart="branches"] .chart[data-ready] svg')
        labels = tree.locator(".role-mark.mark-text text").all_text_contents()
        assert labels == ["parent (adaptive)", "near (stagewise)", "far (stagewise)"]
        rows = watched.page.locator('[data-table="branches-table"] tbody tr')
        expect(rows.first).to_contain_text("schedule: adaptive → stagewise")
        expect(rows).to_have_count(2)


@pytest.mark.parametrize("dark", [False, True])
def test_themes(browser, report, dark):
    with opened(browser, report, dark=dark) as watched:
        page = watched.page

        def paper():
            return page.evaluate("() => getComputedStyle(document.body).backgroundColor")

        light, night = "rgb(255, 255, 255)", "rgb(21, 24, 27)"
        assert paper() == (night if dark else light)
        page.locator("#theme").click()
        assert (watched.text("#theme"), paper()) == ("Theme: light", light)
        page.locator("#theme").click()
        assert (watched.text("#theme"), paper()) == ("Theme: dark", night)


def test_a_narrow_screen_shows_everything_without_scrolling_sideways(browser, report):
    with opened(browser, report, width=360) as watched:
        for place in ("glance", "figures", "archive", "archive/0/001", "trajectories/0", "settings"):
            watched.go(place)
            watched.page.wait_for_function(
                "() => [...document.querySelectorAll('.chart')].every(chart => 'ready' in chart.dataset)"
            )
            assert watched.page.evaluate("() => document.scrollingElement.scrollWidth") <= 360, place
