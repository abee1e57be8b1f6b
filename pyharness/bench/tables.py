"""What the table of each bench shows: its title, its columns, and what they mean."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pyharness.table import NOTHING, Column, number, percent, points, ratio_with_spread


@dataclass(frozen=True)
class Table:
    title: Callable[[dict], str]  # of a result, {"env": ..., "rows": ...}
    columns: tuple[Column, ...]  # with each speed: errors, or the share of the same tokens; n, spread, threads, build
    legend: str


# --- of several benches -----------------------------------------------------------------------------------------------


def values(result: dict, key: str) -> str:
    """All that rows have, in their order."""
    return ", ".join(dict.fromkeys(row[key] for row in result["rows"]))


def _steps_of_clip(result: dict) -> str:
    env = result["env"]
    return f"{values(result, 'model')} · {env['steps']} steps of {Path(env['clip']).name}"


def _model_on_speech(result: dict) -> str:
    return f"{values(result, 'model')} · {values(result, 'speech')}"


def _with_interval(row: dict, key: str, low: str, high: str) -> str:
    if row[low] is None:
        return f"×{row[key]:.2f} (one clip)"
    return ratio_with_spread(row[key], row[low], row[high])


def _median_ms(row: dict) -> str:
    digits = 2 if row["ms"] < 100 else 0
    return f"{row['ms']:.{digits}f} ({row['ms_low']:.{digits}f}–{row['ms_high']:.{digits}f})"


MODEL = Column("model", lambda row: row["model"], numeric=False)


def _megabytes(key: str, row: dict) -> str:
    return number(row[key] and row[key] / 1e6, 2)


ARM = Column("arm", lambda row: row["arm"], numeric=False)
MS = Column("ms", _median_ms)
SPEEDUP = Column("speedup", lambda row: _with_interval(row, "speedup_vs_stock", "speedup_low", "speedup_high"))
TO_STOCK = Column("to stock", lambda row: _with_interval(row, "ratio_to_stock", "ratio_low", "ratio_high"))
SAME = Column("same", lambda row: percent(row["same_tokens"]))
WER = Column("WER", lambda row: percent(row["wer"]))
DIFFERENCE = Column("diff.", lambda row: points(row["difference"]))
BOUND = Column("bound", lambda row: points(row["bound_upper"]))
VERDICT = Column("verdict", lambda row: row["verdict"] or NOTHING, numeric=False)
SAME_TEXT = Column("same text", lambda row: number(row["same_text"]))
FAILED = Column("failed", lambda row: number(row["failed_clips"]))
PEAK_MB = Column("peak MB", lambda row: number(row["peak_mb"]))
READ = Column("read/step", lambda row: number(row["positions"]))
COPIED = Column("rows copied", lambda row: number(row["rows_copied"], 1))
N = Column("n", lambda row: number(row["n"]))
HOW = (
    Column("threads", lambda row: number(row["threads"])),
    Column("build", lambda row: row["build"], numeric=False),
)

# --- step -------------------------------------------------------------------------------------------------------------


def _part(key: str, row: dict) -> str:
    return number(row[key], 2)


STEP = Table(
    _steps_of_clip,
    (
        ARM,
        Column("ms/step", _median_ms),
        TO_STOCK,
        READ,
        Column("MB/step", partial(_megabytes, "bytes_read")),
        *(Column(part, partial(_part, f"{part}_ms")) for part in ("weights", "cross", "text", "tracking", "rest")),
        COPIED,
        SAME,
        Column("full", lambda row: number(row["full"])),
        Column("re-exec.", lambda row: number(row["reexecuted"])),
        N,
        *HOW,
    ),
    "ms/step: median of n passes (quartiles). to stock: median of the paired ratios (95 % interval). read/step: "
    "positions. MB/step, rows copied: of the cross cache, all layers. weights, cross, text: ms of the products with "
    "matrices, of the attention over the encoder's positions and over the text, by their shares of passes that "
    "compute the graph node by node. tracking: ms of all that the view adds, from window to confidence. rest: what is "
    "left. same: steps whose best token is stock's. full, re-exec.: steps of a pass that read everything, though the "
    "rule is to read less.",
)

# --- step --mode real -------------------------------------------------------------------------------------------------

REAL = Table(
    _model_on_speech,
    (
        ARM,
        Column("ms/token", _median_ms),
        TO_STOCK,
        Column("read/run", lambda row: number(row["positions"])),
        Column("MB/run", partial(_megabytes, "bytes_read")),
        COPIED,
        Column("tracking", lambda row: percent(row["tracking_share"])),
        Column("re-exec.", lambda row: percent(row["reexecuted"])),
        WER,
        DIFFERENCE,
        BOUND,
        VERDICT,
        SAME_TEXT,
        N,
        FAILED,
        *HOW,
    ),
    "ms/token: from the encoder to the text, by the tokens of the text; median of n clips (quartiles). to stock: "
    "median of the clips' ratios (95 % interval). read/run, MB/run, rows copied: positions, and of the cross cache of "
    "all layers, by run of the decoder, prompts and second runs among them. tracking: share of the time that the view "
    "adds outside of the attention. re-exec.: share of steps. diff., bound: WER less stock's, and the upper 95 % bound "
    "of it less the margin of 0.2 x WER of stock, points; below 0 is Non-inferior. same text: clips whose text is "
    "stock's.",
)

# --- utterance --------------------------------------------------------------------------------------------------------

UTTERANCE = Table(
    _model_on_speech,
    (
        Column("clip s", lambda row: f"{row['clip_s']:g}"),
        ARM,
        MS,
        Column("mel", lambda row: number(row["mel_ms"])),
        Column("encoder", lambda row: number(row["encoder_ms"])),
        Column("decoder", lambda row: number(row["decoder_ms"], 1)),
        Column("tokens", lambda row: number(row["tokens"], 1)),
        SPEEDUP,
        WER,
        SAME_TEXT,
        N,
        FAILED,
        *HOW,
    ),
    "ms: median of n clips (quartiles), each the median of its repeats; mel, encoder, decoder: its parts, ms. speedup: "
    "stock's time / the arm's, median of the clips (95 % interval). same text: clips whose text is stock's. failed: "
    "clips that cannot be read, left out in all arms.",
)

# --- decoders ---------------------------------------------------------------------------------------------------------

DECODERS = Table(
    _model_on_speech,
    (
        Column("decoders", lambda row: number(row["n"])),
        Column("mode", lambda row: row["mode"], numeric=False),
        ARM,
        Column("tokens/s", lambda row: number(row["tokens_per_s"], 1)),
        Column("clips/s", lambda row: number(row["clips_per_s"], 2)),
        TO_STOCK,
        Column("p50 ms", lambda row: number(row["p50_ms"], 1)),
        Column("p90 ms", lambda row: number(row["p90_ms"], 1)),
        Column("max ms", lambda row: number(row["max_ms"], 1)),
        Column("latency", lambda row: _with_interval(row, "latency_ratio", "latency_low", "latency_high")),
        SAME,
        WER,
        BOUND,
        VERDICT,
        SAME_TEXT,
        Column("clips", lambda row: number(row["clips"])),
        FAILED,
        Column("re-exec.", lambda row: percent(row["reexecuted"])),
        PEAK_MB,
        Column("n", lambda row: number(row["rounds"])),
        *HOW,
    ),
    "tokens/s, clips/s: of all decoders, median of n rounds. to stock: the arm's throughput / stock's, above 1 = "
    "faster. p50, p90, max: of a step (synthetic), of a clip from the encoder to its text (real). latency: the arm's "
    "p50 / stock's, below 1 = faster. Ratios: median of the rounds' own (95 % interval). same: steps whose best token "
    "is stock's. bound: upper 95 % bound of WER less stock's, less the margin of 0.2 x WER of stock, points; below 0: "
    "Non-inferior. failed: clips that cannot be read, left out in all arms. peak MB: the most memory that the process "
    "had resident, which holds all arms of its build. threads: of each decoder.",
)

# --- dram -------------------------------------------------------------------------------------------------------------


def _median_megabytes(row: dict) -> str:
    spread = f" ({row['bytes_low'] / 1e6:.2f}–{row['bytes_high'] / 1e6:.2f})" if row["n"] > 1 else ""
    return _megabytes("bytes_per_step", row) + spread


DRAM = Table(
    _steps_of_clip,
    (
        Column("source", lambda row: row["source"], numeric=False),
        Column("beyond", lambda row: row["cache"], numeric=False),
        ARM,
        Column("MB/step", _median_megabytes),
        Column("to stock", lambda row: f"×{row['ratio_to_stock']:.3f}" if row["ratio_to_stock"] else NOTHING),
        Column("saving", lambda row: percent(row["saving_share"])),
        Column("weights", partial(_megabytes, "bytes_weights")),
        Column("cross", partial(_megabytes, "bytes_cross")),
        READ,
        Column("copied", lambda row: number(row["rows_copied"], 1)),
        SAME,
        Column("re-exec.", lambda row: number(row["reexecuted"])),
        Column("steps", lambda row: number(row["steps"])),
        N,
        *HOW,
    ),
    "MB/step: read from beyond this cache, median of n runs of all steps. saving: what is read less than by stock, as "
    "share of the cross cache outside the budget. weights, cross: MB that a step cannot do without, by arithmetic. "
    "read/step: positions; copied: rows into the ring, all layers. same: steps whose best token is stock's. –: the "
    "cache holds all that stock reads.",
)

# --- peers ------------------------------------------------------------------------------------------------------------


def _speech_and_decoding(result: dict) -> str:
    beam_size = result["env"]["beam_size"]
    return f"{values(result, 'speech')} · {'greedy' if beam_size == 1 else f'beam {beam_size}'}"


PEERS = Table(
    _speech_and_decoding,
    (
        MODEL,
        Column("weights", lambda row: row["weights"], numeric=False),
        ARM,
        MS,
        SPEEDUP,
        Column("to int8", lambda row: _with_interval(row, "ratio_to_faster_whisper_int8", "ratio_low", "ratio_high")),
        WER,
        DIFFERENCE,
        BOUND,
        VERDICT,
        SAME_TEXT,
        PEAK_MB,
        N,
        FAILED,
        *HOW,
    ),
    "ms: median of n clips (quartiles), each the median of its repeats. speedup: stock's time / the arm's; to int8: "
    "the arm's / that of faster-whisper int8; both medians of the clips (95 % interval). stock: with the same model "
    "file; for faster-whisper, with the first one. diff., bound: WER less stock's, and the upper 95 % bound of it less "
    "the margin of 0.2 x WER of stock, points; below 0 is Non-inferior. same text: clips whose text is stock's. peak "
    "MB: the most memory that the arm's process had resident, with Python. failed: clips that cannot be read, left out "
    "in all arms.",
)

# --- all --------------------------------------------------------------------------------------------------------------

TABLES = {
    "step": STEP,
    "step --mode real": REAL,
    "utterance": UTTERANCE,
    "builds": UTTERANCE,
    "decoders": DECODERS,
    "dram": DRAM,
    "peers": PEERS,
}


def table_of(result: dict) -> Table:
    return TABLES[result["env"]["bench"]]


def parts(result: dict) -> Iterable[tuple[str, list[dict]]]:
    """(title, rows) for each number of threads."""
    title = table_of(result).title(result)
    for threads in dict.fromkeys(row["threads"] for row in result["rows"]):
        yield f"{title} · threads {threads}", [row for row in result["rows"] if row["threads"] == threads]


def conditions(env: dict) -> str:
    """Under which the bench ran."""
    governor = env["governor"] or NOTHING
    known = f"{env['cpu']}, {env['cores']} cores, governor {governor}, load {env['load']}, {env['date']}"
    return "\n".join((known, *unused_sources(env)))


def unused_sources(env: dict) -> list[str]:
    """Better ones of what `bench dram` found, and why they do not work here."""
    return [f"no {name}: {reason}" for name, reason in env.get("unused_sources", {}).items()]
