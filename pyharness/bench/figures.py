"""What the figures of each bench show, for one number of threads. Errors stand in the table below them."""

from collections.abc import Callable, Iterator, Sequence

from pyharness import page
from pyharness.bench import charts
from pyharness.bench.charts import Line, Point, Ratio
from pyharness.bench.utterance import PARTS

INTERVAL = "Median of the paired ratios with its 95 % interval."


def step(name: str, rows: Sequence[dict]) -> Iterator[str]:
    parts = {part: [row[f"{part}_ms"] for row in rows] for part in ("weights", "cross", "text", "tracking", "rest")}
    parts["not known"] = [None if row["weights_ms"] is not None else row["ms"] for row in rows]
    plot = charts.stacked_bars(f"{name}-parts", "Time of a step by its parts", _line_names(rows), parts, "ms per step")
    yield page.figure("Where the time of a step goes", plot, "Medians. Stock cannot tell.")
    plot = charts.ratios(f"{name}-ratio", "Time of a step against stock", _ratios(rows, "ratio"), "step time / stock's")
    yield page.figure("Step time against stock", plot, f"{INTERVAL} Left of the line is faster.")


def real(name: str, rows: Sequence[dict]) -> Iterator[str]:
    found = _ratios(rows, "ratio")
    plot = charts.ratios(f"{name}-ratio", "Time of a token against stock", found, "time per token / stock's")
    yield page.figure("Time per token against stock", plot, f"{INTERVAL} Left of the line is faster.")


def utterance(name: str, rows: Sequence[dict]) -> Iterator[str]:
    """Of `bench builds`, too, whose arms are builds."""
    parts = {key.removesuffix("_ms"): [row[key] for row in rows] for key in PARTS}
    plot = charts.stacked_bars(f"{name}-parts", "Time of a clip by its parts", _line_names(rows), parts, "ms per clip")
    yield page.figure("Where the time of a clip goes", plot, "Medians over the clips of a length.")
    found = _ratios(rows, "speedup")
    plot = charts.ratios(f"{name}-speedup", "Speedup of a clip against stock", found, "stock's time / the arm's")
    yield page.figure("Speedup against stock", plot, f"{INTERVAL} Right of the line is faster.")


def decoders(name: str, rows: Sequence[dict]) -> Iterator[str]:
    for mode in dict.fromkeys(row["mode"] for row in rows):
        of_mode = [row for row in rows if row["mode"] == mode]
        plot = charts.lines(
            f"{name}-{mode}-throughput",
            f"Throughput against stock, by number of decoders, {mode}",
            [_throughput(i, arm, mine) for i, (arm, mine) in enumerate(_by_arm(of_mode))],
            "decoders at once",
            "throughput / stock's",
        )
        yield page.figure(f"Throughput against stock, {mode}", plot, f"{INTERVAL} Above 1 is faster.")
        plot = charts.lines(
            f"{name}-{mode}-latency",
            f"Latency by number of decoders, {mode}",
            [line for i, (arm, mine) in enumerate(_by_arm(of_mode)) for line in _latency(i, arm, mine)],
            "decoders at once",
            "ms",
        )
        yield page.figure(f"Latency, {mode}", plot, "Of a step (synthetic), or of a clip behind the encoder (real).")


def dram(name: str, rows: Sequence[dict]) -> Iterator[str]:
    for i, cache in enumerate(dict.fromkeys(row["cache"] for row in rows)):
        beyond = [row for row in rows if row["cache"] == cache]
        plot = charts.stacked_bars(
            f"{name}-bytes-{i}",
            f"Bytes that a step reads, cache {cache}",
            _line_names(beyond),
            {part: [row[f"bytes_{part}"] / 1e6 for row in beyond] for part in ("weights", "cross")},
            "MB per step",
            found=(beyond[0]["source"], [row["bytes_per_step"] / 1e6 for row in beyond]),
        )
        note = "Bars: what a step cannot do without, by arithmetic. Marks and figures: what was found."
        yield page.figure(f"Bytes read per step · cache {cache}", plot, note)


def peers(name: str, rows: Sequence[dict]) -> Iterator[str]:
    scored = [row for row in rows if row["wer"] is not None]
    if scored:
        plot = charts.points(
            f"{name}-wer", "Time of a clip against word error rate", _points(scored), "ms per clip", "WER (%)"
        )
        yield page.figure("Time and errors", plot, "Medians over the clips. Low and left is good.")
    memory = {"peak memory": [row["peak_mb"] for row in rows]}
    plot = charts.stacked_bars(f"{name}-memory", "Peak memory of each process", _line_names(rows), memory, "MB")
    yield page.figure("Peak memory", plot, "Of the process, with Python and what it loads.")


FIGURES: dict[str, Callable[[str, Sequence[dict]], Iterator[str]]] = {
    "step": step,
    "step --mode real": real,
    "utterance": utterance,
    "builds": utterance,
    "decoders": decoders,
    "dram": dram,
    "peers": peers,
}


# --- of rows ----------------------------------------------------------------------------------------------------------


def _group(row: dict, rows: Sequence[dict]) -> str:
    """What tells its arms from others of the same name, if there are any: the clip's length, or the model."""
    if "clip_s_mean" in row:
        return f"{row['clip_s']:g} s · "
    return f"{row['model']} · " if len({one["model"] for one in rows}) > 1 else ""


def _arm(row: dict) -> str:
    """ "padsink-track 192 tau 0.4"."""
    return row["arm"].replace("budget=", "").replace("=", " ")


def _names(rows: Sequence[dict]) -> list[str]:
    return [_group(row, rows) + _arm(row) for row in rows]


def _line_names(rows: Sequence[dict]) -> list[str]:
    """From top to bottom: the group is named where it begins."""
    groups = [_group(row, rows) for row in rows]
    begins = [group if i == 0 or group != groups[i - 1] else "" for i, group in enumerate(groups)]
    return [group + _arm(row) for group, row in zip(begins, rows, strict=True)]


def _ratios(rows: Sequence[dict], kind: str) -> list[Ratio]:
    value = {"ratio": "ratio_to_stock", "speedup": "speedup_vs_stock"}[kind]
    return [
        Ratio(label, row[value], row[f"{kind}_low"], row[f"{kind}_high"])
        for label, row in zip(_line_names(rows), rows, strict=True)
    ]


def _by_arm(rows: Sequence[dict]) -> list[tuple[str, list[dict]]]:
    """Of each, rows by number of decoders."""
    arms = dict.fromkeys(map(_arm, rows))
    return [(arm, sorted((row for row in rows if _arm(row) == arm), key=lambda row: row["n"])) for arm in arms]


def _throughput(look: int, arm: str, rows: Sequence[dict]) -> Line:
    points = [(row["n"], row["ratio_to_stock"]) for row in rows]
    return Line(arm, points, look, intervals=[(row["ratio_low"], row["ratio_high"]) for row in rows])


def _latency(look: int, arm: str, rows: Sequence[dict]) -> Iterator[Line]:
    for quantile in ("p50", "p90"):
        points = [(row["n"], row[f"{quantile}_ms"]) for row in rows]
        yield Line(f"{arm} {quantile}", points, look, dashed=quantile == "p90")


def _points(rows: Sequence[dict]) -> list[Point]:
    """One colour for each arm, one marker for each model."""
    arms, models = (list(dict.fromkeys(row[key] for row in rows)) for key in ("arm", "model"))
    return [
        Point(label, row["ms"], 100 * row["wer"], arms.index(row["arm"]), models.index(row["model"]))
        for label, row in zip(_names(rows), rows, strict=True)
    ]
