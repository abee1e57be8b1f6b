"""bench dram: what is read from memory, by whom it is told, and what share of the possible saving it is."""

import json
from dataclasses import replace

import native_tools as tools
import numpy as np
import pytest
from click.testing import CliRunner

from pyharness import audio, ggml_file, models, rules
from pyharness.bench import caches, counted, decode_steps, dram
from pyharness.bench.cachegrind import Cachegrind, totals
from pyharness.bench.caches import Cache
from pyharness.bench.counted import Counted
from pyharness.bench.decode_steps import Build, DecodeSteps, Work
from pyharness.bench.libraries import STOCK, Arm
from pyharness.bench.perf import COUNTERS, Counter, Perf, n_bytes
from pyharness.bench.step import Pass
from pyharness.cli import main
from pyharness.errors import HarnessError
from pyharness.ggml_file import HParams

BUILD = Build(tools.OURS)
SOFTWARE = Counter("page-faults", "of the kernel, which every machine counts")
PASS = Pass(ms=1, positions=1, bytes_read=1, rows_copied=0, tracking_ms=0, full=0, reexecuted=0)
STRIDE = Arm(rules.Stride(budget=150))


def bench(*arguments):
    return CliRunner().invoke(main, ["bench", "dram", *map(str, arguments)])


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    """Three steps of the smallest model that has all a step needs: a layer of one head."""
    path = tmp_path_factory.mktemp("model") / "ggml-synth-smallest.bin"
    hparams = HParams(models.N_VOCAB_ENGLISH, 1500, 64, 1, 1, 448, 64, 1, 1, 80)
    random = np.random.default_rng(0)
    shapes = ggml_file.tensor_shapes(hparams).items()
    tensors = ((name, random.standard_normal(shape, np.float32)) for name, shape in shapes)
    ggml_file.write_model(path, models.header_for(hparams, path), tensors)
    return Work(path, audio.load(tools.JFK).tobytes(), [50257, 50362], [11, 12, 13], {})


# --- caches -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def machine(tmp_path):
    """Writes the folder of the system in which a machine with these caches states them."""

    def write(*stated):
        names = ("level", "type", "size", "ways_of_associativity", "coherency_line_size")
        for i, values in enumerate(stated):
            folder = tmp_path / f"index{i}"
            folder.mkdir()
            for name, value in zip(names, values, strict=True):
                (folder / name).write_text(f"{value}\n", encoding="ascii")
        return tmp_path

    return write


L1 = (1, "Data", "48K", 12, 64)
CODE = (1, "Instruction", "32K", 8, 64)
L2 = (2, "Unified", "2048K", 16, 64)
L3 = (3, "Unified", "307200K", 20, 64)


def test_the_last_two_caches_that_hold_data_are_watched(machine):
    assert caches.outer(machine(L3, L1, CODE, L2)) == (Cache(2, 2 << 20, 16, 64), Cache(3, 300 << 20, 20, 64))


def test_a_machine_without_a_shared_cache_has_its_own_last_two_watched(machine):
    assert caches.outer(machine(L1, CODE, L2)) == (Cache(1, 48 << 10, 12, 64), Cache(2, 2 << 20, 16, 64))


@pytest.mark.parametrize("stated", [[], [L2], [CODE, L2], [L2, (3, "Unified", "0K", 0, 0)]])
def test_caches_that_the_system_does_not_state_are_not_invented(machine, stated):
    with pytest.raises(HarnessError, match="does not state two levels"):
        caches.outer(machine(*stated))


def test_a_simulated_cache_has_a_power_of_two_of_sets_and_says_so():
    shared = Cache(3, 300 << 20, 20, 64)
    assert shared.simulated == Cache(3, 2**18 * 20 * 64, 20, 64)
    assert str(shared) == "L3 300 MB 20-way, as 320 MB"
    own = Cache(2, 2 << 20, 16, 64)
    assert own.simulated == own and str(own) == "L2 2 MB 16-way"


# --- what sources write -----------------------------------------------------------------------------------------------


def test_totals_of_callgrind_are_read_by_their_names():
    text = "version: 1\nevents: Ir D1mr DLmw\nfn=(1)\n3 4 5\nsummary: 1 2 3\ntotals: 30 20 10\n"
    assert totals(text) == {"Ir": 30, "D1mr": 20, "DLmw": 10}
    with pytest.raises(HarnessError, match="counted nothing"):
        totals("events: Ir\n")


