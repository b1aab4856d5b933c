"""The page in a real browser."""

import json
import threading

import numpy as np
import pytest

import lox
from lox._page.report import write_report
from lox._page.server import PageServer
from tests import waiting

from . import browser as chromium
from .stores import logs, open_run, write_run, write_seeds, write_timed
from .test_report import HOSTILE

if chromium.find() is None:
    names = ", ".join(chromium.NAMES)
    pytest.skip(f"no browser was found ({names})", allow_module_level=True)

# all charts in the window have been drawn
DRAWN = """(() => {
  const charts = [...document.querySelectorAll('.card')].map((card) => card.chart);
  const visible = charts.filter((chart) => chart.visible);
  return visible.length > 0 && visible.every((chart) => chart.data && chart.u);
})()"""
# the number of pixels of the first chart that have about this color
PIXELS = """(([r, g, b]) => {
  const canvas = document.querySelector('.card canvas');
  const { width, height } = canvas;
  const { data } = canvas.getContext('2d').getImageData(0, 0, width, height);
  let count = 0;
  for (let i = 0; i < data.length; i += 4)
    count += data[i + 3] > 200 && Math.abs(data[i] - r) < 12 &&
      Math.abs(data[i + 1] - g) < 12 && Math.abs(data[i + 2] - b) < 12;
  return count;
})"""
BLUE, ORANGE = [0x00, 0x72, 0xB2], [0xD5, 0x5E, 0x00]
FIRST = "document.querySelector('.card').chart"


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    browser = chromium.Browser(tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()


@pytest.fixture
def show(browser, serve):
    """Opens pages, and checks that nothing went wrong in them."""
    del serve  # servers end after the pages
    tabs = []

    def show(url, wait=DRAWN, **options):
        tab = browser.open(url, **options)
        tabs.append(tab)
        tab.wait(wait)
        return tab

    yield show
    for tab in tabs:
        tab.evaluate("1")  # what has happened until now
        assert not tab.problems and not tab.dialogs
        tab.close()


@pytest.fixture
def report(tmp_path, show):
    """Opens the report of a store."""

    def report(store, state="", **options):
        path = write_report(store, tmp_path / "report.html", overwrite=True)
        tab = show(f"{path.as_uri()}{state}", **options)
        outside = [url for url in tab.requests if not _is_inside(url, path.as_uri())]
        assert not outside
        return tab

    return report


def _is_inside(url, page):
    return url.startswith((page, "blob:", "data:"))


@pytest.fixture
def serve():
    servers = []

    def serve(store, **options):
        server = PageServer(store, port=0, refresh=0.1, **options)
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        servers.append((server, thread))
        return server.url

    yield serve
    for server, thread in servers:
        server.shutdown()
        server.server_close()
        waiting.join(thread)


@pytest.fixture(scope="module")
def sweep(tmp_path_factory):
    store = tmp_path_factory.mktemp("store") / "sweep"
    write_seeds(store, seeds=3, rows=60)
    return store


# --- charts ------------------------------------------------------------------


@pytest.mark.parametrize("live", [False, True])
def test_curves_are_drawn_and_a_legend_click_hides_them(
    sweep, report, show, serve, live
):
    tab = show(serve(sweep)) if live else report(sweep)
    assert tab.evaluate(f"{PIXELS}({BLUE})") > 100
    assert tab.evaluate(f"{PIXELS}({ORANGE})") > 100
    assert "n = 3" in tab.evaluate("document.querySelector('.card .note').textContent")
    tab.click(".legend li:nth-child(1) button")
    tab.wait(f"{PIXELS}({BLUE}) === 0")
    assert tab.evaluate(f"{PIXELS}({ORANGE})") > 100
    assert "hidden" in tab.evaluate("location.hash")
    tab.click(".legend li:nth-child(1) button")
    tab.wait(f"{PIXELS}({BLUE}) > 100")


def test_zoom_fetches_detail_for_all_charts(tmp_path, show, serve):
    rows = logs(np.arange(20_000), a=np.arange(20_000.0), b=np.arange(20_000.0))
    write_run(tmp_path, "run", rows)
    tab = show(serve(tmp_path))
    assert tab.evaluate(f"{FIRST}.data.width") > 0
    x, y, width, _ = tab.center(".u-over")
    before = len(tab.requests)
    tab.drag((x - width / 4, y), (x - width / 4 + 20, y))
    # each row is a point
    zoomed = (
        "[...document.querySelectorAll('.card')].every(c => c.chart.data.width < {})"
    )
    tab.wait(zoomed.format(tab.evaluate(f"{FIRST}.overview.width")))
    new = [url for url in tab.requests[before:] if "/chart?" in url]
    assert {url.partition("key=")[2][0] for url in new} == {"a", "b"}
    assert all("low=" in url and "high=" in url for url in new)
    low, high = tab.evaluate(f"{FIRST}.xLimits()")
    assert 4000 < low < high < 7000
    # the same range in all charts, also when it moves
    limits = "[...document.querySelectorAll('.card')].map(c => c.chart.xLimits())"
    tab.drag((x, y), (x + 100, y), modifiers=8)
    tab.wait(f"{FIRST}.xLimits()[0] < {low}")
    one, other = tab.evaluate(limits)
    assert one == other
    tab.click(".u-over", count=1)
    tab.evaluate(f"{FIRST}.page.zoom(null)")
    tab.wait(f"{FIRST}.xLimits()[1] === 19999")


def test_new_rows_and_runs_appear_without_reload(tmp_path, show, serve):
    with open_run(tmp_path, "a") as writer:
        writer.write(logs(np.arange(5), loss=np.arange(5.0)))
        tab = show(serve(tmp_path))
        tab.evaluate("window.marked = true")
        assert tab.evaluate(f"{FIRST}.data.extent[1]") == 4
        before = len(tab.requests)
        writer.write(logs([5, 6], loss=[5.0, 6.0]))
        tab.wait(f"{FIRST}.data.extent[1] === 6")
        assert tab.evaluate(f"[...{FIRST}.data.groups[0].first]") == list(range(7))
        # only what is new was fetched
        fetched = [url for url in tab.requests[before:] if "/chart?" in url]
        assert len(fetched) == 1 and "after=4" in fetched[0]
        write_run(tmp_path, "b", logs([0, 1], loss=[1.0, 1.0], other=[0.0, 1.0]))
        tab.wait("document.querySelectorAll('.card').length === 2")
        tab.wait(f"{FIRST}.data.curves.length === 2")
    assert tab.evaluate("window.marked")


def test_new_rows_of_a_slower_run_appear(tmp_path, show, serve):
    write_run(tmp_path, "fast", logs(np.arange(9), loss=np.ones(9)), {"seed": 0})
    with open_run(tmp_path, "slow", {"seed": 1}) as writer:
        writer.write(logs(np.arange(3), loss=np.zeros(3)))
        tab = show(serve(tmp_path))
        before = len(tab.requests)
        writer.write(logs([3, 4], loss=[3.0, 3.0]))
        n = f"[...{FIRST}.data.groups[0].n].join()"
        tab.wait(f"{n} === '2,2,2,2,2,1,1,1,1'")
        assert tab.evaluate(f"[...{FIRST}.data.groups[0].first].slice(2, 6)") == [
            0.5,
            2,
            2,
            1,
        ]
        fetched = [url for url in tab.requests[before:] if "/chart?" in url]
        assert len(fetched) == 1 and "after=2" in fetched[0]


def test_page_reports_that_its_server_has_ended(tmp_path, browser, serve, show):
    write_run(tmp_path, "a", logs([0, 1], loss=[1.0, 2.0]))
    server = PageServer(tmp_path, port=0, refresh=0.1)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    tab = browser.open(server.url)
    tab.wait(DRAWN)
    server.shutdown()
    server.server_close()
    waiting.join(thread)
    tab.wait("document.querySelector('.live').textContent === 'not connected'")
    tab.close()


def test_spikes_gaps_and_nan_are_visible(tmp_path, report):
    values = np.zeros(50_000, np.float32)
    values[33_333] = 1e6
    broken = np.where(np.arange(50_000) % 100 == 0, np.nan, 1).astype(np.float32)
    nothing = np.full(50_000, np.nan, np.float32)
    rows = logs(np.arange(50_000), spike=values, broken=broken, nothing=nothing)
    write_run(tmp_path / "store", "a", rows)
    tab = report(tmp_path / "store")
    notes = "[...document.querySelectorAll('.card .note')].map(n => n.textContent)"
    spike, broken, nothing = tab.evaluate(notes)
    assert spike == "" and broken == "500 not finite" and nothing == "no finite values"
    assert tab.evaluate(f"{FIRST}.yLimits()[1]") > 1e6
    assert tab.evaluate(f"Math.max(...{FIRST}.data.groups[0].first)") == 1e6 or (
        tab.evaluate(f"Math.max(...{FIRST}.data.groups[0].second)") == 1e6
    )


def test_charts_outside_the_window_are_not_fetched(tmp_path, show, serve):
    columns = {f"k{i:03d}": np.arange(3.0) for i in range(200)}
    write_run(tmp_path, "a", logs(np.arange(3), **columns))
    tab = show(serve(tmp_path))
    cards = "document.querySelectorAll('.card').length"
    assert tab.evaluate(cards) == 200
    assert len([url for url in tab.requests if "/chart?" in url]) < 20
    assert tab.evaluate("document.querySelectorAll('.card canvas').length") < 20
    tab.evaluate("document.querySelectorAll('.card')[199].scrollIntoView()")
    tab.wait("document.querySelectorAll('.card')[199].chart.data != null")


# --- controls ----------------------------------------------------------------


def test_url_restores_the_view(sweep, report):
    state = (
        "#band=std&logy=1&smooth=0.5&by=@all&keys=loss&seeds=0"
        '&range=["step",10,20]&off=["lr0.1-seed0"]'
    )
    tab = report(sweep, state)
    assert tab.evaluate("document.querySelectorAll('.card').length") == 1
    assert tab.evaluate(f"{FIRST}.xLimits()") == [10, 20]
    values = tab.evaluate(
        "[...document.querySelectorAll('.controls select')].map(s => s.value)"
    )
    assert values == ["@all", "step", "std"]
    pressed = "[...document.querySelectorAll('.toggles [aria-pressed=true]')]"
    assert tab.evaluate(f"{pressed}.map(b => b.name)") == ["logy"]
    # a file has no statistics of a part of a group, and says so
    note = tab.evaluate("document.querySelector('.card .note').textContent")
    assert "single runs" in note


def test_damaged_url_shows_the_default_view(sweep, report):
    tab = report(sweep, "#range=[1&hidden=7&smooth=x&view=nothing&by=what&band=no")
    assert tab.evaluate(f"{PIXELS}({BLUE})") > 100


def test_selection_of_runs_changes_the_statistics_when_served(sweep, show, serve):
    tab = show(serve(sweep))
    tab.click("nav button:nth-child(2)")
    tab.wait("document.querySelectorAll('.runs tbody tr').length === 6")
    tab.click(".runs tbody tr:nth-child(1) input")
    tab.click("nav button:nth-child(1)")
    counts = f"{FIRST}.data?.groups.map(g => g.lanes.length).sort().join()"
    tab.wait(f"{counts} === '2,3'")
    assert not tab.evaluate(f"{FIRST}.data.groups.some(g => g.partial)")


def test_table_sorts_numbers_as_numbers(sweep, report):
    tab = report(sweep, "#view=runs", wait="document.querySelector('.runs td') != null")
    column = (
        "[...document.querySelectorAll('.runs tbody tr')]"
        ".map(r => r.cells[[...document.querySelectorAll('.runs th')]"
        ".findIndex(h => h.textContent.startsWith('optimizer/lr'))].textContent)"
    )
    header = (
        "[...document.querySelectorAll('.runs th button')]"
        ".find(b => b.title.endsWith('optimizer/lr'))"
    )
    tab.evaluate(f"{header}.click()")
    assert tab.evaluate(column) == ["0.01"] * 3 + ["0.1"] * 3
    tab.evaluate(f"{header}.click()")
    assert tab.evaluate(column) == ["0.1"] * 3 + ["0.01"] * 3


def test_keyboard_changes_axes_bands_and_theme(sweep, report):
    tab = report(sweep)
    tab.evaluate("document.querySelector('.plot').focus()")
    tab.press("y")
    tab.wait("location.hash.includes('logy=1')")
    tab.press("b")
    tab.wait("location.hash.includes('band=std')")
    tab.press("t")
    tab.wait("document.querySelector('.lox').dataset.theme === 'dark'")
    tab.press("+")
    tab.wait("location.hash.includes('range=')")
    tab.press("0")
    tab.wait("!location.hash.includes('range=')")


def test_hover_shows_values_and_n(sweep, report):
    tab = report(sweep)
    x, y, _, _ = tab.center(".u-over")
    tab.mouse("mouseMoved", x, y)
    text = tab.wait(
        "(t => !t.hidden && t.textContent)(document.querySelector('.tooltip'))"
    )
    assert "step" in text and "n 3" in text and "lr=0.1" in text


def test_one_chart_is_saved_as_csv_svg_and_png(sweep, report):
    tab = report(sweep)
    tab.evaluate(
        "window.saved = []; window.names = [];"
        "URL.createObjectURL = (blob) => (window.saved.push(blob), 'data:,');"
        "HTMLAnchorElement.prototype.click = function () {"
        "  window.names.push(this.download); }"
    )
    for i in range(1, 4):
        tab.evaluate(
            f"document.querySelectorAll('.card .tools button')[{i - 1}].click()"
        )
        tab.wait(f"window.saved.length === {i}")
    assert tab.evaluate("window.names") == ["loss.csv", "loss.svg", "loss.png"]
    csv = tab.evaluate("window.saved[0].text()").splitlines()
    assert csv[0] == '"curve","step","step_end","value","low","high","n"'
    assert len(csv) == 1 + (2 + 6) * 60
    svg = tab.evaluate("window.saved[1].text()")
    assert svg.startswith("<svg") and svg.count("<path") > 8 and "n = 3" in svg
    head = "window.saved[2].slice(1, 4).text()"
    assert tab.evaluate(head) == "PNG"


def test_histograms_and_images_are_shown(tmp_path, report):
    rows = lox.logdict(
        {
            "loss": np.arange(4.0),
            "weights": {
                "counts": np.arange(16.0).reshape(4, 4),
                "edges": np.tile(np.arange(5.0), (4, 1)),
            },
            "picture": np.full((4, 8, 8, 3), 200, np.uint8),
        },
        stacked=True,
    )
    write_run(tmp_path / "store", "a", rows)
    tab = report(tmp_path / "store")
    tab.click("nav button:nth-child(3)")
    tab.wait(f"document.querySelector('.histogram') && {PIXELS}({BLUE}) > 50")
    tab.click("nav button:nth-child(4)")
    tab.wait("document.querySelector('.image img')?.naturalWidth === 8")


# --- safety --------------------------------------------------------------------


@pytest.mark.parametrize("live", [False, True])
def test_x_axis_can_be_the_time_of_rows(tmp_path, report, show, serve, live):
    store = tmp_path / "store"
    for seed in range(2):
        times = np.arange(60) * (60.0 + seed)
        write_timed(store, f"r{seed}", times, {"seed": seed}, loss=np.arange(60.0))
    tab = show(serve(store)) if live else report(store)
    names = (
        "[...document.querySelector('[aria-label=X-axis]').options].map(o => o.text)"
    )
    expected = ["step", "relative time", "wall time", "row", "loss"]
    assert tab.evaluate(names) == (expected if live else expected[:2])
    texts = {"#time": "relative time", "#clock": "wall time"}
    for axis, limit in (("#time", 3661), ("#clock", 1.6e9))[: 1 + live]:
        tab.evaluate(f"{FIRST}.page.choose('x', '{axis}')")
        tab.wait(f"{FIRST}.axis === '{axis}' && {DRAWN}")
        low, high = tab.evaluate(f"{FIRST}.data.extent")
        assert low < high < limit if axis == "#time" else limit < low < high
        ticks = tab.wait(f"{FIRST}.u.axes[0]._values")
        text = "".join(ticks)
        assert (" min" in text) if axis == "#time" else (":" in text and "20" in text)
        assert tab.evaluate(f"{PIXELS}({BLUE})") > 10
        x, y, _, _ = tab.center(".u-over")
        tab.mouse("mouseMoved", x, y)
        shown = "document.querySelector('.tooltip:not([hidden]) .at')?.textContent"
        tab.wait(f"{shown}?.startsWith({json.dumps(texts[axis])})")


def test_file_that_lacks_single_runs_says_so(tmp_path, show):
    store = tmp_path / "store"
    write_seeds(store, seeds=12, rows=300)
    for limit, text in ((60_000, "grouped by"), (35_000, "single runs")):
        path = write_report(
            store, tmp_path / "report.html", overwrite=True, max_bytes=limit
        )
        tab = show(path.as_uri())
        assert text in tab.evaluate("document.querySelector('.notes').textContent")
        assert "n = 12" in tab.evaluate(
            "document.querySelector('.card .note').textContent"
        )
        assert tab.evaluate(f"{PIXELS}({BLUE})") > 100
        # statistics of some runs are not in the file
        tab.evaluate(f"{FIRST}.page.state.set({{ off: ['lr0.1-seed0'] }})")
        tab.wait(f"{FIRST}.data.groups.some(g => g.partial)")
    assert "single runs" in tab.evaluate(
        "document.querySelector('.card .note').textContent"
    )


def test_each_run_counts_its_values_that_are_not_finite(tmp_path, report):
    values = np.where(np.arange(5000) % 50 == 0, np.nan, 1.0)
    for seed in range(2):
        write_run(
            tmp_path / "store",
            f"r{seed}",
            logs(np.arange(5000), loss=values),
            {"seed": seed},
        )
    tab = report(tmp_path / "store", "#by=%40run")
    note = tab.evaluate("document.querySelector('.card .note').textContent")
    assert "200 not finite" in note


def test_runs_without_times_are_reported(tmp_path, show, serve):
    write_timed(tmp_path, "timed", [1.0, 2.0, 3.0], loss=np.zeros(3))
    write_run(tmp_path, "other", logs([0, 1], loss=[0.0, 1.0]))
    tab = show(f"{serve(tmp_path)}#x=%23time")
    note = "document.querySelector('.card .note').textContent"
    tab.wait(f"{note}.includes('1 run has no times')")
    assert tab.evaluate(f"{FIRST}.data.curves.length") == 1


@pytest.mark.parametrize("live", [False, True])
def test_hostile_names_do_nothing(tmp_path, report, show, serve, live):
    store = tmp_path / "store"
    names = [
        HOSTILE,
        "javascript:alert(3)",
        "<svg onload=alert(4)>",
        "__proto__",
        "a/<b>",
    ]
    rows = lox.logdict({name: np.arange(4.0) for name in names}, stacked=True)
    for i in range(2):
        config = {
            HOSTILE: f"{HOSTILE}{i}",
            "__proto__": i,
            "seed": i,
            "<b>": {"<i>": i},
        }
        write_run(store, f"<img src=x onerror=alert({i})>", rows, config)
    tab = show(serve(store)) if live else report(store)
    titles = "[...document.querySelectorAll('.card h3')].map(h => h.textContent)"
    assert tab.evaluate(titles) == names
    tab.evaluate("location.hash = '#view=runs'")
    tab.wait("document.querySelectorAll('.runs tbody tr').length === 2")
    tab.evaluate(f"location.hash = '#by=' + encodeURIComponent({json.dumps(HOSTILE)})")
    tab.wait(DRAWN)
    x, y, _, _ = tab.center(".u-over")
    tab.mouse("mouseMoved", x, y)
    tab.wait("!document.querySelector('.tooltip').hidden")
    made = ", ".join(f".lox {tag}" for tag in ("img", "svg", "script", "b", "i"))
    assert tab.evaluate(f"document.querySelectorAll('{made}').length") == 0
    # nothing but the page itself was requested
    page = tab.evaluate("location.origin + location.pathname")
    assert all(_is_inside(url, page.rstrip("/")) for url in tab.requests)


def test_policy_blocks_connections_and_foreign_code(sweep, browser, tmp_path):
    path = write_report(sweep, tmp_path / "r.html")
    tab = browser.open(path.as_uri())
    tab.wait(DRAWN)
    blocked = tab.evaluate(
        "fetch('http://127.0.0.1:9/').then(() => 'sent', (error) => error.name)"
    )
    assert blocked == "TypeError"
    tab.evaluate(
        "const s = document.createElement('script'); s.textContent = 'window.evil = 1';"
        "document.body.append(s)"
    )
    assert tab.evaluate("window.evil === undefined")
    tab.wait("true")
    assert any("Content Security Policy" in problem for problem in tab.problems)
    tab.close()


def test_token_is_replaced_by_a_cookie_in_the_browser(sweep, show, serve):
    tab = show(serve(sweep, token="0123456789abcdef0123"))
    assert tab.evaluate("location.search") == ""
    assert tab.evaluate("document.cookie") == ""  # not for scripts


def test_notebook_output_runs_in_a_shadow_root(sweep, browser, tmp_path):
    path = tmp_path / "notebook.html"
    path.write_text(
        "<!doctype html><style>button { display: none }</style><body>"
        + lox.page(sweep)._repr_html_()
    )
    tab = browser.open(path.as_uri())
    root = "document.querySelector('body > div').shadowRoot"
    tab.wait(
        f"[...{root}.querySelectorAll('.card')].some(c => c.chart.data && c.chart.u)"
    )
    visible = f"{root}.querySelector('nav button').getBoundingClientRect().width > 0"
    assert tab.evaluate(visible)
    assert not tab.problems
    tab.close()


# --- looks ---------------------------------------------------------------------


@pytest.mark.parametrize("width", [360, 1400])
@pytest.mark.parametrize("dark", [False, True])
def test_page_fits_the_window_in_light_and_dark(sweep, report, width, dark):
    tab = report(sweep, width=width, dark=dark)
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    theme = tab.evaluate("document.querySelector('.lox').dataset.theme")
    assert theme == ("dark" if dark else "light")
    assert tab.evaluate("document.querySelector('.card canvas').clientWidth") <= width


@pytest.mark.parametrize("live", [False, True])
def test_empty_store_says_so(tmp_path, report, show, serve, live):
    store = tmp_path / "store"
    store.mkdir()
    wait = "document.querySelector('.empty')?.hidden === false"
    tab = show(serve(store), wait=wait) if live else report(store, wait=wait)
    text = tab.evaluate("document.querySelector('.empty').textContent")
    assert ("appear here" in text) == live
    if live:
        write_run(store, "a", logs([0, 1], loss=[1.0, 2.0]))
        tab.wait(DRAWN)
