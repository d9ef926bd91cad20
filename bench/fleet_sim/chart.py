"""The curves of scenarios as SVG: requests a second on the left, jobs that wait to be reported on the right."""

from scenarios import SCENARIOS, TIMES_STEADY

STYLE = """.page{fill:#ffffff}
text{font:12px system-ui,sans-serif;fill:#1f2328}
.dim{fill:#4d5660}
.failed{fill:none;stroke:#a04100}
.served{fill:none;stroke:#0550ae;stroke-width:1.5}
.waiting{fill:none;stroke:#1a6b30;stroke-width:1.5}
.limit{fill:none;stroke:#4d5660;stroke-dasharray:4 4}
.axis{fill:none;stroke:#4d5660}
@media (prefers-color-scheme:dark){.page{fill:#0d1117}
text{fill:#f0f6fc}
.dim{fill:#b1bac4}
.failed{stroke:#f0883e}
.served{stroke:#79c0ff}
.waiting{stroke:#3fb950}
.limit{stroke:#b1bac4}
.axis{stroke:#b1bac4}
}"""
WIDTH, PANEL, HEIGHT, ROW = 880, 364, 90, 142
LEFT = (46, 492)  # of the two panels


def text(x, y, words, extra=""):
    return f'<text x="{x}" y="{y}"{extra}>{words}</text>\n'


def curve(kind, values, x, base, top):
    """Whole pixels, as steps from point to point."""
    width = PANEL / (len(values) - 1)
    points = [(round(x + i * width), round(base - value * HEIGHT / top)) for i, value in enumerate(values)]
    steps = "".join(f"l{x2 - x1} {y2 - y1}" for (x1, y1), (x2, y2) in zip(points, points[1:]))
    return f'<path class="{kind}" d="M{points[0][0]} {points[0][1]}{steps}"/>\n'


def panel(x, y, seconds, top, label):
    base = y + HEIGHT
    out = f'<path class="axis" d="M{x} {y}V{base}H{x + PANEL}"/>\n'
    left = ' class="dim" text-anchor="end"'
    out += text(x - 4, y + 8, label, left) + text(x - 4, base, "0", left)
    for second in range(0, seconds + 1, 30):
        at = round(x + second * PANEL / seconds)
        out += text(at, base + 14, f"{second} s", ' class="dim" text-anchor="middle"')
    return out


def in_thousands(number):
    if number < 1000:
        return f"{number:.0f}"
    return f"{number / 1000:.0f}k" if number >= 10_000 else f"{number / 1000:.1f}k"


def scenario_row(name, found, y):
    scenario = SCENARIOS[name]
    limit = TIMES_STEADY * found.steady
    top = max(*found.requests, limit * 1.1)
    most = max(*found.waiting, 1)
    base = y + HEIGHT
    out = text(LEFT[0], y - 8, f"{name}: {scenario.title}")
    out += panel(LEFT[0], y, scenario.seconds, top, in_thousands(top))
    at = round(base - limit * HEIGHT / top)
    out += f'<path class="limit" d="M{LEFT[0]} {at}h{PANEL}"/>\n'
    if found.requests != found.served:
        out += curve("failed", found.requests, LEFT[0], base, top)
    out += curve("served", found.served, LEFT[0], base, top)
    out += panel(LEFT[1], y, scenario.seconds, most, in_thousands(most))
    return out + curve("waiting", found.waiting, LEFT[1], base, most)


def drawn(found, workers):
    height = 52 + ROW * len(found)
    about = ", ".join(found)
    out = (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
           f'aria-labelledby="title desc">\n'
           f'<title id="title">A fleet of {workers:,} workers, simulated</title>\n'
           f'<desc id="desc">Requests a second and jobs waiting to be reported, for the scenarios {about}.</desc>\n'
           f'<style>{STYLE}</style>\n<rect class="page" width="{WIDTH}" height="{height}"/>\n')  # fmt: skip
    out += text(LEFT[0], 18, "Requests a second: blue, answered; orange, all.", ' class="dim"')
    out += text(LEFT[0], 34, f"Dashed: {TIMES_STEADY} times the steady load.", ' class="dim"')
    out += text(LEFT[1], 18, "Jobs waiting to be reported", ' class="dim"')
    for index, (name, each) in enumerate(found.items()):
        out += scenario_row(name, each, 64 + index * ROW)
    return out + "</svg>\n"