def test_counters_are_bytes_whatever_their_unit_and_number():
    assert n_bytes("# started\n\n3;;LLC-load-misses;9;100.00;;\n") == 3 * 64
    assert n_bytes("1.5;MiB;uncore_imc_0/a/;9;100.00;;\n2;MiB;uncore_imc_1/a/;9;100.00;;\n") == 3.5 * 2**20
    assert n_bytes("<not supported>;;LLC-load-misses;0;100.00;;\n") is None
    assert n_bytes("1;Joules;power/energy/;9;100.00;;\n") is None
    assert n_bytes("# started\n") is None


# --- arithmetic -------------------------------------------------------------------------------------------------------


def test_weights_are_all_matrices_that_a_step_multiplies_by(tiny_en):
    d, n_layer = 384, 4
    matrices = 2 * (14 * n_layer * d**2 + d * models.N_VOCAB_ENGLISH)
    vectors = 4 * d * (n_layer * (3 * 2 + 3 + 2 + 5) + 2)  # norms; biases of both attentions and of the MLP
    assert counted.weights(tiny_en) == matrices + vectors


def test_rows_that_are_copied_are_read_as_well():
    one = replace(PASS, positions=192, bytes_read=192 * 6 * 2048, rows_copied=12)
    assert counted.cross(one, n_layer=6) == (192 * 6 + 12) * 2048


def test_a_step_executed_again_reads_the_weights_again():
    assert counted.runs(replace(PASS, reexecuted=2), 8) == 1.25


def test_the_saving_is_compared_with_the_rows_outside_the_budget():
    columns = dram._columns([60.0, 30.0, 36.0], [100.0, 100.0, 100.0], cross=80, outside=0.875)
    assert columns["saving_share"] == pytest.approx(64 / 70)
    assert columns["ratio_to_stock"] == 0.36
    assert (columns["bytes_low"], columns["bytes_per_step"], columns["bytes_high"]) == (33, 36, 48)
    assert dram._columns([100.0], [100.0], cross=80, outside=0)["saving_share"] is None


def test_there_is_nothing_to_save_behind_a_cache_that_holds_everything():
    columns = dram._columns([0.9], [1.0], cross=80, outside=0.5)
    assert columns["saving_share"] is columns["ratio_to_stock"] is None
    assert columns["bytes_per_step"] == 0.9


# --- sources ----------------------------------------------------------------------------------------------------------


def perf_of_software(folder):
    try:
        return Perf(BUILD, folder, (Counter("nonsense", ""), SOFTWARE))
    except HarnessError as error:
        pytest.skip(error.message)


def test_perf_counts_the_steps_alone(work, tmp_path):
    """The first run allocates what the encoder needs, thousands of pages: none of that is in it."""
    perf = perf_of_software(tmp_path)
    for arm in (STOCK, STRIDE):
        found = perf.read(arm, work)
        assert found.keys() == {SOFTWARE.told} and found[SOFTWARE.told] < 64 * 500


def test_the_encoder_runs_once_for_all_arms(work, tmp_path):
    program = DecodeSteps(BUILD, tmp_path)
    program.run(program.command(STOCK, work), STOCK)
    cross = tmp_path / "cross"
    written = cross.read_bytes()
    assert len(written) == 1500 * 2 * 64 * 2 and any(written)
    program.run(program.command(STRIDE, work), STRIDE)
    assert cross.read_bytes() == written

    cross.write_bytes(written[:-1])
    with pytest.raises(HarnessError, match="cut short"):
        program.run(program.command(STRIDE, work), STRIDE)


def test_what_the_program_cannot_do_it_says(work, tmp_path):
    program = DecodeSteps(BUILD, tmp_path)
    program.command(STOCK, work)
    unknown = Arm(rules.PadsinkTrack(budget=150))  # no alignment heads are known for such a shape
    with pytest.raises(HarnessError, match="view is refused"):
        program.run(program.command(unknown, work), unknown)


