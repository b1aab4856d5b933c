"""`lox.runs`: runs as a sequence, as lanes of one logdict, and as a table."""

import html.parser
import shutil

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import lox
import lox.loggers
from tests import programs


def save(store, seed, rows, config=None, names=("loss",), step="step"):
    """Writes a finished run of a few rows."""
    logger = lox.loggers.SaveLogger(store, config=config)
    state = logger.init(seed)
    for i in range(rows):
        values = {name: np.float32(seed + i / 10) for name in names}
        logger.log(state, values, **{step: 2 * i})
    logger.finish(state)


@pytest.fixture
def sweep(tmp_path):
    for seed in range(6):
        config = {"lr": [0.1, 0.3][seed % 2], "net": {"width": 8 + seed // 4}}
        save(tmp_path, seed, 3 + seed, {**config, "seed": seed})
    return lox.runs(tmp_path)


# --- as a sequence ----------------------------------------------------------


def test_runs_are_a_sequence_whose_slices_are_runs(sweep):
    assert len(sweep) == 6 and type(sweep) is type(sweep[1:3])
    assert [run.config["seed"] for run in sweep[4:]] == [4, 5]
    assert sweep[-1] is list(sweep)[5] and sweep[2] in sweep
    assert sweep == list(sweep) and sweep[:0] == [] and sweep != sweep[1:]
    assert sweep[:2] + sweep[2:] == sweep and hash(sweep) == hash(sweep[:])
    assert [run.name for run in reversed(sweep)][-1] == "00000000-00000000"
    assert sweep != "runs"
    with pytest.raises(TypeError):
        sweep + 1


# --- as lanes ---------------------------------------------------------------


def test_runs_of_a_single_run_are_that_run(tmp_path):
    lox.save({"loss": 1.0}, tmp_path / "saved")
    (run,) = lox.runs(tmp_path / "saved")
    assert run.load() == {"loss": 1.0}


def test_index_by_name_is_an_error_with_the_remedy(sweep):
    name = sweep[1].name
    with pytest.raises(lox.LoxTypeError, match=r"runs\.where\(name='.*'\)\[0\]"):
        sweep[name]
    assert sweep.where(name=name)[0] == sweep[1]


def test_load_gives_each_run_as_a_lane(sweep):
    logs = sweep.load()
    assert logs["loss"].shape == (6, 8) and logs["loss"].dtype == np.float32
    assert logs.mask["loss"].sum(1).tolist() == [3, 4, 5, 6, 7, 8]
    assert np.isnan(logs["loss"][~logs.mask["loss"]]).all()
    for run, lane in zip(sweep, logs.lanes(), strict=True):
        assert lane == run.load() and lane["loss"].dtype == np.float32
    alike = sweep[:1] + sweep[:1]
    assert alike.load().mask == {}
    assert sweep[:0].load() == {}


def test_lanes_of_random_runs_are_the_runs(tmp_path):
    rng = np.random.default_rng(0)
    for seed in range(20):
        logs = {}
        for name, shape in (("a", ()), ("b", (2,)), ("c", ())):
            rows = int(rng.integers(0, 4))
            if rows:
                value = rng.normal(size=(rows, *shape)).astype(np.float32)
                step = np.sort(rng.integers(0, 9, rows))
                logs[name] = lox.logdict({name: value}, {"at": {name: step}}, True)
        whole = sum(logs.values(), lox.logdict({"seed": seed}))
        lox.save(whole, tmp_path, key=seed)
    runs = lox.runs(tmp_path)
    for run, lane in zip(runs, runs.load().lanes(), strict=True):
        assert lane == run.load()
    assert runs.load("seed")["seed"].tolist() == list(range(20))


def test_load_stacks_trees_lanes_and_unusual_dtypes(tmp_path):
    for seed in range(3):
        rows = seed + 1
        tree = {"x": jnp.full((rows, 2), seed, jnp.bfloat16), "y": jnp.arange(rows)}
        logs = lox.logdict({"tree": tree, "flag": jnp.ones(rows, bool)}, stacked=True)
        logs["key"] = jax.random.key(seed)
        lox.save(logs, tmp_path / "trees", key=seed)

        def f(x):
            lox.log({"x": x}, step=x)
            jax.lax.cond(x > seed, lambda: lox.log({"y": x}) and None, lambda: None)  # noqa: B023

        _, batch = jax.vmap(lox.spool(f))(jnp.arange(3))
        lox.save(batch, tmp_path / "lanes", key=seed)
    for store in ("trees", "lanes"):
        runs = lox.runs(tmp_path / store)
        for run, lane in zip(runs, runs.load().lanes(), strict=True):
            assert lane == run.load()
    logs = lox.runs(tmp_path / "trees").load()
    assert logs["tree"]["x"].dtype == ml_dtypes.bfloat16
    assert logs["key"].shape == (3,) and logs["flag"].dtype == bool


def test_load_of_one_row_and_many_has_a_time_axis_in_all_runs(tmp_path):
    lox.save({"x": 1.5}, tmp_path, key=0)
    lox.save(lox.logdict({"x": np.array([2.5, 3.5])}, stacked=True), tmp_path, key=1)
    first, second = lox.runs(tmp_path).load().lanes()
    assert first["x"].tolist() == [1.5] and second["x"].tolist() == [2.5, 3.5]


def test_load_keeps_lanes_and_dtypes_that_differ_between_runs(tmp_path):
    lox.save({"n": np.int8(3)}, tmp_path, key=0)
    lox.save({"n": np.int64(2**40)}, tmp_path, key=1)
    assert lox.runs(tmp_path).load()["n"].tolist() == [3, 2**40]
    lox.save({"n": np.float32(0.5)}, tmp_path, key=2)
    lox.save({"n": np.uint64(2**64 - 1)}, tmp_path, key=3)
    with pytest.raises(lox.DtypeError, match="'n' .*no dtype can hold.*`where`"):
        lox.runs(tmp_path).load()


def test_load_of_runs_that_do_not_fit_names_them(tmp_path):
    lox.save({"x": np.zeros(2), "ok": 1}, tmp_path, key=0)
    lox.save({"x": np.zeros(3), "ok": 2}, tmp_path, key=1)
    runs = lox.runs(tmp_path)
    names = "'x' has different shapes.*00000000-00000000 and 00000000-00000001.*`where`"
    with pytest.raises(lox.ShapeError, match=names):
        runs.load()
    assert runs.load("ok")["ok"].tolist() == [1, 2]
    lox.save({"x": {"a": 1}}, tmp_path, key=2)
    with pytest.raises(lox.ShapeError, match="different tree structures"):
        lox.runs(tmp_path)[1:].load()
    save(tmp_path / "steps", 0, 2)
    save(tmp_path / "steps", 1, 2, step="epoch")
    with pytest.raises(lox.StepError, match=r"steps, \['step'\] and \['epoch'\]"):
        lox.runs(tmp_path / "steps").load()


def test_load_warns_only_of_names_that_no_run_has(tmp_path):
    save(tmp_path, 0, 2, names=("a",))
    save(tmp_path, 1, 2, names=("b",))
    runs = lox.runs(tmp_path)
    assert set(runs.load(["a", "b"])) == {"a", "b"}
    assert [set(lane) for lane in runs.load("a").lanes()] == [{"a"}, set()]
    with pytest.warns(lox.LoxWarning, match="no key of these runs matches 'c'"):
        assert runs.load("c") == {}


# --- selecting and grouping -------------------------------------------------


def test_where_selects_by_config_attribute_and_predicate(sweep):
    def seeds(runs):
        return [run.config["seed"] for run in runs]

    assert seeds(sweep.where(lr=0.3)) == [1, 3, 5]
    assert seeds(sweep.where(lr=np.float64(0.3), seed=3)) == [3]
    assert seeds(sweep.where(lr=lambda lr: lr < 0.2)) == [0, 2, 4]
    assert seeds(sweep.where(**{"net/width": 9})) == [4, 5]
    assert seeds(sweep.where(lambda run: run.rows > 6, lr=0.3)) == [5]
    assert seeds(sweep.where(status="finished", rows=4)) == [1]
    assert sweep.where(lr="0.3") == []
    with pytest.raises(
        lox.LoxKeyError, match="'lx'.*'lr', 'net/width', 'seed', 'name'"
    ):
        sweep.where(lx=0.1)
    with pytest.raises(lox.LoxTypeError, match=r"`where\(lr=0.1\)`, not 0.1"):
        sweep.where(0.1)
    assert sweep[:0].where(anything=1) == []


def test_where_prefers_configs_to_attributes_and_skips_runs_without(tmp_path):
    save(tmp_path, 0, 1, {"status": "pilot"})
    save(tmp_path, 1, 1, {"layers": [1, 2]})
    runs = lox.runs(tmp_path)
    assert runs.where(status="pilot") == [runs[0]]
    assert runs.where(layers=[1, 2]) == runs.where(layers=(1, 2)) == [runs[1]]
    assert list(runs.group_by("layers")) == [None, (1, 2)]


def test_where_finds_nan(tmp_path):
    nan = float("nan")
    for seed, a in enumerate([nan, 1.0, [1, nan], nan]):
        save(tmp_path, seed, 1, {"a": a})
    runs = lox.runs(tmp_path)
    assert runs.where(a=nan) == runs.where(a=np.float32("nan")) == [runs[0], runs[3]]
    assert runs.where(a=[1, np.nan]) == [runs[2]]
    assert [len(group) for group in runs.group_by("a").values()] == [2, 1, 1]


def test_where_of_unknown_name_lists_each_name_once(tmp_path):
    save(tmp_path, 0, 1, {"name": "a", "rows": 1})
    with pytest.raises(lox.LoxKeyError, match="'zzz'") as error:
        lox.runs(tmp_path).where(zzz=1)
    names = "'name', 'rows', 'status', 'error', 'started', 'duration'"
    assert f"available: {names}." in str(error.value)


def test_group_by_maps_values_to_runs(sweep):
    groups = sweep.group_by("lr")
    assert {lr: len(runs) for lr, runs in groups.items()} == {0.1: 3, 0.3: 3}
    assert groups[0.1].load()["loss"].shape == (3, 7)
    assert repr(groups) == "{0.1: <3 runs>, 0.3: <3 runs>}"
    several = sweep.group_by("lr", "net/width")
    assert several.names == ("lr", "net/width")
    assert list(several) == [(0.1, 8), (0.3, 8), (0.1, 9), (0.3, 9)]
    with pytest.raises(lox.LoxKeyError, match="`group_by` got 'width'"):
        sweep.group_by("width")


def test_group_by_without_names_ignores_only_the_seed(sweep):
    assert sweep.group_by().names == ("lr", "net/width")
    assert len(sweep.group_by()) == 4
    assert sweep.group_by(ignore=["seed", "lr"]).names == ("net/width",)
    assert sweep.group_by(ignore="*e*").names == ("lr",)
    assert len(sweep.group_by(ignore=())) == 6
    alike = sweep.where(lr=0.1)[:2].group_by()
    assert alike.names == () and list(alike) == [()] and alike.label(()) == ""


# --- tables -----------------------------------------------------------------


def test_to_pandas_has_one_line_per_run(sweep, tmp_path):
    save(tmp_path, 7, 2, {"lr": 1.0}, names=("other",))
    frame = lox.runs(tmp_path).to_pandas()
    assert list(frame.columns[:5]) == ["name", "status", "started", "duration", "rows"]
    assert frame["status"].unique().tolist() == ["finished"]
    assert frame["rows"].tolist() == [3, 4, 5, 6, 7, 8, 2]
    assert frame["config/lr"].tolist() == [0.1, 0.3] * 3 + [1.0]
    assert frame["config/net/width"].tolist()[:6] == [8, 8, 8, 8, 9, 9]
    last = [run.load()["loss"][-1] for run in sweep]
    assert frame["last/loss"].tolist()[:6] == last and frame["last/loss"].isna()[6]
    assert (frame["duration"] >= 0).all() and str(frame["started"].dtype.tz) == "UTC"


def test_to_pandas_keeps_large_integers(tmp_path):
    lox.save({"tokens": np.int64(2**60 + 1)}, tmp_path, key=0)
    lox.save({"x": 1}, tmp_path, key=1)
    assert lox.runs(tmp_path).to_pandas()["last/tokens"][0] == 2**60 + 1


@pytest.mark.parametrize("large", [3, 2**63 + 1])
def test_to_pandas_keeps_integers_of_several_dtypes(tmp_path, large):
    lox.save({"x": np.uint64(large)}, tmp_path, key=0)
    lox.save({"x": np.int32(-3)}, tmp_path, key=1)
    lox.save({"y": 0}, tmp_path, key=2)
    found = lox.runs(tmp_path).to_pandas()["last/x"]
    assert found.tolist()[:2] == [large, -3] and found.isna().tolist()[2]


@pytest.mark.parametrize(
    "large, other",
    [
        (2**53 + 1, 0.5),
        (2**53 + 1, np.float32(0.5)),
        (2**53 + 1, np.uint64(2**63 + 1)),
        (2**24 + 1, np.complex64(1j)),
    ],
)
def test_to_pandas_keeps_large_integers_beside_other_numbers(tmp_path, large, other):
    lox.save({"x": np.int64(-large)}, tmp_path, key=0)
    lox.save({"x": other}, tmp_path, key=1)
    lox.save({"y": 0}, tmp_path, key=2)
    for runs in (lox.runs(tmp_path)[:2], lox.runs(tmp_path)):
        found = runs.to_pandas()["last/x"]
        assert int(found[0].real) == -large and found[1] == other
        assert found.isna().tolist() == [False, False, True][: len(runs)]


@pytest.mark.parametrize("other", [0.5, None])
def test_to_pandas_keeps_large_integers_of_configs(tmp_path, other):
    for seed, value in enumerate([2**53 + 1, other, 3]):
        save(tmp_path, seed, 1, {"large": value, "small": value if seed else 1})
    save(tmp_path, 3, 1, {})
    frame = lox.runs(tmp_path).to_pandas()
    assert int(frame["config/large"][0]) == 2**53 + 1
    assert frame["config/large"].isna().tolist() == [False, other is None, False, True]
    assert frame["config/small"].dtype == np.float64


def test_repr_is_a_table_of_what_differs(sweep):
    head, first, *_ = repr(sweep).splitlines()
    columns = ["name", "status", "started", "duration", "rows"]
    assert head.split() == [*columns, "lr", "net/width", "seed", "loss"]
    assert first.split()[:2] == ["00000000-00000000", "finished"]
    assert first.split()[-5:] == ["3", "0.1", "8", "0", "0.2"]
    many = lox.runs(sweep[0].path.parent) + sweep + sweep + sweep
    assert "... 4 more runs" in repr(many) and len(repr(many).splitlines()) == 22
    assert repr(sweep[:0]) == "<no lox runs>"


class _Tags(html.parser.HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.tags, self.text = set(), ""
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.add(tag)
        assert not any(name.startswith("on") for name, _ in attributes)

    def handle_data(self, data):
        self.text += data


HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(1)>\"'&"


def test_tables_escape_everything_that_comes_from_runs(tmp_path):
    config = {HOSTILE: HOSTILE, "line\nbreak": "\x1b[31m"}
    for seed in range(2):
        logger = lox.loggers.SaveLogger(tmp_path, config={**config, "seed": seed})
        state = logger.init(seed)
        for i in range(3):
            logger.log(state, {HOSTILE: i, "x": i}, step=i)
        logger.finish(state)
    runs = lox.runs(tmp_path)
    for shown in (runs, runs.load(), runs[0].load()):
        parsed = _Tags(shown._repr_html_())
        assert parsed.tags <= {
            *("div", "p", "table", "thead", "tbody", "tr", "th", "td", "code"),
            *("svg", "title", "polyline", "polygon"),
        }
        assert "<script>alert(1)</script>" in parsed.text
    assert "\x1b" not in repr(runs) and len(repr(runs).splitlines()) == 3


def test_html_of_runs_shows_mean_and_band_of_each_key(sweep):
    page = sweep._repr_html_()
    assert page.count("<tr>") == 1 + 6 + 1 + 1 and "<polygon" in page
    assert "mean ± std of 6 lanes: 0 to 5.7" in page and "(n = 1)" in page
    assert sweep[:0]._repr_html_() == "<p>no lox runs</p>"
    many = sweep
    for _ in range(4):
        many = many + many
    page = many._repr_html_()
    assert "50 of 96 runs" in page and "<svg" not in page
    assert "Curves are drawn for up to 64 runs and 200,000 rows." in page


def test_html_of_runs_that_do_not_fit_together_has_no_curves(tmp_path):
    lox.save({"x": np.zeros(2)}, tmp_path, key=0)
    lox.save({"x": np.zeros(3)}, tmp_path, key=1)
    page = lox.runs(tmp_path)._repr_html_()
    assert "<svg" not in page and "<p>No curves: &#x27;x&#x27; has different" in page


# --- plots ------------------------------------------------------------------


def test_plot_by_config_draws_mean_band_and_number_of_runs(sweep):
    figure = sweep.plot("loss", by="lr", band="ci")
    (axes,) = figure.axes
    labels = [text.get_text() for text in axes.get_legend().get_texts()]
    assert labels == [
        "lr=0.1: mean, 95 % CI (n = 1 to 3)",
        "lr=0.3: mean, 95 % CI (n = 1 to 3)",
    ]
    # per group: three runs, the mean, and a solid line where there are all runs
    assert len(axes.lines) == 10 and len(axes.collections) == 2
    expected = sweep.where(lr=0.3).load().over_lanes("mean", "count")
    drawn, solid = axes.lines[-2:]
    np.testing.assert_allclose(drawn.get_ydata(), expected["loss/mean"])
    assert np.isfinite(solid.get_ydata()).sum() == (expected["loss/count"] == 3).sum()
    assert drawn.get_xdata().tolist() == expected.step["loss/mean"].tolist()


@pytest.mark.parametrize("value", [1, None, True, (1, 2)])
def test_plot_labels_distinguish_values_that_read_the_same(tmp_path, value):
    for seed in range(4):
        a = value if seed else str(value)
        save(tmp_path, seed, 2, {"a": a, "b": "x"})
    runs = lox.runs(tmp_path)
    (panel,) = runs.plot(by="a", band="std").axes
    assert [line.get_label() for line in panel.lines if "n =" in line.get_label()] == [
        f"a={str(value)!r}: one lane (n = 1)",
        f"a={value}: mean ± std (n = 3)",
    ]
    assert runs.group_by("b", "a").labels() == [
        f"b=x, a={str(value)!r}",
        f"b=x, a={value}",
    ]


def test_labels_of_groups_distinguish_values_that_contain_names(tmp_path):
    save(tmp_path, 0, 1, {"a": "1, b=2", "b": "3"})
    save(tmp_path, 1, 1, {"a": "1", "b": "2, b=3"})
    assert lox.runs(tmp_path).group_by("a", "b").labels() == [
        "a='1, b=2', b='3'",
        "a='1', b='2, b=3'",
    ]


def test_plot_without_band_draws_a_line_per_run(sweep):
    (axes,) = sweep.plot("loss", by=["lr", "net/width"]).axes
    labels = [text.get_text() for text in axes.get_legend().get_texts()]
    assert labels[0] == "lr=0.1, net/width=8 (n = 2)" and len(labels) == 4
    (axes,) = sweep.plot("lo*").axes
    assert len(axes.lines) == 6 and axes.get_ylabel() == "loss"


# --- without JAX ------------------------------------------------------------


def test_sets_of_runs_do_not_import_jax(sweep):
    program = """
        import sys
        import lox
        runs = lox.runs(sys.argv[1])
        logs = runs.where(lr=0.3).load()
        print(logs.over_lanes()["loss/count"].tolist(), len(runs.group_by("lr")))
        assert "finished" in repr(runs) and runs._repr_html_() and runs[0].last
        runs.to_pandas(), runs.plot("loss", by="lr", band="ci")
        assert "jax" not in sys.modules
    """
    done = programs.run(program, sweep[0].path.parent, fresh=True)
    assert not done.stderr and done.stdout == "[3, 3, 3, 3, 2, 2, 1, 1] 2\n"


def test_removed_run_is_an_error_only_if_used(sweep):
    shutil.rmtree(sweep[0].path)
    with pytest.raises(lox.StoreError, match="cannot be read"):
        sweep[0].status  # noqa: B018
    assert sweep[1].status == "finished"
    assert repr(sweep).splitlines()[1].split()[:2] == [sweep[0].name, "unreadable"]
    assert "unreadable" in sweep._repr_html_()
    assert sweep.to_pandas()["status"].tolist() == ["unreadable", *["finished"] * 5]


def test_table_shows_complex_values(tmp_path):
    lox.save({"z": np.complex64(1 + 2j)}, tmp_path, key=0)
    assert "(1+2j)" in repr(lox.runs(tmp_path))
