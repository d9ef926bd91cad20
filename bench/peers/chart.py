"""What compare.py measured, as a table and as a picture."""

from xml.sax.saxutils import escape

COLOURS = {  # of each class, on a light page and on a dark one
    "page": ("#ffffff", "#0d1117"),
    "name": ("#1f2328", "#f0f6fc"),
    "dim": ("#4d5660", "#b1bac4"),
    "ours": ("#1a6b30", "#3fb950"),
    "peer": ("#0550ae", "#79c0ff"),
    "spread": ("#a04100", "#f0883e"),
}
WIDTH, ROW, GAP = 880, 22, 34
LEFT, BAR = 112, 230  # of a panel: where its bars begin, and how long the longest is


def number(value):
    """Three digits that count."""
    if value >= 1000:
        return f"{round(value, 3 - len(str(int(value)))):,.0f}"
    return f"{value:.0f}" if value >= 100 or isinstance(value, int) else f"{value:.1f}"


def median_of(values):
    if not values:
        return "–"
    return f"{number(values['median'])} ({number(values['least'])} to {number(values['most'])})"


def checks_passed(worker, begin=""):
    """Of the checks whose ids begin like that."""
    if not worker["probe"]:
        return "–"
    every = [(each, result) for result, ids in worker["probe"].items() for each in ids if each.startswith(begin)]
    return f"{sum(result == 'PASS' for _, result in every)} of {len(every)}"


def polling(worker):
    return f"{worker['poll_ms']} ms" if worker["poll_ms"] < 1000 else "1 s"


def table(result):
    lines = [
        ("", lambda each: each["name"]),
        ("version", lambda each: each["about"]),
        ("checks of the probe that pass", checks_passed),
        ("of them the specification's (GS-…)", lambda each: checks_passed(each, "GS-")),
        *((f"jobs a second, {key} at a time", lambda each, key=key: median_of(each["rate"][key])) for key in ("1", "10", "64")),
        ("CPU a job, µs", lambda each: median_of(each["cpu_us"])),
        ("memory at most, MiB", lambda each: median_of(each["memory_mib"])),
        ("idle stop, ms", lambda each: median_of(each["stop_ms"])),
        ("program, MB", lambda each: number(each["size_mb"]) if each["size_mb"] else "interpreted"),
        ("poll interval", polling),
    ]
    text = [[title, *(measured(each) for each in result["workers"])] for title, measured in lines]
    text.insert(1, ["---"] * len(text[0]))
    return "".join(f"| {' | '.join(row)} |\n" for row in text)


# ---- the picture -----------------------------------------------------------------------------------------------------


def style():
    light = "".join(f".{each}{{fill:{pair[0]}}}\n" for each, pair in COLOURS.items())
    dark = "".join(f".{each}{{fill:{pair[1]}}}\n" for each, pair in COLOURS.items())
    return (f"text{{font:12px system-ui,sans-serif}}\n.head{{font-weight:600}}\n{light}"
            f"@media (prefers-color-scheme:dark){{\n{dark}}}")  # fmt: skip


def text_at(x, y, what, kind="name"):
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}">{escape(what)}</text>\n'


def bar(x, y, worker, values, longest):
    scale = BAR / longest
    kind = "ours" if worker["name"] == "ojs_shutdown" else "peer"
    width = max(1.0, values["median"] * scale)
    out = f'<rect class="{kind}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="14"/>\n'
    if values["most"] > values["least"]:
        least, most = values["least"] * scale, values["most"] * scale
        out += f'<rect class="spread" x="{x + least:.1f}" y="{y + 6:.1f}" width="{max(1.0, most - least):.1f}" height="2"/>\n'
    return out + text_at(x + max(width, values["most"] * scale) + 5, y + 11.5, number(values["median"]), "dim")


def panel(x, y, title, result, value_of):
    values = [(worker, value_of(worker)) for worker in result["workers"]]
    longest = max((each["most"] for _, each in values if each), default=1) or 1
    out = text_at(x, y, title, "name head")
    for index, (worker, each) in enumerate(values):
        top = y + 10 + index * ROW
        out += text_at(x, top + 11.5, worker["name"])
        out += bar(x + LEFT, top, worker, each, longest) if each else text_at(x + LEFT, top + 11.5, "–", "dim")
    return out


def passed(worker):
    if not worker["probe"]:
        return None
    return dict.fromkeys(("median", "least", "most"), len(worker["probe"]["PASS"]))


def drawn(result):
    panels = [
        ("Checks of the shutdown probe that pass", passed),
        ("Jobs a second, 10 at a time", lambda each: each["rate"]["10"]),
        ("Processor a job, µs: less is better", lambda each: each["cpu_us"]),
        ("Memory at most, MiB: less is better", lambda each: each["memory_mib"]),
    ]
    tall = GAP + ROW * len(result["workers"]) + 10
    height = 2 * tall + 26
    names = ", ".join(each["name"] for each in result["workers"])
    said = f"Bars for {names}. Each is the median of {result['rounds']} rounds; the line on it is the whole spread."
    out = (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
           f'aria-labelledby="title desc">\n<title id="title">Workers compared, as they were measured</title>\n'
           f'<desc id="desc">{escape(said)}</desc>\n<style>\n{style()}\n</style>\n'
           f'<rect class="page" width="{WIDTH}" height="{height}" rx="6"/>\n')  # fmt: skip
    for index, (title, value_of) in enumerate(panels):
        out += panel(16 + (index % 2) * WIDTH / 2, 26 + (index // 2) * tall, title, result, value_of)
    note = f"Median of {result['rounds']} rounds; the line is the whole spread. {result['machine']['processors']} processors."
    return out + text_at(16, height - 12, note, "dim") + "</svg>\n"