def test_a_simulated_step_saves_what_its_view_leaves_out(work, tmp_path, monkeypatch):
    build = Build(Cachegrind.default_build)
    try:
        source = Cachegrind(build, tmp_path)
    except HarnessError as error:
        pytest.skip(error.message)
    small, large = Cache(2, 512 << 10, 8, 64), Cache(3, 32 << 20, 16, 64)
    monkeypatch.setattr(source, "_inner", small)
    monkeypatch.setattr(source, "_outer", large)
    stock, reduced = source.read(STOCK, work), source.read(STRIDE, work)
    row, logits = 2 * 64 * 2, 4 * models.N_VOCAB_ENGLISH
    expected = counted.weights(work.model) + 1500 * row + 4 * logits  # these are written and copied
    assert stock[str(small)] / 3 == pytest.approx(expected, rel=0.02)
    assert (stock[str(small)] - reduced[str(small)]) / 3 == pytest.approx(1350 * row, rel=0.1)
    assert stock[str(large)] < 1500 * row  # holds everything


def test_the_best_source_that_works_is_taken_and_the_others_say_why(tmp_path, monkeypatch):
    def missing(name):
        raise HarnessError(f"'{name}' is not installed")

    for module in ("perf", "cachegrind"):
        monkeypatch.setattr(f"pyharness.bench.{module}.executable", missing)
    settings = dram.Settings("tiny.en", tools.JFK)
    source, files, unused = dram.choose(settings, tmp_path)
    assert isinstance(source, Counted) and files == BUILD.files
    assert unused == {"perf": "'perf' is not installed", "cachegrind": "'valgrind' is not installed"}
    for name in unused:
        result = bench("--model", "tiny.en", "--source", name)
        assert result.exit_code == 2 and "is not installed" in result.output


def test_perf_without_counters_is_no_source(tmp_path, monkeypatch):
    perf_of_software(tmp_path)
    with pytest.raises(HarnessError, match="perf can count none of nonsense here"):
        Perf(BUILD, tmp_path, (Counter("nonsense", ""),))
    assert [counter.event for counter in COUNTERS][-1] == "LLC-load-misses"


def test_a_program_that_does_not_compile_says_why(tmp_path, monkeypatch):
    monkeypatch.setattr(decode_steps, "PATCH", tmp_path)
    with pytest.raises(HarnessError, match=r"does not compile: .*decode-steps\.c: No such file"):
        DecodeSteps(BUILD, tmp_path)


# --- command line -----------------------------------------------------------------------------------------------------


DRAM_KEYS = {
    *("model", "threads", "arm", "rule", "budget", "tau", "source", "cache", "bytes_per_step", "bytes_low"),
    *("bytes_high", "bytes_weights", "bytes_cross", "ratio_to_stock", "saving_share", "positions", "rows_copied"),
    *("full", "reexecuted", "same_tokens", "steps", "n", "build"),
}


def test_rows_say_who_counted_and_what_arithmetic_says(tiny_en):
    result = bench("--model", tiny_en, "--steps", 3, "--budgets", "150", "--source", "counted", "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["env"]["source"] == "counted" and found["env"]["threads"] == [1]
    rows = found["rows"]
    assert all(row.keys() == DRAM_KEYS for row in rows)
    assert [row["arm"] for row in rows] == ["stock", "full", "padsink-track budget=150"]
    assert {(row["source"], row["cache"], row["steps"], row["n"]) for row in rows} == {("counted", "none", 3, 1)}
    stock, full, track = rows
    assert stock["bytes_cross"] == full["bytes_cross"] == 1500 * 4 * 2 * 384 * 2
    assert track["bytes_cross"] == (150 * 4 + track["rows_copied"]) * 2 * 384 * 2
    assert stock["same_tokens"] == 1 and stock["ratio_to_stock"] == full["ratio_to_stock"] == 1
    for row in rows:
        assert row["bytes_per_step"] == row["bytes_weights"] + row["bytes_cross"]
    lost = track["rows_copied"] / (1350 * 4)
    assert 0 < lost < 0.1 and track["saving_share"] == pytest.approx(1 - lost)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--source", "guess"], "--source"),
        (["--budgets", "0"], "1 to 1500"),
        (["--steps", "0"], "--steps"),
        (["--build", "nowhere"], "nowhere"),
        (["--build", str(tools.TESTS)], "no library at"),
        (["--model", "nowhere.bin"], "nowhere.bin"),
        (["--model", "tiny.en", "--source", "counted", "--language", "de"], "does not know the language 'de'"),
    ],
)
def test_wrong_arguments_are_refused_with_the_reason(arguments, reason):
    result = bench(*arguments)
    assert result.exit_code == 2 and isinstance(result.exception, SystemExit)
    assert reason in result.output
